"""How much the loss changes when one layer alone is compressed, and whether the L2 error predicts it.

A short run for each layer and compressor, from the same weights and on the same data: too slow for choosing options
during training, but a test of the fast estimate, the L2 error. Alimohammadi et al. (2024) make the same comparison.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from thinwire import checkpoint
from thinwire.catalog import parse
from thinwire.controllers.estimates import compute_errors
from thinwire.core import Aggregator, Key, TensorSpec, World, loopback
from thinwire.exchange import Exchanger

from ..configuration.config import OptimizerConfig
from ..configuration.learning_rates import resolve_learning_rate
from ..configuration.run_plan import Job
from ..running.optimizers import make_optimizer
from ..tasks import make_task
from ..tasks.base import Learner
from ..tasks.splits import Split

MAX_STEPS = 50
WINDOW = 10  # gradients in the mean that is compressed for the error, as in L-GreCo; last steps for comparing losses


def build_sensitivity_jobs(
    task: Mapping[str, Any],
    candidates: Sequence[str],
    layers: Sequence[str],
    optimizer: OptimizerConfig,
    *,
    steps: int = MAX_STEPS,
    before: int = 100,
    stored: str | None = None,
    seed: int = 0,
    data: str | None = None,
) -> list[Job]:
    """Build a job for each layer.

    Args:
        task: {"name", "settings"}.
        candidates: compositions such as "topk(density=0.01)", used without memory.
        layers: names of parameters.
        optimizer: of the short runs.
        steps: length of a run.
        before: dense steps before the comparison, unless `stored` is given.
        stored: a folder of `checkpoint.save` to start from.
        seed: of the batches.
        data: folder of the data sets.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"sensitivity: steps must be 1 to {MAX_STEPS}, got {steps}; longer runs compare noise")
    for text in candidates:
        parse(text)
    common = {
        "task": dict(task), "candidates": list(candidates), "optimizer": asdict(optimizer), "steps": steps,
        "before": before, "stored": stored, "seed": seed, "data": data,
    }  # fmt: skip
    return [
        Job(f"sensitivity-{at}", f"{__name__}:measure_layer", {**common, "layer": layer}, f"sensitivity of {layer}")
        for at, layer in enumerate(layers)
    ]


def measure_layer(driver: Any, argument: Mapping[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """Return {"layer", "numel", "dense_loss", "rows": [{"candidate", "error", "loss", "loss_difference"}]}."""
    del driver  # one worker
    task = make_task(argument["task"]["name"], argument["task"]["settings"], argument["data"])
    split = Split.parse("iid")
    task.prepare(1, split)
    learner, name = task.learner(0, 1, split, argument["seed"]), argument["layer"]
    if name not in learner.parameters:
        raise KeyError(f"sensitivity: no layer is called {name!r}; there are {list(learner.parameters)}")
    settings = OptimizerConfig(**{**argument["optimizer"], "betas": tuple(argument["optimizer"]["betas"])})
    lr = resolve_learning_rate(settings.lr, task.smoothness)
    first = 0
    if argument["stored"] is not None:
        first = _load_weights(learner, Path(argument["stored"]))
    else:
        first = int(argument["before"])
        _train_losses(learner, settings, lr, range(first), {})
    start = _copy_state(learner)
    span = range(first, first + int(argument["steps"]))
    spec = TensorSpec.of(name, learner.parameters[name].detach())
    target = _mean_gradient(learner, name, span[:WINDOW])
    tell({"step": 0, "steps": len(argument["candidates"])})
    losses: dict[str, float] = {}
    for at, text in enumerate(["dense()", *argument["candidates"]]):
        _restore_state(learner, start)
        losses[text] = mean(_train_losses(learner, settings, lr, span, {name: parse(text)})[-WINDOW:])
        tell({"step": at, "steps": len(argument["candidates"])})
    size = float(target.double().norm())
    rows = []
    for text in argument["candidates"]:
        error = float(compute_errors([parse(text)], target, spec, Key(0), exact=True)[0])
        rows.append({
            "candidate": text, "error": error, "relative_error": error / size if size else 0.0,
            "loss": losses[text], "loss_difference": losses[text] - losses["dense()"],
        })  # fmt: skip
    return {"layer": name, "numel": spec.numel, "dense_loss": losses["dense()"], "rows": rows}


def _train_losses(
    learner: Learner, settings: OptimizerConfig, lr: float, steps: range, rules: Mapping[str, Aggregator[Any]]
) -> list[float]:
    """Return the loss of each step; layers in `rules` are compressed by their aggregator."""
    optimizer = make_optimizer(settings, list(learner.parameters.values()), lr)
    specs = [TensorSpec.of(name, learner.parameters[name].detach()) for name in rules]
    exchanger = Exchanger(specs, rules)
    losses = []
    for step in steps:
        loss, gradients = learner.gradients(step)
        sent = loopback(exchanger.run_step({name: gradients[name] for name in rules}, step, World(0, 1)))
        for name, parameter in learner.parameters.items():
            parameter.grad = sent.get(name, gradients[name]).to(parameter.dtype).view(parameter.shape)
        optimizer.step()
        losses.append(loss)
    return losses


def _mean_gradient(learner: Learner, name: str, steps: range) -> Tensor:
    """Return the mean gradient of some batches at the present weights."""
    return torch.stack([learner.gradients(step)[1][name].detach() for step in steps]).mean(0)


def _copy_state(learner: Learner) -> tuple[dict[str, Tensor], dict[str, Any]]:
    weights = {name: p.detach().clone() for name, p in learner.parameters.items()}
    return weights, copy.deepcopy(learner.state_dict())


def _restore_state(learner: Learner, kept: tuple[dict[str, Tensor], dict[str, Any]]) -> None:
    with torch.no_grad():
        for name, parameter in learner.parameters.items():
            parameter.copy_(kept[0][name])
    learner.load_state_dict(copy.deepcopy(kept[1]))


def _load_weights(learner: Learner, folder: Path) -> int:
    """Load the weights of rank 0 of a lockstep run; return the number of its steps."""
    state = checkpoint.load(folder, rank=0, world_size=1)
    _restore_state(learner, (state["0"]["weights"], state["0"]["learner"]))
    return int(state["done"])


def correlate(results: Sequence[Mapping[str, Any]], error: str = "error") -> dict[str, float]:
    """Return correlations of errors and loss differences over all layers and candidates with finite figures."""
    pairs = [(row[error], row["loss_difference"]) for one in results for row in one["rows"]]
    pairs = [(a, b) for a, b in pairs if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)]
    xs, ys = [a for a, _ in pairs], [b for _, b in pairs]
    return {"pearson": pearson(xs, ys), "spearman": spearman(xs, ys), "points": len(pairs)}


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 where one of them is constant."""
    x, y = (torch.tensor(values, dtype=torch.float64) for values in (xs, ys))
    x, y = x - x.mean(), y - y.mean()
    scale = float(x.norm() * y.norm())
    return float(x @ y) / scale if scale > 0 else 0.0


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    return pearson(rank_values(xs), rank_values(ys))


def rank_values(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values have the mean of their ranks."""
    order = sorted(values)
    first = {value: at for at, value in reversed(list(enumerate(order)))}
    count = {value: order.count(value) for value in first}
    return [first[value] + (count[value] - 1) / 2 for value in values]


def summarize(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a table of correlations and a figure, as `finish` of a plan returns them."""
    found = {error: correlate(results, error) for error in ("error", "relative_error")}
    words = {"error": "L2 error", "relative_error": "L2 error / L2 norm"}
    table = {
        "title": "Does the error predict the loss?",
        "note": "One layer compressed at a time, the others sent dense; loss differences from a dense run on the same "
        f"batches, over the last {WINDOW} steps.",
        "columns": ["metric", "Pearson", "Spearman", "runs"],
        "rows": [[words[e], one["pearson"], one["spearman"], one["points"]] for e, one in found.items()],
    }
    figure = {
        "title": "Loss difference by error", "x": {"title": "L2 error of the layer's mean gradient", "log": True},
        "y": {"title": "loss difference", "log": False},
        "curves": [
            {
                "label": one["layer"], "points": True, "x": [row["error"] for row in one["rows"]],
                "y": [row["loss_difference"] for row in one["rows"]],
            }
            for one in results
        ],
    }  # fmt: skip
    return {"tables": [table], "figures": [figure], "correlations": found}
