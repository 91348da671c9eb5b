"""What E8's runs show: quality against bytes for every way to choose, and what S4 says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from .. import sensitivity
from ..claims import Claim, build_claims_table, final_value
from .step_times import ALONE

Runs = Sequence[Mapping[str, Any]]
FAMILIES = {
    "TopK": "topk(density=0.05)",
    "QSGD": "qsgd(bits=4)",
    "PowerSGD": "powersgd(rank=4)",
    "sketch": "sketch(topk(density=0.05))",
}
WITHOUT_MEMORY = ("QSGD",)  # unbiased, as published; the others have error feedback
MIXTURES = {
    "mixture, from TopK": (FAMILIES["TopK"], FAMILIES["QSGD"], FAMILIES["PowerSGD"]),
    "mixture, from PowerSGD": (FAMILIES["PowerSGD"], FAMILIES["TopK"], FAMILIES["QSGD"]),
}
TOLERANCE = 0.01  # relative to dense, as S4 has it


def summarize(runs: Runs, more: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    tasks = [group for group in dict.fromkeys(run["group"] for run in runs) if "references" not in group]
    steps = [result for result in more if "workers" in result]
    layers = [result for result in more if "layer" in result]
    shared = [result["rows"] for result in more if "workers" not in result and "layer" not in result]
    loss = sensitivity.summarize(layers) if layers else {"tables": [], "figures": []}
    tables = [quality(runs, task) for task in tasks] + [verdicts(runs, tasks)]
    tables += [buckets(runs, task) for task in tasks]
    tables += [step_times(steps), coefficients(steps), *map(overlaps, shared), *loss["tables"]]
    return {"tables": tables, "figures": [curve(runs), *loss["figures"]]}


def of(runs: Runs, group: str, label: str) -> list[Mapping[str, Any]]:
    return [run for run in runs if run["group"] == group and run["label"] == label]


def measure_of(runs: Runs) -> str:
    """What "within a percent" is about; of accuracy, a percent would be less than what chance does to 2,000 images."""
    return "perplexity" if "perplexity" in runs[0]["final"] else "loss"


def average(some: Runs, measure: str) -> float:
    values = [final_value(run, measure) for run in some]
    return mean(values) if values else math.nan


def sent(some: Runs) -> float:
    return mean(run["final"]["wire_bytes"] for run in some) if some else math.nan


def worse_by(runs: Runs, group: str, label: str) -> float:
    """How much worse than dense, as a share of dense; below 0 if better."""
    dense, these = of(runs, group, "dense"), of(runs, group, label)
    measure = measure_of(dense)
    return average(these, measure) / average(dense, measure) - 1


def quality(runs: Runs, group: str) -> dict[str, Any]:
    here = [run for run in runs if run["group"] == group]
    measure = measure_of(here)
    dense, rows = sent(of(here, group, "dense")), []
    for label in dict.fromkeys(run["label"] for run in here):
        some = of(here, group, label)
        values = [final_value(run, measure) for run in some]
        worse = worse_by(here, group, label)
        coding = mean(run["times"].get("encode", 0.0) for run in some)
        everything = coding + mean(run["times"].get("compute", 0.0) for run in some)
        rows.append([
            label, 100 * average(some, "accuracy"), mean(values), stdev(values) if len(values) > 1 else None,
            100 * worse, sent(some) / 1e6, dense / sent(some), "yes" if worse <= TOLERANCE else "no",
            coding / everything,
        ])  # fmt: skip
    return {
        "title": f"{group}: quality against bytes",
        "note": f"Held out, means over seeds ({len(of(here, group, 'dense'))}); MB that one worker sent, plans "
        "included. Shares of the time of computing and encoding are of lockstep runs that shared the machine.",
        "columns": ["method", "accuracy (%)", measure, "± over seeds", "worse than dense by (%)", "MB sent", "saving",
                    "within 1 % of dense", "share of encoding"],
        "rows": rows,
    }  # fmt: skip


def verdicts(runs: Runs, tasks: Sequence[str]) -> dict[str, Any]:
    claims = []
    for group in tasks:
        for family in FAMILIES:
            ratio = sent(of(runs, group, family)) / sent(of(runs, group, f"L-GreCo {family}"))
            figures = {
                "fewer bytes (times)": ratio,
                "worse than dense, same for all (%)": 100 * worse_by(runs, group, family),
                "L-GreCo (%)": 100 * worse_by(runs, group, f"L-GreCo {family}"),
            }
            as_good = worse_by(runs, group, f"L-GreCo {family}") <= max(TOLERANCE, worse_by(runs, group, family))
            claims.append(
                Claim(
                    f"{group}: L-GreCo {family} sends less than {family}, and is as good",
                    ratio > 1 and as_good,
                    figures,
                )
            )
        claims.append(_best(runs, group))
    claims += [_against(runs, group) for group in tasks]
    return build_claims_table("Expected, and as measured", claims)


def _best(runs: Runs, group: str) -> Claim:
    """Among those within a percent of dense, if there are any; else among all."""
    single = {label: sent(of(runs, group, label)) for family in FAMILIES for label in (family, f"L-GreCo {family}")}
    mixed = {label: sent(of(runs, group, label)) for label in MIXTURES}
    good = {label for label in (*single, *mixed) if worse_by(runs, group, label) <= TOLERANCE}
    best = min((label for label in single if not good or label in good), key=lambda label: single[label], default="")
    mixture = min((label for label in mixed if not good or label in good), key=lambda label: mixed[label], default="")
    holds = bool(best and mixture) and mixed[mixture] < single[best]
    figures = {f"MB, {label}": sent(of(runs, group, label)) / 1e6 for label in (best, mixture) if label}
    return Claim(f"{group}: a mixture sends less than the best family, within 1 % of dense", holds, figures)


def _against(runs: Runs, group: str) -> Claim:
    labels = ("L-GreCo TopK", "Accordion", "L-GreCo + Accordion", "k-means", "global TopK", "hard threshold", "by size")
    known = [label for label in labels if of(runs, group, label)]
    savings = {label: sent(of(runs, group, "dense")) / sent(of(runs, group, label)) for label in known}
    good = [label for label in known if worse_by(runs, group, label) <= TOLERANCE] or known
    best = max(good, key=lambda label: savings[label])
    ways = "of the ways to choose on Top-k (published: on PowerSGD)"
    text = f"{group}: {ways}, L-GreCo saves most within 1 % of dense (alone or with Accordion)"
    return Claim(text, best.startswith("L-GreCo"), savings)


def curve(runs: Runs) -> dict[str, Any]:
    """Quality against bytes over references: the same for all layers, and L-GreCo's plan."""
    here = [run for run in runs if run["group"].startswith("CIFAR-100")]
    lines: dict[str, list[tuple[float, float]]] = {"the same for all layers": [], "L-GreCo": []}
    for label in dict.fromkeys(run["label"] for run in here):
        name = label.removeprefix("L-GreCo ")
        if name.partition(" ")[0] == "TopK":
            some = [run for run in here if run["label"] == label]
            line = "L-GreCo" if label.startswith("L-GreCo") else "the same for all layers"
            lines[line].append((sent(some), average(some, "loss")))
    curves = [{"label": k, "x": [x for x, _ in sorted(v)], "y": [y for _, y in sorted(v)]} for k, v in lines.items()]
    return {
        "title": "CIFAR-100, Top-k of 1, 2, 5 and 10 %: loss against bytes",
        "note": "Each mark is a reference; means over seeds.",
        "x": {"title": "bytes sent by one worker", "log": True, "unit": "bytes"},
        "y": {"title": "held-out loss at the end", "log": False, "unit": "number"},
        "curves": curves,
    }


def step_times(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Milliseconds of a step by workers; the ideal is a step that exchanges nothing on as many processes."""
    rows = []
    for label in results[0]["rows"] if results else ():
        row: list[Any] = [label]
        for result in results:
            mine, alone = result["rows"][label], result["rows"][ALONE]["seconds"]
            row += [1e3 * mine["seconds"], alone / mine["seconds"]]
        last = results[-1]["rows"][label]
        share = last["coding"] / last["seconds"] if "coding" in last else None
        rows.append([*row, last.get("bytes", 0.0) / 1e3 if "bytes" in last else None, share])
    columns = ["way"]
    for result in results:
        columns += [f"{result['workers']} workers (ms)", "of ideal"]
    return {
        "title": "Step times of DDP, each worker with a batch of its own",
        "note": "Medians on the slowest rank; links of 100 Mbit/s where the testbed may be built. Of ideal: the time "
        "of a step without exchange on as many processes, over that of the step. kB and coding at the most workers.",
        "columns": [*columns, "kB a step", "share of coding"],
        "rows": rows,
    }


def buckets(runs: Runs, group: str) -> dict[str, Any]:
    """Where the bytes go: kB a step of each bucket, the last layers first, as they are sent."""
    labels = ["dense", *(label for family in FAMILIES for label in (family, f"L-GreCo {family}")), *MIXTURES]
    known = [(label, some[0]) for label in labels if (some := of(runs, group, label)) and "bytes_by_bucket" in some[0]]
    rows = [[label, *(b / 1e3 / run["steps"] for b in run["bytes_by_bucket"])] for label, run in known]
    width = max((len(row) for row in rows), default=1)
    return {
        "title": f"{group}: kB a step by bucket",
        "note": "Of the first seed. Bucket 1 holds the last layers and is sent first; a step waits for the last one.",
        "columns": ["method", *(f"bucket {at}" for at in range(1, width))],
        "rows": rows,
    }


def coefficients(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a megabyte costs in each bucket, as the objective "time" fitted it."""
    found = [(r["workers"], row["choosing"]) for r in results for row in r["rows"].values() if "choosing" in row]
    fits = [(workers, fit) for workers, fit in found if "seconds_per_mb" in fit]
    width = max((len(fit["seconds_per_mb"]) for _, fit in fits), default=0)
    rows = []
    for workers, fit in fits:
        costs = [1e3 * float(cost) for cost in fit["seconds_per_mb"].values()]
        rows.append([f"{workers} workers", *costs, *[None] * (width - len(costs)), fit["r2"], fit["objective"]])
    return {
        "title": "What a byte costs in each bucket",
        "note": "Milliseconds a megabyte, fitted to the times of steps under random plans; where the fit explains less "
        "than half of them, plans go by bytes.",
        "columns": ["", *(f"bucket {at}" for at in range(1, width + 1)), "R²", "plans go by"],
        "rows": rows,
    }


def overlaps(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {
        "title": "Top-k over the whole model and layer by layer",
        "note": "Shares: coordinates that both take, energy of the gradient each keeps, layers that get none.",
        "columns": ["density", "coordinates in both", "energy, whole model", "energy, by layer", "layers without any"],
        "rows": [[r["density"], r["both"], r["energy_global"], r["energy_layers"], r["starved"]] for r in rows],
    }
