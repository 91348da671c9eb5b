"""More of what worker processes do in the tests of `attach`: situations in which hooks hang, leak or lose something."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 (its usual name)

import thinwire
from helpers.ddp_training import EF_TOPK, Composition, Net, data, ddp_of, train, weights
from thinwire import TorchDist, World
from thinwire.integrations.ddp_handle import DDPHandle


def buckets_of(model: DDP) -> int:
    return len(model.reducer._get_zeros_like_grad_buckets())


def residuals(handle: DDPHandle) -> dict[str, Tensor]:
    return {n: s.residual.clone() for n, s in handle.exchanger.states.items() if hasattr(s, "residual")}


def parameters(model: DDP) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.module.named_parameters()}


def plain_and_dense(
    driver: TorchDist, make: Callable[[], DDP], teach: Callable[[DDP], object]
) -> list[dict[str, Tensor]]:
    """The weights after a few steps of `teach`, with DDP's own average and with ours."""
    results = []
    for attached in (False, True):
        model = make()
        if attached:
            thinwire.attach(model, "dense()")
        teach(model)
        results.append(parameters(model))
    return results


def sixty_four(driver: TorchDist, composition: Composition) -> tuple[int, str, float]:
    torch.manual_seed(7)
    layers = [m for _ in range(62) for m in (nn.Linear(40, 40, bias=False), nn.Tanh())]
    net = nn.Sequential(nn.Linear(32, 40, bias=False), *layers, nn.Linear(40, 4, bias=False))
    model = ddp_of(driver, net, bucket_cap_mb=0.0001)
    handle = thinwire.attach(model, composition)
    train(model, driver, 3)
    hooks = handle.report().seconds["in hooks"]
    return buckets_of(model), weights(model), hooks


def rebuild(driver: TorchDist, composition: Composition, cap_mb: float) -> tuple[list[int], str]:
    """How many buckets each step had, and the weights in the end."""
    model = ddp_of(driver, bucket_cap_mb=cap_mb)
    thinwire.attach(model, composition)
    counts = []
    for step in range(4):
        train(model, driver, 1, start=step)
        counts.append(buckets_of(model))
    return counts, weights(model)


def freeze(driver: TorchDist, names: set[str]) -> tuple[list[dict[str, Tensor]], set[str], str]:
    def make() -> DDP:
        torch.manual_seed(7)
        net = Net()
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name not in names)
        return ddp_of(driver, net)

    dense = plain_and_dense(driver, make, lambda model: train(model, driver, 4))
    model = make()
    before = parameters(model)
    thinwire.attach(model, EF_TOPK)
    train(model, driver, 4)
    after = parameters(model)
    return dense, {n for n in after if torch.equal(before[n], after[n])}, weights(model)


def freeze_too_late(driver: TorchDist) -> str | None:
    model = ddp_of(driver)
    model.module.first.weight.requires_grad_(False)
    try:
        thinwire.attach(model, EF_TOPK)
    except thinwire.CompositionError as error:
        return str(error)
    return None


def transposed(driver: TorchDist) -> bool:
    """The same weight, as it is and as the transpose of what is stored: gradients come with its strides."""

    class Turned(nn.Module):
        def __init__(self, turn: bool) -> None:
            super().__init__()
            torch.manual_seed(5)
            start = torch.randn(32, 64)
            self.weight = nn.Parameter(start.t().contiguous().t() if turn else start)
            assert self.weight.is_contiguous() is not turn

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x @ self.weight)[:, :4]

    results = []
    for turn in (False, True):
        model = DDP(Turned(turn), process_group=driver.group)
        thinwire.attach(model, EF_TOPK)
        train(model, driver, 4)
        results.append(parameters(model)["weight"].contiguous())
    return torch.equal(*results)


def two_groups(driver: TorchDist) -> tuple[str, World, int]:
    """Ranks 0 and 1 train one model, 2 and 3 another; each group has its own composition and number of steps."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank = driver.world.rank
    group = groups[rank // 2]
    torch.manual_seed(7 + rank // 2)
    model = DDP(Net(), process_group=group)
    handle = thinwire.attach(model, (EF_TOPK, "ef(powersgd(rank=2))")[rank // 2])
    train(model, driver, 3 + rank // 2)
    return weights(model), handle.driver.world, handle.hook.step


def save_whole(driver: TorchDist) -> tuple[bool, list[str], int, str]:
    """torch's own serialisation of a whole DDP module (with the default group, as DDP wants)."""
    torch.manual_seed(7)
    model = DDP(Net())
    thinwire.attach(model, EF_TOPK)
    train(model, driver, 2)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    same = weights(twin) == weights(model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train(twin, driver, 2, start=2)
    handle = thinwire.attach(twin, EF_TOPK)
    train(twin, driver, 2, start=4)
    return same, [str(w.message) for w in told if "thinwire" in str(w.message)], handle.hook.step, weights(twin)


def clip(driver: TorchDist) -> tuple[list[dict[str, Tensor]], list[float]]:
    def teach(model: DDP) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for step in range(4):
            x, y = data(step, driver.world.rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(10 * x), y).backward()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
            optimizer.step()

    norms: list[float] = []
    return plain_and_dense(driver, lambda: ddp_of(driver), teach), norms


def die(driver: TorchDist, at: int, folder: str, find_unused: bool) -> None:
    """Rank 1 is killed in the middle of a backward pass; rank 0 writes down what it saw."""

    def last_gasp(grad: Tensor) -> Tensor:
        if driver.world.rank == 1 and step == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return grad

    model = ddp_of(driver, bucket_cap_mb=0.002, find_unused_parameters=find_unused)
    model.module.second.bias.register_hook(last_gasp)  # when later layers' buckets are on their way
    thinwire.attach(model, EF_TOPK, timeout_s=10.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(at + 2):
        x, y = data(step, driver.world.rank)
        optimizer.zero_grad()
        began = time.monotonic()
        try:
            nn.functional.cross_entropy(model(x), y).backward()
        except BaseException as error:
            seen = {"step": step, "kind": type(error).__name__, "text": str(error), "s": time.monotonic() - began}
            Path(folder, "seen.json").write_text(json.dumps(seen))
            return
        optimizer.step()


def unused_on_one_rank(driver: TorchDist) -> tuple[list[dict[str, Tensor]], str, float]:
    """Rank 1 alone leaves a layer out; DDP gives it zeros there, and all ranks the average."""
    skip = driver.world.rank == 1

    def make() -> DDP:
        return ddp_of(driver, find_unused_parameters=True)

    dense = plain_and_dense(driver, make, lambda model: train(model, driver, 4, skip=skip))
    model = make()
    handle = thinwire.attach(model, EF_TOPK)
    train(model, driver, 4, skip=skip)
    return dense, weights(model), float(residuals(handle)["third.weight"].abs().sum())


def leave_unused_slowly(driver: TorchDist) -> list[bool]:
    """DDP records which parameters were used after it has called the last hook, here a good while after."""
    model = ddp_of(driver, find_unused_parameters=True)
    handle = thinwire.attach(model, EF_TOPK)
    prompt = handle.hook.hook

    def slow(bucket: GradBucket) -> torch.futures.Future[Tensor]:
        answer = prompt(bucket)
        time.sleep(0.1)
        return answer

    handle.hook.hook = slow  # type: ignore[method-assign]
    kept = []
    for step in range(6):
        before = residuals(handle)
        train(model, driver, 1, start=step, skip=step % 2 == 1)
        kept.append(torch.equal(before["third.weight"], residuals(handle)["third.weight"]))
    return kept


def outlive(driver: TorchDist, detach: bool) -> tuple[int, list[tuple[int, int]]]:
    """Which of some dropped models are still alive, and how many threads and files there are."""
    watched, counts, threads_before = [], [], threading.active_count()
    for _ in range(4):
        model = ddp_of(driver)
        handle = thinwire.attach(model, EF_TOPK)
        train(model, driver, 2)
        watched += [weakref.ref(thing) for thing in (model, model.reducer, model.module.first.weight, handle)]
        if detach:
            handle.detach()
        del model, handle
        counts.append(_settled_counts(threads_before))
    return sum(ref() is not None for ref in watched), counts


def _settled_counts(threads_before: int) -> tuple[int, int]:
    """Threads and files of this process, once the threads that were told to end have ended.

    The communication thread may still be in its last lines when backward returns; it holds its job until then.
    """
    gc.collect()
    for _ in range(100):
        if threading.active_count() <= threads_before:
            break
        time.sleep(0.05)
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def grow(driver: TorchDist) -> list[int]:
    """Tensors alive after every ten steps."""
    model = ddp_of(driver, bucket_cap_mb=0.002)
    thinwire.attach(model, EF_TOPK)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = []
    for ten in range(4):
        train(model, driver, 10, start=10 * ten, optimizer=optimizer)
        gc.collect()
        counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    return counts


def join_and_check(driver: TorchDist, on_divergence: str, find_unused: bool) -> tuple[int, int, str]:
    """Rank 0 runs out of inputs and takes no more steps; that is no divergence, and its weights are not the right ones."""
    model = ddp_of(driver, find_unused_parameters=find_unused)
    handle = thinwire.attach(model, EF_TOPK, check_weights_every=2, on_divergence=on_divergence)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for step in range(3 + 4 * driver.world.rank):
            x, y = data(step, driver.world.rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x, skip=find_unused and step % 2 == 1), y).backward()
            optimizer.step()
    return handle.hook.step, handle.resynced_tensors, weights(model)


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        time.sleep(0.05)
        return grad


class SlowNet(Net):
    """Its backward pass takes its time between layers."""

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        x = _Slow.apply(torch.tanh(self.first(x)))
        x = _Slow.apply(torch.tanh(self.second(x)))
        output: Tensor = self.last(torch.tanh(self.third(x)))
        return output


def resync_slowly(driver: TorchDist) -> tuple[str, int]:
    """Weights are resynchronized while autograd still needs the old ones: it must not be disturbed."""
    model = ddp_of(driver, SlowNet(), bucket_cap_mb=0.002)
    handle = thinwire.attach(model, EF_TOPK, check_weights_every=2, on_divergence="resync")
    train(model, driver, 3)
    if driver.world.rank == 1:
        with torch.no_grad():
            model.module.second.weight[3, 4] += 1e-3
    train(model, driver, 3, start=3)
    return weights(model), handle.resynced_tensors


def spoil_at_once(driver: TorchDist, static_graph: bool) -> str | None:
    model = ddp_of(driver, static_graph=static_graph)
    thinwire.attach(model, EF_TOPK, max_bad_steps=1)
    x, y = data(0, driver.world.rank)
    try:
        nn.functional.cross_entropy(model(x * float("nan")), y).backward()
    except BaseException as error:
        return type(error).__name__
    return None


def spoil_views(driver: TorchDist) -> tuple[bool, int, str]:
    """A NaN when gradients are views of DDP's buckets: the next step starts clean."""
    model = ddp_of(driver, gradient_as_bucket_view=True)
    handle = thinwire.attach(model, EF_TOPK)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        x, y = data(step, driver.world.rank)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        bad = step in (1, 2) and driver.world.rank == 1
        nn.functional.cross_entropy(model(x * float("nan") if bad else x), y).backward()
        optimizer.step()
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    return finite, handle.report().skipped_steps, weights(model)
