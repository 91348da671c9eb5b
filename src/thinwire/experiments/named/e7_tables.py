"""What E7's runs show: one table of all figures, and S3's findings one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from .claims import Claim, claims_table, final_of

Runs = Sequence[Mapping[str, Any]]
Found = dict[tuple[str, str], Mapping[str, Any]]  # by group and the number before a label's colon


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
            row.append("" if run is None else " / ".join(f"{1e3 * _seconds(run, *names):.1f}" for names in times))
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


def _percent(run: Mapping[str, Any] | None) -> float | None:
    return None if run is None else round(100 * final_of(run, "accuracy"), 1)


def findings(runs: Runs) -> dict[str, Any]:
    found = by_number(runs)
    crowds = list(dict.fromkeys(g for g, _ in found if "workers" in g))
    fed = [g for g in crowds if (g, "9 with EF") in found]
    fast, thin = (next((g for g, _ in found if g.endswith(end)), None) for end in ("fast link", "mbit"))

    def loss(number: str, than: str, where: Iterable[str] = crowds) -> float:
        """Points of accuracy lost, mean over crowds."""
        return mean(
            100 * (final_of(found[g, than], "accuracy") - final_of(found[g, number], "accuracy")) for g in where
        )

    claims = [
        Claim("Local-SGD loses 2 to 4 points at p = 4", 2 <= loss("4", "1") <= 4, {"p = 4": loss("4", "1")}),
        Claim("and much more for large p", loss("10", "1") > 2 * loss("4", "1") and loss("10", "1") > 4,
              {"p = 16": loss("7", "1"), "p = 32": loss("10", "1")}),
        Claim("Gossip loses about 2 points", abs(loss("2", "1") - 2) <= 2,
              {f"p = {p}": loss(a, b) for p, a, b in ((1, "2", "1"), (4, "5", "4"), (16, "8", "7"))}),
        Claim("Sparsification loses 1 to 2 points at p = 1", 0 <= loss("3", "2") <= 3, {"p = 1": loss("3", "2")}),
        Claim("and is almost free at p > 1", max(loss("6", "5"), loss("9", "8")) <= 1,
              {"p = 4": loss("6", "5"), "p = 16": loss("9", "8")}),
        Claim("No. 9 loses 1 to 3 points", loss("9", "1") <= 3, {"no. 9": loss("9", "1")}),
        Claim("(ours) with error feedback sparsification is almost free",
              max(loss(f"{a} with EF", b, fed) for a, b in (("3", "2"), ("6", "5"), ("9", "8"))) <= 1,
              {f"p = {p}": loss(f"{a} with EF", b, fed) for p, a, b in ((1, "3", "2"), (4, "6", "5"), (16, "9", "8"))}),
    ]  # fmt: skip
    return claims_table("S3's findings, as measured", claims + _of_clocks(found, fast, thin))


def _of_clocks(found: Found, fast: str | None, thin: str | None) -> list[Claim]:
    """Points of time; without thin links, those of the fast one alone."""
    claims = []
    if thin is not None:

        def sending(number: str) -> float:
            return _seconds(found[thin, number], "communication")

        gossip = {f"p = {p}": sending(a) / sending(b) for p, a, b in ((1, "1", "2"), (4, "4", "5"), (16, "7", "8"))}
        sparse = {f"p = {p}": sending(a) / sending(b) for p, a, b in ((1, "2", "3"), (4, "5", "6"), (16, "8", "9"))}
        whole = _whole(found[thin, "1"]) / _whole(found[thin, "9"])
        claims += [
            Claim("Gossip communicates 2 to 5 times faster (thin link)", min(gossip.values()) >= 2, gossip),
            Claim("Sparsification a further 2 to 10 times (thin link)", min(sparse.values()) >= 2, sparse),
            Claim("No. 9 communicates about 40 times faster (thin link)", sending("1") / sending("9") >= 20,
                  {"no. 9": sending("1") / sending("9")}),
            Claim("End to end 2 to 3 times faster on the slow network", whole >= 2, {"no. 9": whole}),
        ]  # fmt: skip
    if fast is not None:
        whole = _whole(found[fast, "1"]) / _whole(found[fast, "9"])
        waits = {n: _seconds(found[fast, n], "waiting") / _seconds(found[fast, n], "compute") for n in ("1", "2", "9")}
        claims += [
            Claim("End to end about the same on the fast one", whole < 1.5, {"no. 9": whole}),
            Claim("Waiting can exceed computing", max(waits.values()) > 1, {f"no. {n}": w for n, w in waits.items()}),
        ]
    return claims


def _whole(run: Mapping[str, Any]) -> float:
    return _seconds(run, "compute", "encode", "communication", "waiting")
