"""What E8's runs show: quality against bytes for every way to choose, and what S4 says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from .claims import Claim, claims_table, final_of
from .e8_steps import ALONE

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


def exhibits(runs: Runs, more: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    tasks = [group for group in dict.fromkeys(run["group"] for run in runs) if "references" not in group]
    tables = [quality(runs, task) for task in tasks] + [verdicts(runs, tasks)]
    steps = [result for result in more if "workers" in result]
    tables += [step_times(steps), *([overlaps(r["rows"]) for r in more if "workers" not in r and "rows" in r])]
    return {"tables": tables, "figures": [curve(runs)]}


def of(runs: Runs, group: str, label: str) -> list[Mapping[str, Any]]:
    return [run for run in runs if run["group"] == group and run["label"] == label]


def measure_of(runs: Runs) -> str:
    return "perplexity" if "perplexity" in runs[0]["final"] else "accuracy"


def average(some: Runs, measure: str) -> float:
    values = [final_of(run, measure) for run in some]
    return mean(values) if values else math.nan


def sent(some: Runs) -> float:
    return mean(run["final"]["wire_bytes"] for run in some) if some else math.nan


def worse_by(runs: Runs, group: str, label: str) -> float:
    """How much worse than dense, as a share of dense; below 0 if better."""
    dense, these = of(runs, group, "dense"), of(runs, group, label)
    measure = measure_of(dense)
    change = average(these, measure) / average(dense, measure) - 1
    return change if measure == "perplexity" else -change


def quality(runs: Runs, group: str) -> dict[str, Any]:
    here = [run for run in runs if run["group"] == group]
    measure = measure_of(here)
    dense, rows = sent(of(here, group, "dense")), []
    for label in dict.fromkeys(run["label"] for run in here):
        some = of(here, group, label)
        values = [final_of(run, measure) for run in some]
        scale, digits = (100, 2) if measure == "accuracy" else (1, 1)
        worse = worse_by(here, group, label)
        coding = mean(run["times"].get("encode", 0.0) / run["steps"] for run in some)
        computing = mean(run["times"].get("compute", 0.0) / run["steps"] for run in some)
        spread = round(scale * stdev(values), digits) if len(values) > 1 else None
        rows.append([
            label, round(scale * mean(values), digits), spread,
            100 * worse, sent(some) / 1e6, dense / sent(some), "yes" if worse <= TOLERANCE else "no",
            coding / (coding + computing),
        ])  # fmt: skip
    return {
        "title": f"{group}: quality against bytes",
        "note": f"Means over seeds ({len(of(here, group, 'dense'))}); MB that one worker sent, plans included. Shares "
        "of encoding are of lockstep runs that shared the machine.",
        "columns": ["method", f"{measure}{' (%)' if measure == 'accuracy' else ''}", "± over seeds",
                    "worse than dense by (%)", "MB sent", "saving", "within 1 % of dense", "share of encoding"],
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
    return claims_table("Expected, and as measured", claims)


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
    text = f"{group}: of the ways to choose, L-GreCo saves most within 1 % of dense (alone or with Accordion)"
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
            lines[line].append((sent(some), average(some, "accuracy")))
    curves = [{"label": k, "x": [x for x, _ in sorted(v)], "y": [y for _, y in sorted(v)]} for k, v in lines.items()]
    return {
        "title": "CIFAR-100, Top-k of 1, 2, 5 and 10 %: accuracy against bytes",
        "note": "Each mark is a reference; means over seeds.",
        "x": {"title": "bytes sent by one worker", "log": True, "unit": "bytes"},
        "y": {"title": "accuracy at the end", "log": False, "unit": "percent"},
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


def overlaps(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {
        "title": "Top-k over the whole model and layer by layer",
        "note": "Shares: coordinates that both take, energy of the gradient each keeps, layers that get none.",
        "columns": ["density", "coordinates in both", "energy, whole model", "energy, by layer", "layers without any"],
        "rows": [[r["density"], r["both"], r["energy_global"], r["energy_layers"], r["starved"]] for r in rows],
    }
