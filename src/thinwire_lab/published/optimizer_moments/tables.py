"""Tables of optimizer-moments: figures of every method, rules, training, and the claims of Maslov & Polyakov (2026)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..claims import Claim, build_claims_table, final_value

Row = Mapping[str, Any]
NAMES = {"wikitext2": "WikiText-2", "shakespeare": "tiny-shakespeare"}


def summarize(measured: Sequence[Row], runs: Sequence[Row]) -> dict[str, Any]:
    """Return all tables and figures, and the rows that `thinwire.moments.advise` needs."""
    tables = [
        table for one in measured for table in (build_method_table(one), build_hosts_table(one), build_rules_table(one))
    ]
    return {
        "tables": [*tables, build_training_table(runs), build_claims(measured)],
        "figures": [figure for one in measured for figure in build_figures(one)],
        "measured": [compact_row(row, one["task"]) for one in measured for row in one["rows"]],
    }


def choose_hosts(one: Row) -> int:
    """Return the number of hosts that most tables show."""
    counts = sorted({row["hosts"] for row in one["rows"]})
    return 4 if 4 in counts else int(counts[-1])


def compact_row(row: Row, task: str) -> dict[str, Any]:
    """Return what `thinwire.moments.advise` needs: shares of the dense bytes, nanoseconds per dense byte."""
    dense = row["dense_bytes"]
    return {
        "task": task, "way": row["way"], "text": row["text"], "general": row["general"], "asked": row["asked"],
        "hosts": row["hosts"],
        "error": _digits(row["update_error"]), "payload": _digits(row["payload_bytes"] / dense),
        "wire": _digits(row["wire_bytes"] / dense), "encode_ns": _digits(1e9 * row["encode_s"] / dense),
        "aggregate_ns": _digits(1e9 * row["aggregate_s"] / dense),
    }  # fmt: skip


def _digits(value: float | None, digits: int = 4) -> float | None:
    """Round to significant digits; None stays None."""
    return None if value is None else float(f"{value:.{digits}g}")


def round_figure(value: float | None) -> float | None:
    return _digits(value, 3)


def build_method_table(one: Row) -> dict[str, Any]:
    hosts, moved = choose_hosts(one), {(row["way"], row["asked"]): row for row in one["rows"] if row["hosts"] == 1}
    rows = []
    for row in one["rows"]:
        if row["hosts"] != hosts:
            continue
        alone = moved.get((row["way"], row["asked"]), row)
        rows.append([
            row["way"], row["text"], round_figure(row["saving"]), *(round_figure(row[k]) for k in
            ("m_error", "v_error", "update_error", "update_max", "cosine")),
            *(round_figure(1e3 * row[k]) for k in ("encode_s", "aggregate_s")), round_figure(row["encode_gb_s"]),
            _mbit(alone["break_even_mbit"]), _mbit(row["break_even_mbit"]),
        ])  # fmt: skip
    outside = one.get("outside", {})
    told = (
        "" if "figures" not in outside else "; ".join(f"{k} {round_figure(v)}" for k, v in outside["figures"].items())
    )
    return {
        "title": f"{NAMES[one['task']]}: all methods, {hosts} hosts",
        "note": (
            "Relative L2 errors of m, v and the update m / (√v + ε), the update's largest error as a share of its "
            "largest value, its cosine; milliseconds of CPU time of one core; break-even in Mbit/s, for moving to one "
            f"host and for averaging over {hosts}, a dash where nothing is saved. Setting: of the largest layer. "
            f"{outside.get('note', '')} {told}"
        ).strip(),
        "columns": [
            "method", "setting", "saving", "m", "v", "update", "largest", "cosine", "encode (ms)", "aggregate (ms)",
            "encode (GB/s)", "break-even, moved", f"break-even, {hosts} hosts",
        ],
        "rows": rows,
    }  # fmt: skip


def _mbit(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def build_hosts_table(one: Row, asked: tuple[float, ...] = (0, 8)) -> dict[str, Any]:
    counts = sorted({row["hosts"] for row in one["rows"]})
    found = {(row["way"], row["hosts"]): row for row in one["rows"] if row["asked"] in asked}
    rows = []
    for way in dict.fromkeys(way for way, _ in found):
        cells = [found.get((way, count)) for count in counts]
        rows.append([way, *(_cell(c, "update_error") for c in cells), *(_cell(c, "wire_saving") for c in cells),
                     *(_cell(c, "aggregate_s", 1e3) for c in cells)])  # fmt: skip
    return {
        "title": f"{NAMES[one['task']]}: by hosts, at a saving of 8 or the fixed one",
        "note": "Error of the update; saving on the wire against a dense ring all-reduce (gathered payloads grow with "
        "the hosts, summed ones do not); milliseconds to decode and average.",
        "columns": ["method", *(f"{what}, {count}" for what in ("update", "saving", "ms") for count in counts)],
        "rows": rows,
    }


def _cell(row: Row | None, key: str, factor: float = 1.0) -> Any:
    return "" if row is None else None if row[key] is None else round_figure(factor * row[key])


def build_rules_table(one: Row) -> dict[str, Any]:
    rows = [
        [
            row["way"],
            row["rules"],
            *(round_figure(row[k]) for k in ("m_error", "v_error", "update_error", "update_max")),
        ]
        for row in one["rules"]
    ]
    return {
        "title": f"{NAMES[one['task']]}: effect of the rules",
        "note": "The same compressors with rules switched off. A diverging update has a largest error far above 1.",
        "columns": ["compressor", "rules", "m", "v", "update", "largest"],
        "rows": rows,
    }


def build_training_table(runs: Sequence[Row]) -> dict[str, Any]:
    groups = list(dict.fromkeys(run["group"] for run in runs))
    found = {(run["group"], run["label"]): run for run in runs}
    first = groups[0]
    own = found.get((first, "own moments"))
    rows = []
    for label in dict.fromkeys(run["label"] for run in runs):
        run = found[first, label]
        extra = None if own is None else run["final"]["wire_bytes"] - own["final"]["wire_bytes"]
        cells: list[Any] = [label, round(final_value(run, "loss"), 3), round(run["final"]["wire_bytes"] / 1e6, 2),
                            None if extra is None else round(extra / 1e6, 2)]  # fmt: skip
        rows.append([*cells, *(_round_ms(found.get((group, label))) for group in groups)])
    return {
        "title": "Local AdamW with averaged moments, on real processes",
        "note": "Final validation loss of the mean model; megabytes that rank 0 sent, all and for moments; ms "
        "per round for weights and moments: encoding, communication and decoding, by link.",
        "columns": ["moments", "loss", "sent (MB)", "for moments (MB)", *(f"{group} (ms)" for group in groups)],
        "rows": rows,
    }


def _round_ms(run: Row | None, every: int = 16) -> str:
    if run is None or not run["steps"]:
        return ""
    spent = sum(float(run["times"].get(name, 0.0)) for name in ("encode", "moments", "communication"))
    return f"{1e3 * spent / max(1, run['steps'] // every):.1f}"


def build_figures(one: Row) -> list[dict[str, Any]]:
    hosts, name = choose_hosts(one), NAMES[one["task"]]
    rows = [row for row in one["rows"] if row["hosts"] == hosts]
    ways = list(dict.fromkeys(row["way"] for row in rows))
    x = {"title": "saving (log scale)", "log": True, "unit": "number"}

    def curves(y: str, of: Sequence[Row], key: str = "saving") -> list[dict[str, Any]]:
        found = []
        for way in ways:
            points = sorted((r[key], r[y]) for r in of if r["way"] == way and r[y] is not None and r[y] > 0)
            if points:
                found.append({"label": way, "x": [p[0] for p in points], "y": [p[1] for p in points],
                              "points": len(points) == 1})  # fmt: skip
        return found

    moved = [row for row in one["rows"] if row["hosts"] == 1]
    at_eight = [row for row in one["rows"] if row["asked"] in (0, 8)]
    return [
        {"title": f"{name}: error of the update against saving, {hosts} hosts", "x": x,
         "y": {"title": "relative error of the update (log scale)", "log": True, "unit": "number"},
         "curves": curves("update_error", rows)},
        {"title": f"{name}: break-even against saving, moved to one host", "x": x,
         "y": {"title": "break-even, Mbit/s (log scale)", "log": True, "unit": "number"},
         "curves": curves("break_even_mbit", moved)},
        {"title": f"{name}: saving on the wire against hosts",
         "x": {"title": "hosts (log scale)", "log": True, "unit": "number"},
         "y": {"title": "saving against a dense all-reduce (log scale)", "log": True, "unit": "number"},
         "curves": curves("wire_saving", at_eight, "hosts")},
    ]  # fmt: skip


def build_claims(measured: Sequence[Row]) -> dict[str, Any]:
    """Return the paper's claims; a claim holds if it holds for all tasks."""
    found: list[Claim] = []
    for text, judge in CLAIMS:
        judged = [(one["task"], *judge(one)) for one in measured]
        figures = {f"{NAMES[task]}: {name}": value for task, _, values in judged for name, value in values.items()}
        found.append(Claim(text, all(holds for _, holds, _ in judged), figures))
    return build_claims_table("Claims of Maslov & Polyakov (2026), as measured", found, 3)


Verdict = tuple[bool, dict[str, float]]


def _best(one: Row, family: str, asked: float, hosts: int, key: str = "update_error") -> float:
    """Return the smallest figure of a family at this saving or a larger one."""
    return min(
        (row[key] for row in one["rows"] if row["family"] == family and row["hosts"] == hosts
         and row["saving"] >= 0.75 * asked),
        default=math.nan,
    )  # fmt: skip


def _at(one: Row, way: str, asked: float, hosts: int) -> Row | None:
    return next((r for r in one["rows"] if (r["way"], r["asked"], r["hosts"]) == (way, asked, hosts)), None)


def _seconds(row: Row) -> float:
    return float(row["encode_s"] + row["aggregate_s"])


def _high_saving(one: Row) -> Verdict:
    families = ("quantisation", "sparsification", "homomorphic", "factorisation")
    least = {family: _best(one, family, 16, choose_hosts(one)) for family in families}
    others = [value for family, value in least.items() if family != "factorisation" and not math.isnan(value)]
    return bool(others) and least["factorisation"] < min(others), {f"{k}, 16×": v for k, v in least.items()}


def _bottleneck(one: Row) -> Verdict:
    rates = [r["break_even_mbit"] for r in one["rows"] if r["family"] == "factorisation" and r["hosts"] == 1]
    known = [rate for rate in rates if rate is not None]
    return any(rate is None or rate < 1000 for rate in rates), {"least break-even (Mbit/s)": min(known, default=0.0),
                                                                "most": max(known, default=0.0)}  # fmt: skip


def _fastest(one: Row) -> Verdict:
    hosts = choose_hosts(one)
    times = {
        family: min((1e3 * _seconds(r) for r in one["rows"] if r["family"] == family and r["hosts"] == hosts
                     and r["saving"] >= 7), default=math.nan)
        for family in ("quantisation", "sparsification", "homomorphic", "factorisation")
    }  # fmt: skip
    others = [value for family, value in times.items() if family != "sparsification" and not math.isnan(value)]
    return bool(others) and times["sparsification"] <= min(others), {f"{k} (ms)": v for k, v in times.items()}


def _rises(one: Row) -> Verdict:
    rows = [r for r in one["rows"] if r["way"] == "Top-k" and r["hosts"] == choose_hosts(one)]
    figures = {f"Top-k, {r['asked']}×": r["update_error"] for r in rows}
    return bool(rows) and rows[-1]["update_error"] > 2 * rows[0]["update_error"], figures


def _mostly_lost(one: Row) -> Verdict:
    row = _at(one, "Top-k", 8, choose_hosts(one))
    return row is not None and row["update_error"] > 0.5, {} if row is None else {"Top-k, 8×": row["update_error"]}


def _middle(one: Row) -> Verdict:
    hosts = choose_hosts(one)
    ways = {way: _at(one, way, 8, hosts) for way in ("Top-k", "sketch of Top-k", "tensor train, 2 modes")}
    if any(row is None for row in ways.values()):
        return False, {}
    error = {way: row["update_error"] for way, row in ways.items() if row is not None}
    spent = {way: 1e3 * _seconds(row) for way, row in ways.items() if row is not None}
    middle = [sorted(v.values())[1] == v["sketch of Top-k"] for v in (error, spent)]
    told = {f"{k}: error": v for k, v in error.items()} | {f"{k} (ms)": v for k, v in spent.items()}
    return all(middle), told


def _few_hosts(one: Row) -> Verdict:
    counts = sorted({row["hosts"] for row in one["rows"]} - {1})
    pairs = {
        count: (added["wire_saving"], gathered["wire_saving"])
        for count in counts
        if (added := _at(one, "sketch of Top-k", 8, count)) and (gathered := _at(one, "Top-k", 8, count))
    }
    if not pairs:
        return False, {}
    first, last = pairs[min(pairs)], pairs[max(pairs)]
    figures = {f"{name}, {count} hosts": value for count, both in pairs.items()
               for name, value in zip(("sketch of Top-k", "Top-k"), both, strict=True)}  # fmt: skip
    return first[0] < first[1] and last[0] / last[1] > first[0] / first[1], figures


CLAIMS: tuple[tuple[str, Callable[[Row], Verdict]], ...] = (
    ("Factorisation has the smallest error at high saving (update, 16 times and more)", _high_saving),
    ("but may worsen the bottleneck: its break-even is below 1 Gbit/s", _bottleneck),
    ("Sparsification is the fastest family (8 times and more)", _fastest),
    ("and its error rises sharply: more than twofold from smallest to largest saving", _rises),
    ("(another reading: more than half of the update is lost at 8 times)", _mostly_lost),
    ("Homomorphic compression is in the middle, in error and in time (8 times)", _middle),
    ("and poor with few hosts: a sketch saves less than a gather there, and improves with hosts", _few_hosts),
)
