"""What E7's runs show: one table of all figures, and the findings of Tolstobrov (2022) one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from ..claims import Claim, RangeClaim, build_claims_table, final_value

Runs = Sequence[Mapping[str, Any]]
Found = dict[tuple[str, str], Mapping[str, Any]]  # by group and the number before a label's colon

CHANCE = {"CIFAR-10": 0.1, "CIFAR-100": 0.01}  # accuracy of a guess, by what precedes a group's comma
MARGIN = 0.1  # no. 1 above chance, for losses of a few points to be seen


def by_number(runs: Runs) -> Found:
    return {(run["group"], run["label"].partition(":")[0]): run for run in runs}


def _seconds(run: Mapping[str, Any], *names: str) -> float:
    spent = sum(float(run["times"].get(name, 0.0)) for name in names)
    return spent / max(1, int(run["steps"]))


def numbers(runs: Runs) -> dict[str, Any]:
    """One row a configuration: accuracy by crowd, bytes, milliseconds of a step by link."""
    crowds = list(dict.fromkeys(run["group"] for run in runs if run["driver"] == "lockstep"))
    clocks = list(dict.fromkeys(run["group"] for run in runs if run["driver"] == "processes"))
    labels, found = list(dict.fromkeys(run["label"] for run in runs)), {(r["group"], r["label"]): r for r in runs}
    rows = []
    for label in labels:
        row: list[Any] = [label]
        row += [_percent(found.get((crowd, label))) for crowd in crowds]
        for clock in clocks:
            run = found.get((clock, label))
            times = (("compute", "encode"), ("communication",), ("waiting",))
            cell = "" if run is None else " / ".join(f"{1e3 * _seconds(run, *names):.1f}" for names in times)
            row.append(f"{cell} †" if run is not None and "origin" in run else cell)
        sent = next((found[c, label]["final"]["wire_bytes"] / found[c, label]["steps"] for c in clocks
                     if (c, label) in found), None)  # fmt: skip
        rows.append([*row, None if sent is None else round(sent)])
    return {
        "title": "Every configuration",
        "note": "Accuracy (%) of the mean model at the end; milliseconds a step of computing / communication / waiting "
        "on real processes, and bytes that rank 0 sent a step there.",
        "columns": ["configuration", *crowds, *(f"{clock} (ms)" for clock in clocks), "bytes a step"],
        "rows": rows,
    }


def _percent(run: Mapping[str, Any] | None) -> float | str | None:
    """Marked where it is not of the run that is shown."""
    if run is None:
        return None
    value = round(100 * final_value(run, "accuracy"), 1)
    return f"{value:.1f} †" if "origin" in run else value


def findings(runs: Runs) -> dict[str, Any]:
    """Claims are judged where all ten configurations were run, those on accuracy in the groups that tell something."""
    found = by_number(runs)
    complete = [g for g in dict.fromkeys(g for g, _ in found) if all((g, str(n)) in found for n in range(1, 11))]
    clocks = [g for g in complete if found[g, "1"]["driver"] == "processes"]
    crowds = [g for g, number in found if number == "1" and found[g, number]["driver"] == "lockstep"]
    telling, silent = told_apart(found, crowds)
    telling = [g for g in telling if g in complete]
    fast, thin = (next((g for g in clocks if g.endswith(end)), None) for end in ("fast link", "mbit"))
    notes = [f"Points of accuracy lost are means over {_listed(telling)}."] if telling else []
    if silent:
        near = f"less than {100 * MARGIN:g} points above chance"
        notes.append(f"Left out, because no. 1 is {near} there: {_listed(silent)}.")
    older = {(run["driver"], number): None for (_, number), run in found.items() if "origin" in run}
    parts = [f"no. {number}" for driver, number in older if driver == "lockstep"]
    parts += ["times"] if any(driver == "processes" for driver, _ in older) else []
    if parts:
        notes.append(f"Of rows marked †, which were not run again, are {', '.join(parts)}.")
    claims = [*(_of_crowds(found, telling) if telling else ()), *_of_clocks(found, fast, thin)]
    return build_claims_table("Tolstobrov's findings, as measured", claims, note=" ".join(notes))


def told_apart(found: Found, crowds: Sequence[str]) -> tuple[list[str], list[str]]:
    """Groups whose no. 1 ends at least MARGIN above chance, and the others, where nothing is learned or lost."""
    above = {g: final_value(found[g, "1"], "accuracy") - CHANCE[g.partition(",")[0]] for g in crowds}
    return [g for g in crowds if above[g] >= MARGIN], [g for g in crowds if not above[g] >= MARGIN]


def _listed(groups: Sequence[str]) -> str:
    return "; ".join(groups)


def _of_crowds(found: Found, crowds: Sequence[str]) -> list[Claim | RangeClaim]:
    def loss(number: str, than: str, where: Sequence[str] = crowds) -> float:
        """Points of accuracy lost, mean over groups."""
        return mean(
            100 * (final_value(found[g, than], "accuracy") - final_value(found[g, number], "accuracy")) for g in where
        )

    def losses(*pairs: tuple[int, str, str], where: Sequence[str] = crowds) -> dict[str, float]:
        return {f"p = {p}": loss(number, than, where) for p, number, than in pairs}

    fed = [g for g in crowds if all((g, f"{n} with EF") in found for n in (3, 6, 9))]
    claims: list[Claim | RangeClaim] = [
        RangeClaim("Local-SGD loses 2 to 4 points at p = 4", 2, 4, losses((4, "4", "1"))),
        Claim("and much more for large p (more than 4 points, and twice those of p = 4)",
              loss("10", "1") > max(4, 2 * loss("4", "1")), losses((16, "7", "1"), (32, "10", "1"))),
        RangeClaim("Gossip loses about 2 points (1 to 3)", 1, 3, losses((1, "2", "1"), (4, "5", "4"), (16, "8", "7"))),
        RangeClaim("Sparsification loses 1 to 2 points at p = 1", 1, 2, losses((1, "3", "2"))),
        RangeClaim("and almost nothing at p > 1 (at most a point, either way)", -1, 1,
                   losses((4, "6", "5"), (16, "9", "8"))),
        RangeClaim("No. 9 loses 1 to 3 points", 1, 3, {"no. 9": loss("9", "1")}),
    ]  # fmt: skip
    if fed:
        pairs = ((1, "3 with EF", "2"), (4, "6 with EF", "5"), (16, "9 with EF", "8"))
        text = "(ours) with error feedback sparsification loses almost nothing (at most a point, either way)"
        claims.append(RangeClaim(text, -1, 1, losses(*pairs, where=fed)))
    return claims


def _of_clocks(found: Found, fast: str | None, thin: str | None) -> list[Claim | RangeClaim]:
    """Points of time; without thin links, those of the fast one alone."""
    claims: list[Claim | RangeClaim] = []
    if thin is not None:

        def sending(number: str) -> float:
            return _seconds(found[thin, number], "communication")

        gossip = {f"p = {p}": sending(a) / sending(b) for p, a, b in ((1, "1", "2"), (4, "4", "5"), (16, "7", "8"))}
        sparse = {f"p = {p}": sending(a) / sending(b) for p, a, b in ((1, "2", "3"), (4, "5", "6"), (16, "8", "9"))}
        whole = _whole(found[thin, "1"]) / _whole(found[thin, "9"])
        claims += [
            RangeClaim("Gossip communicates 2 to 5 times faster (thin link)", 2, 5, gossip),
            RangeClaim("Sparsification a further 2 to 10 times (thin link)", 2, 10, sparse),
            RangeClaim("No. 9 communicates about 40 times faster (20 to 80; thin link)", 20, 80,
                       {"no. 9": sending("1") / sending("9")}),
            RangeClaim("End to end 2 to 3 times faster on the slow network", 2, 3, {"no. 9": whole}),
        ]  # fmt: skip
    if fast is not None:
        whole = _whole(found[fast, "1"]) / _whole(found[fast, "9"])
        waits = {
            n: _seconds(found[fast, n], "waiting") / _seconds(found[fast, n], "compute", "encode")
            for n in ("1", "2", "9")
        }
        claims += [
            RangeClaim("End to end about the same on the fast one (0.67 to 1.5 times)", 0.67, 1.5, {"no. 9": whole}),
            Claim(
                "Waiting can exceed computing (with encoding)",
                max(waits.values()) > 1,
                {f"no. {n}": w for n, w in waits.items()},
            ),
        ]
    return claims


def _whole(run: Mapping[str, Any]) -> float:
    return _seconds(run, "compute", "encode", "communication", "waiting")
