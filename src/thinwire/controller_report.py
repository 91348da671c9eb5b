"""Report of per-layer adaptive compression: decisions, their cost, and the plan in force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from .aggregators.options import find_tunable, with_setting
from .catalog import part_text
from .core import Aggregator, CompositionError, Plan
from .drivers.meter import Meter
from .exchange import Exchanger

MAX_OPTIONS_SHOWN = 8


class ControllerReport(NamedTuple):
    """What a controller has done so far, seen from one rank."""

    decisions: int
    changes: int  # decisions that changed the plan, and random plans of a calibration
    seconds: float  # spent on observing layers, deciding and receiving plans, waiting for other ranks included
    share: float  # of the time since the handle was attached
    num_bytes: float  # sent for statistics and plans
    plan: Mapping[str, int]  # options in force, with the number of layers that have each
    details: Mapping[str, Any]  # the controller's own report

    def lines(self, steps: int) -> list[str]:
        """Two lines of text for the report of a handle."""
        first = (
            f"  adapting     {self.decisions} decision{'' if self.decisions == 1 else 's'}, "
            f"{1e3 * self.seconds / max(1, steps):.3g} ms a step, {100 * self.share:.2g} % of the time, "
            f"{self.num_bytes / 1e3:.3g} kB of plans"
        )
        sorted_plan = sorted(self.plan.items(), key=lambda item: -item[1])
        in_force = ", ".join(f"{count} × {text}" for text, count in sorted_plan[:MAX_OPTIONS_SHOWN])
        rest = sum(count for _, count in sorted_plan[MAX_OPTIONS_SHOWN:])
        return [first + _describe_objective(self.details), "    " + in_force + (f", {rest} others" if rest else "")]


def _describe_objective(details: Mapping[str, Any]) -> str:
    if "because" not in details:
        return ""
    if details["objective"] == "bytes":
        return f"; by bytes instead of time: {details['because']}"
    rates = ", ".join(f"{rate:.3g}" for rate in details["seconds_per_mb"].values())
    return f"; by time: {rates} s/MB by bucket, R² {details['r2']:.2f}"


def option_texts(exchanger: Exchanger, plan: Plan) -> dict[str, str]:
    """The option that a plan gives to each layer that has a menu, as text."""
    return {spec.name: option_text(menu.options[plan[spec.name]]) for spec, menu in exchanger.menus}


def option_text(option: Aggregator[Any]) -> str:
    """The text of an option, with its tunable setting even where that has the part's default value."""
    found = find_tunable(option)
    if found is None:
        return part_text(option)
    tunable, own = found
    for other in (own / 2,) if isinstance(own, float) else (own + 1, own - 1):
        with suppress(CompositionError):  # a text always shows a value that is not the part's default
            changed = part_text(with_setting(option, tunable.name, other))
            return changed.replace(f"{tunable.name}={other}", f"{tunable.name}={own}", 1)
    return part_text(option)


def build_controller_report(exchanger: Exchanger, meter: Meter, elapsed_s: float) -> ControllerReport | None:
    """Return the report of an exchanger's controller; None if no layer has a menu.

    Args:
        exchanger: its plan is reported.
        meter: counts the bytes of this rank.
        elapsed_s: seconds since the handle was attached.
    """
    if not exchanger.menus:
        return None
    details = exchanger.controller_report()
    plans = meter.sum_by("kind").get("plan")
    return ControllerReport(
        details["decisions"],
        details["changes"],
        details["seconds"],
        details["seconds"] / elapsed_s if elapsed_s > 0 else 0.0,
        plans.sent_bytes if plans is not None else 0.0,
        dict(Counter(option_texts(exchanger, exchanger.plan).values())),
        details,
    )
