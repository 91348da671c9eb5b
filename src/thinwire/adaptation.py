"""What choosing per layer did and cost, in figures and words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from .aggregators.ladder import knob_of, with_setting
from .catalog import part_text
from .core import Aggregator, CompositionError, Plan
from .drivers.meter import Meter
from .exchange import Exchanger

MOST_ENTRIES = 8


class Adapting(NamedTuple):
    """One rank's view, so far."""

    decisions: int
    changes: int  # decisions that changed something, and random plans of a calibration
    seconds: float  # looking at layers, deciding and hearing what was decided, waiting for others included
    share: float  # of the time since the wire was attached
    num_bytes: float  # sent for statistics and plans
    plan: Mapping[str, int]  # what is in force, with the number of layers that have it
    told: Mapping[str, Any]  # what the controller says of itself

    def lines(self, steps: int) -> list[str]:
        first = (
            f"  adapting     {self.decisions} decision{'' if self.decisions == 1 else 's'}, "
            f"{1e3 * self.seconds / max(1, steps):.3g} ms a step, {100 * self.share:.2g} % of the time, "
            f"{self.num_bytes / 1e3:.3g} kB of plans"
        )
        shown = sorted(self.plan.items(), key=lambda kv: -kv[1])
        inforce = ", ".join(f"{count} × {text}" for text, count in shown[:MOST_ENTRIES])
        rest = sum(count for _, count in shown[MOST_ENTRIES:])
        return [first + _objective(self.told), "    " + inforce + (f", {rest} others" if rest else "")]


def _objective(told: Mapping[str, Any]) -> str:
    if "because" not in told:
        return ""
    if told["objective"] == "bytes":
        return f"; by bytes instead of time: {told['because']}"
    rates = ", ".join(f"{rate:.3g}" for rate in told["seconds_per_mb"].values())
    return f"; by time: {rates} s/MB by bucket, R² {told['r2']:.2f}"


def entry_texts(exchanger: Exchanger, plan: Plan) -> dict[str, str]:
    """What a plan gives to each layer that has a menu."""
    return {spec.name: entry_text(menu.entries[plan[spec.name]]) for spec, menu in exchanger.choices}


def entry_text(entry: Aggregator[Any]) -> str:
    """With the number that was turned, though a text leaves it out where it is the default."""
    found = knob_of(entry)
    if found is None:
        return part_text(entry)
    knob, own = found
    for other in (own / 2,) if isinstance(own, float) else (own + 1, own - 1):
        with suppress(CompositionError):  # a text always has what is not the default
            changed = part_text(with_setting(entry, knob.name, other))
            return changed.replace(f"{knob.name}={other}", f"{knob.name}={own}", 1)
    return part_text(entry)


def adapting_of(exchanger: Exchanger, meter: Meter, elapsed_s: float) -> Adapting | None:
    """None where nobody chooses."""
    if not exchanger.choices:
        return None
    told = exchanger.adaptation()
    plans = meter.by("kind").get("plan")
    return Adapting(
        told["decisions"],
        told["changes"],
        told["seconds"],
        told["seconds"] / elapsed_s if elapsed_s > 0 else 0.0,
        plans.sent_bytes if plans is not None else 0.0,
        dict(Counter(entry_texts(exchanger, exchanger.plan).values())),
        told,
    )
