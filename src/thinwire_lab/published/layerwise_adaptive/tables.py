"""Tables of layerwise-adaptive: quality against bytes, and the claims of Alimohammadi et al. (2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from .. import sensitivity
from ..claims import Claim, build_claims_table, final_value
from .step_times import NO_EXCHANGE

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
TOLERANCE = 0.01  # relative to dense, as in the paper


def summarize(runs: Runs, more: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return all tables and figures; `more` are the results of the jobs that are not runs."""
    tasks = [group for group in dict.fromkeys(run["group"] for run in runs) if "defaults" not in group]
    steps = [result for result in more if "workers" in result]
    layers = [result for result in more if "layer" in result]
    shared = [result["rows"] for result in more if "workers" not in result and "layer" not in result]
    loss = sensitivity.summarize(layers) if layers else {"tables": [], "figures": []}
    tables = [build_quality_table(runs, task) for task in tasks] + [build_claims(runs, tasks)]
    tables += [build_bucket_table(runs, task) for task in tasks]
    tables += [
        build_step_time_table(steps),
        build_cost_table(steps),
        *map(build_overlap_table, shared),
        *loss["tables"],
    ]
    return {"tables": tables, "figures": [build_curve(runs), *loss["figures"]]}


def select_runs(runs: Runs, group: str, label: str) -> list[Mapping[str, Any]]:
    return [run for run in runs if run["group"] == group and run["label"] == label]


def choose_metric(runs: Runs) -> str:
    """Return the metric of "within 1 %"; 1 % of accuracy would be less than the noise of 2,000 images."""
    return "perplexity" if "perplexity" in runs[0]["final"] else "loss"


def mean_final(some: Runs, measure: str) -> float:
    values = [final_value(run, measure) for run in some]
    return mean(values) if values else math.nan


def mean_sent_bytes(some: Runs) -> float:
    return mean(run["final"]["wire_bytes"] for run in some) if some else math.nan


def relative_increase(runs: Runs, group: str, label: str) -> float:
    """Return how much worse than dense a method is, as a share of dense; below 0 if better."""
    dense, these = select_runs(runs, group, "dense"), select_runs(runs, group, label)
    measure = choose_metric(dense)
    return mean_final(these, measure) / mean_final(dense, measure) - 1


def build_quality_table(runs: Runs, group: str) -> dict[str, Any]:
    here = [run for run in runs if run["group"] == group]
    measure = choose_metric(here)
    dense, rows = mean_sent_bytes(select_runs(here, group, "dense")), []
    for label in dict.fromkeys(run["label"] for run in here):
        some = select_runs(here, group, label)
        values = [final_value(run, measure) for run in some]
        worse = relative_increase(here, group, label)
        coding = mean(run["times"].get("encode", 0.0) for run in some)
        everything = coding + mean(run["times"].get("compute", 0.0) for run in some)
        rows.append([
            label, 100 * mean_final(some, "accuracy"), mean(values), stdev(values) if len(values) > 1 else None,
            100 * worse, mean_sent_bytes(some) / 1e6, dense / mean_sent_bytes(some),
            "yes" if worse <= TOLERANCE else "no",
            coding / everything,
        ])  # fmt: skip
    return {
        "title": f"{group}: quality against bytes",
        "note": f"On held-out data, means over {len(select_runs(here, group, 'dense'))} seeds; MB sent by one worker, "
        "plans included. The share of encoding is of computing and encoding, in lockstep runs that shared the machine.",
        "columns": ["method", "accuracy (%)", measure, "± over seeds", "worse than dense by (%)", "MB sent", "saving",
                    "within 1 % of dense", "share of encoding"],
        "rows": rows,
    }  # fmt: skip


def build_claims(runs: Runs, tasks: Sequence[str]) -> dict[str, Any]:
    claims = []
    for group in tasks:
        for family in FAMILIES:
            ratio = mean_sent_bytes(select_runs(runs, group, family)) / mean_sent_bytes(
                select_runs(runs, group, f"L-GreCo {family}")
            )
            figures = {
                "fewer bytes (times)": ratio,
                "worse than dense, one setting (%)": 100 * relative_increase(runs, group, family),
                "L-GreCo (%)": 100 * relative_increase(runs, group, f"L-GreCo {family}"),
            }
            as_good = relative_increase(runs, group, f"L-GreCo {family}") <= max(
                TOLERANCE, relative_increase(runs, group, family)
            )
            claims.append(
                Claim(
                    f"{group}: L-GreCo {family} sends less than {family} at the same quality",
                    ratio > 1 and as_good,
                    figures,
                )
            )
        claims.append(_mixture_claim(runs, group))
    claims += [_controller_claim(runs, group) for group in tasks]
    return build_claims_table("Claims, as measured", claims)


def _mixture_claim(runs: Runs, group: str) -> Claim:
    """Compare mixtures with single families, among methods within 1 % of dense if there are any."""
    single = {
        label: mean_sent_bytes(select_runs(runs, group, label))
        for family in FAMILIES
        for label in (family, f"L-GreCo {family}")
    }
    mixed = {label: mean_sent_bytes(select_runs(runs, group, label)) for label in MIXTURES}
    good = {label for label in (*single, *mixed) if relative_increase(runs, group, label) <= TOLERANCE}
    best = min((label for label in single if not good or label in good), key=lambda label: single[label], default="")
    mixture = min((label for label in mixed if not good or label in good), key=lambda label: mixed[label], default="")
    holds = bool(best and mixture) and mixed[mixture] < single[best]
    figures = {
        f"MB, {label}": mean_sent_bytes(select_runs(runs, group, label)) / 1e6 for label in (best, mixture) if label
    }
    return Claim(f"{group}: a mixture sends less than the best single family, within 1 % of dense", holds, figures)


def _controller_claim(runs: Runs, group: str) -> Claim:
    labels = ("L-GreCo TopK", "Accordion", "L-GreCo + Accordion", "k-means", "global TopK", "hard threshold", "by size")
    known = [label for label in labels if select_runs(runs, group, label)]
    savings = {
        label: mean_sent_bytes(select_runs(runs, group, "dense")) / mean_sent_bytes(select_runs(runs, group, label))
        for label in known
    }
    good = [label for label in known if relative_increase(runs, group, label) <= TOLERANCE] or known
    best = max(good, key=lambda label: savings[label])
    which = "of the controllers on Top-k (published: on PowerSGD)"
    text = f"{group}: {which}, L-GreCo saves most within 1 % of dense (alone or with Accordion)"
    return Claim(text, best.startswith("L-GreCo"), savings)


def build_curve(runs: Runs) -> dict[str, Any]:
    """Return quality against bytes over default densities: one setting for all layers, and L-GreCo's plan."""
    here = [run for run in runs if run["group"].startswith("CIFAR-100")]
    lines: dict[str, list[tuple[float, float]]] = {"one setting for all layers": [], "L-GreCo": []}
    for label in dict.fromkeys(run["label"] for run in here):
        name = label.removeprefix("L-GreCo ")
        if name.partition(" ")[0] == "TopK":
            some = [run for run in here if run["label"] == label]
            line = "L-GreCo" if label.startswith("L-GreCo") else "one setting for all layers"
            lines[line].append((mean_sent_bytes(some), mean_final(some, "loss")))
    curves = [{"label": k, "x": [x for x, _ in sorted(v)], "y": [y for _, y in sorted(v)]} for k, v in lines.items()]
    return {
        "title": "CIFAR-100, Top-k of 1, 2, 5 and 10 %: loss against bytes",
        "note": "Each point is a default density; means over seeds.",
        "x": {"title": "bytes sent by one worker", "log": True, "unit": "bytes"},
        "y": {"title": "final held-out loss", "log": False, "unit": "number"},
        "curves": curves,
    }


def build_step_time_table(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return milliseconds of a step by workers; the ideal is a step without exchange on as many processes."""
    rows = []
    for label in results[0]["rows"] if results else ():
        row: list[Any] = [label]
        for result in results:
            mine, alone = result["rows"][label], result["rows"][NO_EXCHANGE]["seconds"]
            row += [1e3 * mine["seconds"], alone / mine["seconds"]]
        last = results[-1]["rows"][label]
        share = last["coding"] / last["seconds"] if "coding" in last else None
        rows.append([*row, last.get("bytes", 0.0) / 1e3 if "bytes" in last else None, share])
    columns = ["method"]
    for result in results:
        columns += [f"{result['workers']} workers (ms)", "of ideal"]
    return {
        "title": "Step times of DDP, each worker with its own batch",
        "note": "Medians on the slowest rank; links of 100 Mbit/s where the testbed runs. Of ideal: time of a step "
        "without exchange on as many processes / time of the step. kB and coding with the most workers.",
        "columns": [*columns, "kB per step", "share of coding"],
        "rows": rows,
    }


def build_bucket_table(runs: Runs, group: str) -> dict[str, Any]:
    """Return kB per step of each bucket, in the order in which they are sent (last layers first)."""
    labels = ["dense", *(label for family in FAMILIES for label in (family, f"L-GreCo {family}")), *MIXTURES]
    known = [
        (label, some[0])
        for label in labels
        if (some := select_runs(runs, group, label)) and "bytes_by_bucket" in some[0]
    ]
    rows = [[label, *(b / 1e3 / run["steps"] for b in run["bytes_by_bucket"])] for label, run in known]
    width = max((len(row) for row in rows), default=1)
    return {
        "title": f"{group}: kB per step by bucket",
        "note": "First seed. Bucket 1 holds the last layers and is sent first; a step waits for the last bucket.",
        "columns": ["method", *(f"bucket {at}" for at in range(1, width))],
        "rows": rows,
    }


def build_cost_table(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the cost of a megabyte in each bucket, as fitted by objective="time"."""
    found = [(r["workers"], row["controller"]) for r in results for row in r["rows"].values() if "controller" in row]
    fits = [(workers, fit) for workers, fit in found if "seconds_per_mb" in fit]
    width = max((len(fit["seconds_per_mb"]) for _, fit in fits), default=0)
    rows = []
    for workers, fit in fits:
        costs = [1e3 * float(cost) for cost in fit["seconds_per_mb"].values()]
        rows.append([f"{workers} workers", *costs, *[None] * (width - len(costs)), fit["r2"], fit["objective"]])
    return {
        "title": "Cost of a byte in each bucket",
        "note": "Milliseconds per megabyte, fitted to step times under random plans; where the fit explains less than "
        "half of their variance, plans are chosen by bytes.",
        "columns": ["", *(f"bucket {at}" for at in range(1, width + 1)), "R²", "plans chosen by"],
        "rows": rows,
    }


def build_overlap_table(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {
        "title": "Global and layerwise Top-k",
        "note": "Shares: coordinates that both select, energy of the gradient each keeps, layers without any.",
        "columns": ["density", "coordinates in both", "energy, global", "energy, layerwise", "layers without any"],
        "rows": [[r["density"], r["both"], r["energy_global"], r["energy_layers"], r["starved"]] for r in rows],
    }
