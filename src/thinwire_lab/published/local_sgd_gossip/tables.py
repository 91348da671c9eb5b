"""Tables of local-sgd-gossip: all figures, and the findings of Tolstobrov (2022) one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from ..claims import Claim, RangeClaim, build_claims_table, final_value

Runs = Sequence[Mapping[str, Any]]
RunIndex = dict[tuple[str, str], Mapping[str, Any]]  # by group and number of the configuration

CHANCE = {"CIFAR-10": 0.1, "CIFAR-100": 0.01}  # accuracy of guessing, by data set
MARGIN = 0.1  # no. 1 must be this far above chance for losses of a few points to be visible


def index_by_number(runs: Runs) -> RunIndex:
    """Return runs by group and the number before a label's colon."""
    return {(run["group"], run["label"].partition(":")[0]): run for run in runs}


def _seconds(run: Mapping[str, Any], *names: str) -> float:
    spent = sum(float(run["times"].get(name, 0.0)) for name in names)
    return spent / max(1, int(run["steps"]))


def build_configuration_table(runs: Runs) -> dict[str, Any]:
    """Return one row per configuration: accuracy by group, bytes, milliseconds of a step by link."""
    accuracy_groups = list(dict.fromkeys(run["group"] for run in runs if run["driver"] == "lockstep"))
    timed_groups = list(dict.fromkeys(run["group"] for run in runs if run["driver"] == "processes"))
    labels, found = list(dict.fromkeys(run["label"] for run in runs)), {(r["group"], r["label"]): r for r in runs}
    rows = []
    for label in labels:
        row: list[Any] = [label]
        row += [_format_accuracy(found.get((group, label))) for group in accuracy_groups]
        for group in timed_groups:
            run = found.get((group, label))
            times = (("compute", "encode"), ("communication",), ("waiting",))
            cell = "" if run is None else " / ".join(f"{1e3 * _seconds(run, *names):.1f}" for names in times)
            row.append(f"{cell} †" if run is not None and "origin" in run else cell)
        sent = next((found[c, label]["final"]["wire_bytes"] / found[c, label]["steps"] for c in timed_groups
                     if (c, label) in found), None)  # fmt: skip
        rows.append([*row, None if sent is None else round(sent)])
    return {
        "title": "All configurations",
        "note": "Final accuracy (%) of the mean model; milliseconds per step of computing / communication / waiting on "
        "real processes, and the bytes per step that rank 0 sent there.",
        "columns": ["configuration", *accuracy_groups, *(f"{group} (ms)" for group in timed_groups), "bytes per step"],
        "rows": rows,
    }


def _format_accuracy(run: Mapping[str, Any] | None) -> float | str | None:
    """Return the accuracy in percent, marked with † where it is from another run."""
    if run is None:
        return None
    value = round(100 * final_value(run, "accuracy"), 1)
    return f"{value:.1f} †" if "origin" in run else value


def build_findings_table(runs: Runs) -> dict[str, Any]:
    """Return the findings, judged where all ten configurations were run; accuracy only in groups above chance."""
    found = index_by_number(runs)
    complete = [g for g in dict.fromkeys(g for g, _ in found) if all((g, str(n)) in found for n in range(1, 11))]
    timed_groups = [g for g in complete if found[g, "1"]["driver"] == "processes"]
    accuracy_groups = [g for g, number in found if number == "1" and found[g, number]["driver"] == "lockstep"]
    informative, near_chance = split_by_accuracy(found, accuracy_groups)
    informative = [g for g in informative if g in complete]
    fast, thin = (next((g for g in timed_groups if g.endswith(end)), None) for end in ("fast link", "mbit"))
    notes = [f"Points of accuracy lost are means over {_join_groups(informative)}."] if informative else []
    if near_chance:
        near = f"less than {100 * MARGIN:g} points above chance"
        notes.append(f"Left out, because no. 1 is {near}: {_join_groups(near_chance)}.")
    older = {(run["driver"], number): None for (_, number), run in found.items() if "origin" in run}
    parts = [f"no. {number}" for driver, number in older if driver == "lockstep"]
    parts += ["times"] if any(driver == "processes" for driver, _ in older) else []
    if parts:
        notes.append(f"From another run, marked †: {', '.join(parts)}.")
    claims = [*(_accuracy_claims(found, informative) if informative else ()), *_time_claims(found, fast, thin)]
    return build_claims_table("Findings of Tolstobrov (2022), as measured", claims, note=" ".join(notes))


def split_by_accuracy(found: RunIndex, accuracy_groups: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the groups in which no. 1 ends at least MARGIN above chance, and the others."""
    above = {g: final_value(found[g, "1"], "accuracy") - CHANCE[g.partition(",")[0]] for g in accuracy_groups}
    return [g for g in accuracy_groups if above[g] >= MARGIN], [g for g in accuracy_groups if not above[g] >= MARGIN]


def _join_groups(groups: Sequence[str]) -> str:
    return "; ".join(groups)


def _accuracy_claims(found: RunIndex, accuracy_groups: Sequence[str]) -> list[Claim | RangeClaim]:
    def loss(number: str, than: str, where: Sequence[str] = accuracy_groups) -> float:
        """Return the points of accuracy lost, mean over groups."""
        return mean(
            100 * (final_value(found[g, than], "accuracy") - final_value(found[g, number], "accuracy")) for g in where
        )

    def losses(*pairs: tuple[int, str, str], where: Sequence[str] = accuracy_groups) -> dict[str, float]:
        return {f"p = {p}": loss(number, than, where) for p, number, than in pairs}

    with_feedback = [g for g in accuracy_groups if all((g, f"{n} with EF") in found for n in (3, 6, 9))]
    claims: list[Claim | RangeClaim] = [
        RangeClaim("Local-SGD loses 2 to 4 points at p = 4", 2, 4, losses((4, "4", "1"))),
        Claim("and much more for large p (more than 4 points, and twice the loss at p = 4)",
              loss("10", "1") > max(4, 2 * loss("4", "1")), losses((16, "7", "1"), (32, "10", "1"))),
        RangeClaim("Gossip loses about 2 points (1 to 3)", 1, 3, losses((1, "2", "1"), (4, "5", "4"), (16, "8", "7"))),
        RangeClaim("Sparsification loses 1 to 2 points at p = 1", 1, 2, losses((1, "3", "2"))),
        RangeClaim("and almost nothing at p > 1 (within 1 point)", -1, 1,
                   losses((4, "6", "5"), (16, "9", "8"))),
        RangeClaim("No. 9 loses 1 to 3 points", 1, 3, {"no. 9": loss("9", "1")}),
    ]  # fmt: skip
    if with_feedback:
        pairs = ((1, "3 with EF", "2"), (4, "6 with EF", "5"), (16, "9 with EF", "8"))
        text = "(not published) with error feedback sparsification loses almost nothing (within 1 point)"
        claims.append(RangeClaim(text, -1, 1, losses(*pairs, where=with_feedback)))
    return claims


def _time_claims(found: RunIndex, fast: str | None, thin: str | None) -> list[Claim | RangeClaim]:
    """Return the claims about time; without thin links only those about the fast link."""
    claims: list[Claim | RangeClaim] = []
    if thin is not None:

        def communication_s(number: str) -> float:
            return _seconds(found[thin, number], "communication")

        gossip = {
            f"p = {p}": communication_s(a) / communication_s(b)
            for p, a, b in ((1, "1", "2"), (4, "4", "5"), (16, "7", "8"))
        }
        sparse = {
            f"p = {p}": communication_s(a) / communication_s(b)
            for p, a, b in ((1, "2", "3"), (4, "5", "6"), (16, "8", "9"))
        }
        ratio = _step_seconds(found[thin, "1"]) / _step_seconds(found[thin, "9"])
        claims += [
            RangeClaim("Gossip communicates 2 to 5 times faster (thin link)", 2, 5, gossip),
            RangeClaim("Sparsification a further 2 to 10 times (thin link)", 2, 10, sparse),
            RangeClaim("No. 9 communicates about 40 times faster (20 to 80; thin link)", 20, 80,
                       {"no. 9": communication_s("1") / communication_s("9")}),
            RangeClaim("End to end 2 to 3 times faster on the thin link", 2, 3, {"no. 9": ratio}),
        ]  # fmt: skip
    if fast is not None:
        ratio = _step_seconds(found[fast, "1"]) / _step_seconds(found[fast, "9"])
        waits = {
            n: _seconds(found[fast, n], "waiting") / _seconds(found[fast, n], "compute", "encode")
            for n in ("1", "2", "9")
        }
        claims += [
            RangeClaim("End to end about the same on the fast link (0.67 to 1.5 times)", 0.67, 1.5, {"no. 9": ratio}),
            Claim(
                "Waiting can exceed computing (with encoding)",
                max(waits.values()) > 1,
                {f"no. {n}": w for n, w in waits.items()},
            ),
        ]
    return claims


def _step_seconds(run: Mapping[str, Any]) -> float:
    return _seconds(run, "compute", "encode", "communication", "waiting")
