"""A made-up result file with everything a report can show: 3 seeds x 5 methods x 2 groups."""

from __future__ import annotations

import math
import random
from typing import Any

METHODS = {
    "dense": ("dense()", 1.0, 1.0),
    "Top-k 1 %": ("topk(density=0.01)", 0.016, 1.9),
    "EF(Top-k 1 %)": ("ef(topk(density=0.01))", 0.016, 1.1),
    "SCAM(ImpK 1 %), w by mirror descent": ('scam(impk(density=0.01, weights="mirror"))', 0.018, 1.05),
    "QSGD 4 bits <b>": ("qsgd(bits=4)", 0.13, 1.3),
}
GROUPS = {"4 workers, iid": ("processes", "100mbit"), "8 label-sorted workers, lockstep": ("lockstep", "none")}
LAYERS = {
    **{f"transformer.blocks.{at}.attention.project.weight": 147_456 for at in range(3)},
    **{f"transformer.blocks.{at}.feedforward.up.weight": 589_824 for at in range(3)},
    **{f"transformer.blocks.{at}.norm.bias": 384 for at in range(3)},
    **{f"transformer.blocks.{at}.norm.weight": 384 for at in range(3)},
    "embedding.weight": 12_700_000,
    "head.bias": 33_000,
}
STEPS = list(range(0, 401, 20))
DENSE_STEP_BYTES = 4.0 * sum(LAYERS.values())


def made_result(seeds: int = 3) -> dict[str, Any]:
    """The same result every time."""
    draw = random.Random(5)
    runs = [
        made_run(group, label, seed, draw) for group in GROUPS for label in METHODS for seed in range(seeds)
    ]  # fmt: skip
    return {
        "name": "made-up",
        "title": "A made-up experiment: five ways of sending a small GPT's gradients",
        "description": "Nothing here was measured; the page is to be looked at, not believed.",
        "command": "thinwire run made-up --seeds 0 1 2 --workers 4",
        "config": {"task": "wikitext2", "seeds": [0, 1, 2], "compositions": [text for text, _, _ in METHODS.values()]},
        "versions": {"thinwire": "0.1.0", "torch": "2.13.0"},
        "machine": {"cpu": "made-up CPU", "cores": 2, "memory_bytes": 8_000_000_000},
        "task": {"tokens": 1_000_000, "vocabulary": 33_278, "cut": "1,000,000 of 2,088,628 tokens"},
        "started": "2026-11-16 03:00 UTC",
        "target": {"metric": "accuracy", "value": 0.6},
        "runs": runs,
        "modelled": [made_model(group, label, link) for group in GROUPS for label in METHODS for link in LINKS],
        "tables": [{"title": "Claims", "columns": ["claim", "published", "here"], "rows": [["EF closes the gap", 0.9, 1], ["ImpK wins", None, 0.25]]}],
        "figures": [
            {
                "title": "Bytes by workers", "note": "Lines by formula, marks metered.",
                "x": {"title": "workers (log scale)", "log": True}, "y": {"title": "bytes (log scale)", "log": True, "unit": "bytes"},
                "curves": [
                    {"label": "by formula", "x": [2, 4, 8, 16], "y": [1e6, 1.5e6, 1.75e6, 1.9e6]},
                    {"label": "metered", "x": [2, 8], "y": [1.01e6, 1.76e6], "points": True, "style": 0},
                ],
            }
        ],
        "checks": [{"text": "EF reaches what Top-k misses", "holds": True, "detail": "by 3 points"}, {"text": "ImpK beats Top-k", "holds": False}],
    }  # fmt: skip


LINKS = {"10gbit": 1.25e9, "1gbit": 1.25e8, "100mbit": 1.25e7}


def made_run(group: str, label: str, seed: int, draw: random.Random) -> dict[str, Any]:
    composition, share, slow = METHODS[label]
    driver, link = GROUPS[group]
    noise = [1 + 0.05 * draw.gauss(0, 1) for _ in STEPS]
    loss = [(0.4 * slow + 6 * math.exp(-step / 120 / slow)) * n for step, n in zip(STEPS, noise, strict=True)]
    wire = DENSE_STEP_BYTES * share * 1.5 * (1 + 0.01 * draw.random())
    curve: dict[str, list[float | None]] = {
        "step": list(STEPS),
        "loss": list(loss),
        "train_loss": [0.9 * value for value in loss],
        "accuracy": [max(0.0, 0.85 - 0.13 * value) for value in loss],
        "perplexity": [math.exp(value) for value in loss],
        "grad_norm": [0.3 * value**1.5 for value in loss],
        "payload_bytes": [round(step * wire / 1.5) for step in STEPS],
        "wire_bytes": [round(step * wire) for step in STEPS],
        "seconds": [0.31 * step * (1 + share) for step in STEPS],
    }
    if label == "Top-k 1 %" and seed == 1:  # one seed that explodes
        for name in ("loss", "train_loss", "accuracy", "perplexity", "grad_norm"):
            curve[name][14:] = [None] * (len(STEPS) - 14)
    final = {name: column[-1] for name, column in curve.items()}
    run: dict[str, Any] = {
        "group": group, "label": label, "composition": composition, "workers": 4, "driver": driver, "link": link,
        "seed": seed, "curve": curve, "final": final, "best": {"accuracy": final["accuracy"]}, "dense_layers": [],
        "bytes_by_kind": {"values": 0.6 * wire, "indices": 0.35 * wire, "header": 0.05 * wire} if share < 0.1 else {"values": wire, "header": 0.001 * wire},
        "bytes_by_layer": {layer: 400 * size * share * 4 for layer, size in LAYERS.items()},
        "heatmap": made_heatmap(share, draw),
        "histograms": made_histograms("w" if "ImpK" in label else None, draw),
        "steps_to_target": next((s for s, a in zip(STEPS, curve["accuracy"], strict=True) if a is not None and a >= 0.6), None),
    }  # fmt: skip
    if driver == "processes":
        run["times"] = {
            "compute": 90.0,
            "encode": 400 * 0.02 * (share < 1),
            "communication": 300 * share + 4,
            "waiting": 5 * draw.random(),
            "solver": 30.0 * ("ImpK" in label),
            "measure": 12.0,
        }
    if "ImpK" in label:
        run["plan"] = {layer: "1 %" if size > 1000 else "dense" for layer, size in LAYERS.items()}
        run["trace"] = "jobs/3/trace.json"
    return run


def made_heatmap(share: float, draw: random.Random) -> dict[str, Any]:
    def error(size: int, step: int) -> float:
        return (
            0.0
            if share == 1
            else min(1.3, math.sqrt(1 - share) * (0.4 + step / 500 + 0.1 * draw.random()) * (size > 1000))
        )

    layers: dict[str, list[float | None]] = {
        layer: [error(size, step) for step in STEPS] for layer, size in LAYERS.items()
    }
    if share < 0.02:
        layers["head.bias"][-1] = None
    return {"steps": list(STEPS), "layers": layers, "sizes": dict(LAYERS)}


def made_histograms(quantity: str | None, draw: random.Random) -> dict[str, Any]:
    edges = [10 ** (at / 4) for at in range(-32, 1)]
    counts = [round(1e6 * math.exp(-((at - 18) ** 2) / 30) * (1 + 0.1 * draw.random())) for at in range(32)]
    held: dict[str, Any] = {"|g|": {"edges": edges, "counts": counts}}
    if quantity:
        even = [at / 20 for at in range(41)]
        held[quantity] = {"edges": even, "counts": [round(9000 * math.exp(-abs(at - 20) / 3)) for at in range(40)]}
    return held


def made_model(group: str, label: str, link: str) -> dict[str, Any]:
    transfer = DENSE_STEP_BYTES * METHODS[label][1] * 1.5 / LINKS[link]
    return {"group": group, "label": label, "seed": None, "link": link, "step_s": 0.22 + transfer, "transfer_s": transfer, "compute_s": 0.22}  # fmt: skip
