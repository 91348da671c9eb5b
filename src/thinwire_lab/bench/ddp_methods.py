"""The methods that `thinwire bench ddp` compares: no communication, plain DDP, torch's hooks, a bare hook, thinwire.

DDP reads the annotations of a hook, so this module must not import annotations from __future__.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from thinwire.api import attach
from thinwire.core import CompositionError
from thinwire.integrations.ddp_handle import DDPHandle

from .bare_hook import BareHook

FLOOR = "sends nothing"
BARE_HOOK = "bare hook, top-k 1 %"
TORCH_POWERSGD = "torch PowerSGD 4, one bucket"
ONE_BUCKET_MB = 1e4
TOPK = "ef(topk(density=0.01))"
POWERSGD = "ef(powersgd(rank=4))"
TOPK_COPIES = 1.5 + 0.5  # read g and e, write the pending e; write the average
POWERSGD_COPIES = 3.4 + 0.5  # g + e and its projection, the second projection, the subtraction; write the average
QSGD_COPIES = 0.5 + 0.5  # read g; write the average


@dataclass(frozen=True)
class DDPMethod:
    """How one copy of the model sends its gradients: one of torch's hooks, the bare hook, or a composition of thinwire.

    Attributes:
        label: its row.
        sends: "nothing", "nothing, copies", "plain", "fp16", "torch powersgd", "bare hook", or a composition.
        bucket_mb: of DDP; None is its default.
        copies: the fewest passes over memory that the method needs, in copies of all gradients; None: no bound shown.
    """

    label: str
    sends: str
    bucket_mb: float | None = None
    copies: float | None = None


FLOOR_METHOD = DDPMethod(FLOOR, "nothing")
COPY_METHOD = DDPMethod("sends nothing, copies the gradients once", "nothing, copies")
METHODS = (
    FLOOR_METHOD,
    COPY_METHOD,
    DDPMethod("plain DDP", "plain"),
    DDPMethod("plain DDP, 5 MB buckets", "plain", 5),
    DDPMethod("torch fp16 hook", "fp16"),
    DDPMethod(BARE_HOOK, "bare hook"),
    DDPMethod("thinwire dense()", "dense()"),
    DDPMethod("thinwire ef(topk 1 %)", TOPK, copies=TOPK_COPIES),
    DDPMethod("thinwire ef(powersgd 4)", POWERSGD, copies=POWERSGD_COPIES),
    DDPMethod("thinwire ef21(topk 1 %)", "ef21(topk(density=0.01))"),
    DDPMethod("thinwire two_hop(qsgd 4)", "two_hop(qsgd(bits=4))", copies=QSGD_COPIES),
    DDPMethod("thinwire ef(topk 1 %), 5 MB buckets", TOPK, 5, TOPK_COPIES),
    DDPMethod("thinwire ef(powersgd 4), 5 MB buckets", POWERSGD, 5, POWERSGD_COPIES),
    DDPMethod("thinwire ef(topk 1 %), 1 MB buckets", TOPK, 1, TOPK_COPIES),
)
ISOLATED_METHODS = (FLOOR_METHOD, DDPMethod(TORCH_POWERSGD, "torch powersgd", ONE_BUCKET_MB))


def is_ours(method: DDPMethod) -> bool:
    """Whether thinwire sends, or the bare hook that it is compared with."""
    return method.label.startswith("thinwire") or method.label == BARE_HOOK


def select_methods(texts: Sequence[str], baselines: bool = True) -> list[list[DDPMethod]]:
    """Groups of methods that run in the same processes; each begins with the floor.

    The first also has the copy that bounds are computed from.

    Args:
        texts: select methods with one of these in their label, whatever the case; empty: all.
        baselines: also plain DDP and torch's hooks.

    Raises:
        CompositionError: a text is in no label.
    """
    always = (FLOOR_METHOD, COPY_METHOD)
    groups = [
        [method for method in group if baselines or method in always or is_ours(method)]
        for group in (METHODS, ISOLATED_METHODS)
    ]
    labels = list(dict.fromkeys(method.label for group in groups for method in group))
    for text in texts:
        if not any(_has_text(label, [text]) for label in labels):
            raise CompositionError(f"bench ddp: --method {text!r} is in no label; the labels are: {'; '.join(labels)}")
    if texts:
        groups = [[m for m in group if m in always or _has_text(m.label, texts)] for group in groups]
    return [group for group in groups if any(method not in always for method in group)] or [list(always)]


def _has_text(label: str, texts: Sequence[str]) -> bool:
    return any(text.lower() in label.lower() for text in texts)


class ReadyBucket(NamedTuple):
    """When a bucket was ready: elements of all buckets up to it, and the time."""

    numel: int
    seconds: float


class FloorHook:
    """Sends nothing; notes when each bucket of the last step was ready.

    Args:
        copies: copy each bucket into a second buffer, and time that.

    Attributes:
        copy_s: seconds of all copies of the last step.
    """

    def __init__(self, copies: bool = False) -> None:
        self.ready: list[ReadyBucket] = []
        self.copies, self.copy_s = copies, 0.0
        self._targets: dict[tuple[int, int], Tensor] = {}

    def hook(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's communication hook."""
        index, buffer = bucket.index(), bucket.buffer()
        if index == 0:
            self.ready, self.copy_s = [], 0.0
        before = self.ready[-1].numel if index else 0
        self.ready.append(ReadyBucket(before + buffer.numel(), time.perf_counter()))
        if self.copies:
            self._copy(index, buffer)
        answer: torch.futures.Future[Tensor] = torch.futures.Future()
        answer.set_result(buffer)
        return answer

    def _copy(self, index: int, buffer: Tensor) -> None:
        key = index, buffer.numel()  # DDP rebuilds its buckets after the first step
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = torch.empty_like(buffer)
        began = time.perf_counter()
        target.copy_(buffer)
        self.copy_s += time.perf_counter() - began

    def leads(self) -> list[tuple[int, float]]:
        """For each bucket the elements up to it, and its seconds before the last bucket."""
        return [(numel, self.ready[-1].seconds - seconds) for numel, seconds in self.ready]


def wrap_in_ddp(model: nn.Module, method: DDPMethod) -> tuple[DistributedDataParallel, DDPHandle | FloorHook | None]:
    """The model in DDP, with the handle of thinwire's methods or the hook of those that send nothing."""
    copy = DistributedDataParallel(model, bucket_cap_mb=method.bucket_mb)
    if method.sends in ("nothing", "nothing, copies"):
        floor = FloorHook(copies=method.sends == "nothing, copies")
        copy.register_comm_hook(floor, FloorHook.hook)
        return copy, floor
    if method.sends == "fp16":
        copy.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method.sends == "torch powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        copy.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif method.sends == "bare hook":
        copy.register_comm_hook(BareHook(0.01), BareHook.hook)
    elif method.sends != "plain":
        return copy, attach(copy, method.sends, check_weights_every=0)
    return copy, None
