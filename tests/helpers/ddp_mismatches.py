"""What worker processes do in the tests of agreement: rank 1 wants something else, and all find out."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 (its usual name)

import thinwire
from helpers.ddp_training import EF_TOPK, Composition, Net, train
from thinwire import TorchDist
from thinwire.integrations import ddp_handle

COMPOSITIONS: dict[
    str, tuple[Composition, Composition, str]
] = {  # what all ranks have, what rank 1 has, and what the error must tell
    "density": (EF_TOPK, "ef(topk(density=0.02))", "density=0.02"),
    "count": ("topk(k=50)", "topk(k=51)", "k=51"),
    "memory": (EF_TOPK, "ef21(topk(density=0.05))", "ef21("),
    "no memory": (EF_TOPK, "topk(density=0.05)", "ef("),
    "operator": ("randomk(density=0.05)", "topk(density=0.05)", "randomk"),
    "values": ("topk(density=0.05)", 'topk(density=0.05, values="bf16")', "bf16"),
    "residual_dtype": (EF_TOPK, 'ef(topk(density=0.05), residual_dtype="bf16")', "residual_dtype"),
    "bits": ("qsgd(bits=4)", "qsgd(bits=8)", "bits=8"),
    "block": ("qsgd(bits=4)", "qsgd(bits=4, block=64)", "block=64"),
    "matrix rank": ("ef(powersgd(rank=4))", "ef(powersgd(rank=2))", "rank=2"),
    "aggregator": ("two_hop(qsgd())", "gather(qsgd())", "two_hop"),
    "schedule": ("scheduled(topk(density=0.1), steps=5)", "scheduled(topk(density=0.1), steps=6)", "steps=6"),
    "pattern": ({"*.weight": EF_TOPK}, {"second.*": EF_TOPK}, "composition: first.weight"),
    "order of patterns": (
        {"s*": EF_TOPK, "*d.weight": "sign()"},
        {"*d.weight": "sign()", "s*": EF_TOPK},
        "composition: second.weight",
    ),
}
SETTINGS = {
    "seed": 5, "warmup_steps": 3, "dense_below": 7, "check_weights_every": 7, "on_divergence": "resync", "max_bad_steps": 3,
    "timeout_s": 7.0, "scaler": torch.amp.GradScaler("cpu"),
}  # fmt: skip
DDP_SETTINGS = {"bucket_cap_mb": 1.0, "find_unused_parameters": True, "static_graph": True}
MODELS = ("names", "order", "dtype")
KINDS = [*COMPOSITIONS, *SETTINGS, *DDP_SETTINGS, *MODELS, "version", "change", "stored step", "stored world"]


def quarrel(driver: TorchDist, kind: str) -> tuple[str, str, float]:
    """The error's type and text, and how long it took; every rank of a world whose last one is odd."""
    began = time.monotonic()
    try:
        _quarrel(driver, kind, odd=driver.world.rank == driver.world.size - 1)
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "nothing", "", 0.0


def _quarrel(driver: TorchDist, kind: str, odd: bool) -> None:
    composition: Composition = EF_TOPK
    settings: dict[str, Any] = {}
    ddp: dict[str, Any] = {}
    net: nn.Module = Net()
    if kind in COMPOSITIONS:
        composition = COMPOSITIONS[kind][odd]
    elif odd and kind in SETTINGS:
        settings = {kind: SETTINGS[kind]}
    elif odd and kind in DDP_SETTINGS:
        ddp = {kind: DDP_SETTINGS[kind]}
    elif odd and kind in MODELS:
        net = _other_net(kind)
    model = DDP(net, process_group=driver.group, **ddp)
    with pytest.MonkeyPatch.context() as patch:
        if odd and kind == "version":
            patch.setattr(ddp_handle, "__version__", "0.0.1")
        handle = thinwire.attach(model, composition, **settings)
    if kind == "change":
        handle.set_composition("sign()" if odd else "ternary()")
    if kind.startswith("stored"):
        train(model, driver, 1)
        state = handle.state_dict()
        if odd and kind == "stored world":
            state |= {"world_size": 7}
        if odd and kind == "stored step":
            state |= {key: value | {"step": 900} for key, value in state.items() if key.startswith("rank")}
        handle.load_state_dict(state)


def _other_net(kind: str) -> nn.Module:
    net = Net()
    if kind == "dtype":
        return net.double()
    other, names = nn.Module(), ["first", "second", "third", "last"]
    if kind == "order":
        names[1:3] = ["third", "second"]  # of the same shape, or DDP itself would complain
    for name in names:
        other.add_module("deuxieme" if (kind, name) == ("names", "second") else name, getattr(net, name))
    return other


def pause_alone(driver: TorchDist) -> tuple[str, str] | None:
    """What one rank alone does between steps is found in the next one."""
    model = DDP(Net(), process_group=driver.group)
    handle = thinwire.attach(model, EF_TOPK)
    train(model, driver, 2)
    if driver.world.rank == 1:
        handle.pause()
    try:
        train(model, driver, 1, start=2)
    except Exception as error:
        return type(error).__name__, str(error)
    return None
