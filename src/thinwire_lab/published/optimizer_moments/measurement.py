"""Errors, bytes and times of one method for averaging the moments of several hosts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thinwire.core import Program, TensorSpec, World, with_timing
from thinwire.drivers.lockstep import lockstep
from thinwire.drivers.meter import Meter
from thinwire.exchange import Exchanger
from thinwire.optimizer_state import apply_floor, build_pair_aggregator, max_update, parse_moments

from .capture import Pairs

BETAS, EPSILON = (0.9, 0.999), 1e-8
now = time.process_time  # CPU time of this process: other processes do not count


def average_moments(
    texts: Mapping[str, str], hosts: Sequence[Pairs], repeat: int = 1
) -> tuple[Pairs, dict[str, float]]:
    """Run one round in lockstep; return rank 0's average, the bytes it sent, and its seconds of work."""
    layers = [TensorSpec.of(name, pair) for name, pair in hosts[0].items()]
    settings = {name: parse_moments(text) for name, text in texts.items()}
    known = {text: build_pair_aggregator(settings[name]) for name, text in texts.items()}
    rules = {name: known[text] for name, text in texts.items()}
    size = len(hosts)
    best: dict[str, float] = {}
    for _ in range(repeat):
        exchangers = [Exchanger(layers, rules, seed=1) for _ in hosts]
        programs = [e.run_step(p, 0, World(r, size)) for r, (e, p) in enumerate(zip(exchangers, hosts, strict=True))]
        meters, spans = [Meter() for _ in hosts], [0.0]
        over: list[bool] = []
        views = lockstep(
            [time_program(programs[0], spans, over), *(run_until_over(program, over) for program in programs[1:])],
            meters,
        )
        value = views[0]
        assert value is not None
        began = now()
        most = max_update(*BETAS)
        for name, pair in value.items():
            if settings[name].floor:
                pair[1] = apply_floor(pair[1], pair[0], most)
        spans[-1] += now() - began
        total = meters[0].total()
        found = {
            "payload_bytes": total.payload_bytes,
            "wire_bytes": total.sent_bytes if size > 1 else total.payload_bytes,
            "encode_s": sum(spans[:-1]), "aggregate_s": spans[-1],
        }  # fmt: skip
        best = found if not best else {key: min(best[key], found[key]) for key in found}
    return value, best


def time_program(program: Program[Pairs], spans: list[float], over: list[bool]) -> Program[Pairs]:
    """Run a program and record the seconds between its requests; set `over` when it has ended."""
    spans.clear()
    result = yield from with_timing(program, lambda began, ended: spans.append(ended - began))
    over.append(True)
    return result


def run_until_over(program: Program[Pairs], over: list[bool]) -> Program[Any]:
    """Run another rank until rank 0 has its answers; its own result would be the same."""
    answer: Any = None
    while not over:
        answer = yield program.send(answer)
    return None


def compute_exact_mean(hosts: Sequence[Pairs]) -> Pairs:
    return {name: torch.stack([one[name] for one in hosts]).double().mean(0).float() for name in hosts[0]}


def compute_update(pairs: Pairs, steps: int) -> Tensor:
    """Return m / (√v + ε) with bias correction, of all layers."""
    first, second = (1 - beta**steps for beta in BETAS)
    return torch.cat(
        [(p[0] / first).div((p[1] / second).clamp(min=0).sqrt() + EPSILON).flatten() for p in pairs.values()]
    )


def compute_errors(found: Pairs, true: Pairs, steps: int) -> dict[str, float]:
    """Return relative L2 errors of m, v and the update, and the update's largest error and cosine."""
    result = {}
    for row, name in enumerate(("m", "v")):
        ours, theirs = (torch.cat([pair[row].flatten() for pair in one.values()]) for one in (found, true))
        result[f"{name}_error"] = relative_error(ours, theirs)
    ours, theirs = compute_update(found, steps), compute_update(true, steps)
    largest = float((ours - theirs).abs().amax() / theirs.abs().amax())
    cosine = float(torch.nn.functional.cosine_similarity(ours.double(), theirs.double(), dim=0))
    return result | {"update_error": relative_error(ours, theirs), "update_max": largest, "cosine": cosine}


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


def measure_case(texts: Mapping[str, str], hosts: Sequence[Pairs], true: Pairs, steps: int) -> dict[str, Any]:
    """Return all figures of one method for these hosts."""
    value, costs = average_moments(texts, hosts, repeat=2 if len(hosts) == 1 else 1)
    dense = sum(pair.nbytes for pair in hosts[0].values())
    size = len(hosts)
    ring = dense if size == 1 else dense * 2 * (size - 1) / size
    seconds = costs["encode_s"] + costs["aggregate_s"]
    saved_bytes = ring - costs["wire_bytes"]
    largest = max(hosts[0], key=lambda name: hosts[0][name].numel())
    return {
        "text": texts[largest], "hosts": size, "dense_bytes": dense, **costs,
        "saving": dense / costs["payload_bytes"], "wire_saving": ring / costs["wire_bytes"],
        "encode_gb_s": dense / costs["encode_s"] / 1e9, "aggregate_gb_s": dense / costs["aggregate_s"] / 1e9,
        "break_even_mbit": 8 * saved_bytes / seconds / 1e6 if saved_bytes > 0 else None,
        **compute_errors(value, true, steps),
    }  # fmt: skip
