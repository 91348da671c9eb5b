"""The public functions: `attach` for DDP models, `local` for Local SGD and DiLoCo, `serve` and `join` for servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from .catalog import DENSE_BELOW
from .catalog.patterns import CompositionSpec
from .integrations.ddp_handle import DDPHandle
from .integrations.ddp_hook_slot import HookSlot
from .integrations.ddp_options import DDPOptions
from .integrations.local_handle import LocalHandle
from .integrations.local_options import LocalOptions
from .integrations.wrappers import find_ddp
from .renamed import refuse_renamed_arguments
from .serving import join as join
from .serving import serve as serve
from .sync import Local, OuterOptimizer, SyncPolicy, parse_policy, resolve_outer_optimizer


@refuse_renamed_arguments("attach")
def attach(
    model: DistributedDataParallel,
    composition: CompositionSpec | Mapping[str, CompositionSpec],
    *,
    scaler: GradScaler | None = None,
    warmup_steps: int = 0,
    dense_below: int = DENSE_BELOW,
    seed: int = 0,
    check_weights_every: int = 100,
    on_divergence: str = "stop",
    max_bad_steps: int = 10,
    timeout_s: float = 60.0,
) -> DDPHandle:
    """Compress the gradients that a DDP model exchanges, from its next backward pass on.

    The composition replaces DDP's all-reduce through DDP's communication hook; the training loop stays as it is. All
    ranks call this with the same arguments; the arguments are compared over ranks before the first step.

    Args:
        model: A `DistributedDataParallel` model, also one inside `torch.compile`.
        composition: A composition text such as `"ef(topk(density=0.01))"`, a part object, or a mapping from name
            patterns such as `"*.weight"` to these; the first pattern that matches a parameter's name counts. Vectors
            (biases, norms) and layers that match no pattern are sent dense, unless a pattern is their full name.
        scaler: The `GradScaler` of the training loop, if it uses one. Error feedback then stores unscaled gradients.
        warmup_steps: Number of first steps with dense averaging.
        dense_below: Layers with fewer elements are sent dense.
        seed: Seed of all random choices; the same on all ranks.
        check_weights_every: Steps between two comparisons of all ranks' weights (8 bytes per tensor); 0 disables them.
        on_divergence: What happens if weights differ: `"stop"` raises `DivergedError`, `"resync"` copies rank 0's.
        max_bad_steps: `backward` raises `NonFiniteError` after this many consecutive steps with a NaN or an infinity
            on some rank; 0 disables the limit.
        timeout_s: Seconds after which a silent rank counts as lost. Allow for the time of saving a checkpoint.

    Returns:
        The handle of this attachment: `report()`, `pause()`, `set_composition()`, `state_dict()`, `detach()`, ...

    Raises:
        CompositionError: An argument is not valid, or the model is not a DDP model with a free communication hook.
            The model is left as it was.
        IncompatibleParts: The parts of the composition do not work together, or not with DDP.
        ConfigMismatch: Ranks passed different arguments, or have different models.
        PeerLostError: Not all ranks connected within `timeout_s`.

    Example:
        ```python
        model = DistributedDataParallel(net)
        handle = thinwire.attach(model, "ef(topk(density=0.01))")
        ...  # train as before
        print(handle.report())
        ```
    """
    options = DDPOptions(
        scaler, warmup_steps, dense_below, seed, check_weights_every, on_divergence, max_bad_steps, timeout_s
    )
    ddp = find_ddp(model)
    handle = DDPHandle(ddp, composition, options)
    try:
        HookSlot.of(ddp).set_handle(handle)  # last, so that an error leaves the model as it was
    except BaseException:
        handle.driver.close()
        raise
    return handle


@refuse_renamed_arguments("local")
def local(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    sync_every: int | str | SyncPolicy = 16,
    composition: CompositionSpec | Mapping[str, CompositionSpec] = "dense()",
    outer_optimizer: str | OuterOptimizer = "average()",
    payload: str = "deltas",
    overlap: bool = False,
    num_fragments: int = 1,
    fragment_sync_delay: int = 0,
    fragment_update_alpha: float = 0.0,
    full_average_every: int = 0,
    buffers: str = "average",
    optimizer_state: str = "local",
    dense_below: int = DENSE_BELOW,
    seed: int = 0,
    check_weights_every: int = 100,
    on_divergence: str = "stop",
    max_bad_rounds: int = 10,
    timeout_s: float = 60.0,
    hooks: bool = True,
    group: Any = None,
) -> LocalHandle:
    """Train a copy of the model on each rank and synchronize the copies every few steps (Local SGD, DiLoCo, gossip).

    Use the handle as a context around the training loop. It counts the calls of `optimizer.step()` and runs a
    synchronization round when one is due. All ranks call this with the same arguments. Without a process group it is a
    world of one rank.

    Args:
        model: A plain module with the same parameters on all ranks; not wrapped in DDP or FSDP. All ranks start with
            rank 0's weights and buffers.
        optimizer: The optimizer of the model's parameters, any of `torch.optim`.
        sync_every: Steps between two rounds, or a policy such as `"post_local(start=1000, period=16)"`.
        composition: What a round sends, as for `attach`: a text, a part object, or a mapping from name patterns.
        outer_optimizer: Optimizer that applies the averaged delta: `"average()"`, `"sgd(lr=1, momentum=0.5)"`,
            `"nesterov(lr=0.7, momentum=0.9)"` (DiLoCo), or any class of `torch.optim` in lower case, such as
            `"adam(lr=0.01)"`.
        payload: What is sent: `"deltas"` (weights of the last round minus present weights), `"weights"`, or
            `"gradients"` in each step.
        overlap: Send a round during the step that follows it, instead of waiting for it.
        num_fragments: Number of groups of layers that are synchronized in turn (streaming DiLoCo).
        fragment_sync_delay: Steps between sending a round and merging its result.
        fragment_update_alpha: Share of the local weights that is kept when a result is merged, in [0, 1).
        full_average_every: Rounds between two dense averages of all weights, for gossip; 0 disables them.
        buffers: `"average"` averages floating-point buffers, such as batch norm's running means, in each round;
            `"local"` leaves them to each rank.
        optimizer_state: `"local"` leaves the optimizer's state to each rank, `"reset"` drops it after each round; a
            composition such as `"uniform(bits=8)"` averages Adam's moments in each round (see `thinwire.moments`).
        dense_below: Layers with fewer elements are sent dense.
        seed: Seed of all random choices; the same on all ranks.
        check_weights_every: Rounds between two comparisons of the weights that all ranks share; 0 disables them.
        on_divergence: What happens if they differ: `"stop"` raises `DivergedError`, `"resync"` copies rank 0's.
        max_bad_rounds: A step raises `NonFiniteError` after this many consecutive rounds with a NaN or an infinity on
            some rank; 0 disables the limit.
        timeout_s: Seconds after which a silent rank counts as lost.
        hooks: Whether hooks of the optimizer count the steps. With False, call `before_step()` and `after_step()`
            around each step, also around steps that a `GradScaler` skips.
        group: Process group of the ranks that train together; None is the default group.

    Returns:
        The handle: `full_average()`, `averaged()`, `consensus()`, `report()`, `state_dict()`, `close()`, ...

    Raises:
        CompositionError: An argument is not valid, or the model is wrapped or sharded.
        IncompatibleParts: The settings do not work together.
        ConfigMismatch: Ranks passed different arguments, or have different models.
        PeerLostError: Not all ranks connected within `timeout_s`.

    Example:
        ```python
        with thinwire.local(model, optimizer, sync_every=16, composition="ef(topk(density=0.01))") as handle:
            ...  # train as before
            handle.full_average()  # all ranks have the same weights for evaluation and saving
        ```
    """
    policy = parse_policy(sync_every) if isinstance(sync_every, str) else sync_every
    settings = Local(
        sync_every=policy, outer_optimizer=resolve_outer_optimizer(outer_optimizer), payload=payload, overlap=overlap,
        num_fragments=num_fragments, fragment_sync_delay=fragment_sync_delay,
        fragment_update_alpha=fragment_update_alpha, full_average_every=full_average_every,
    )  # fmt: skip
    options = LocalOptions(
        buffers, optimizer_state, dense_below, seed, check_weights_every, on_divergence, max_bad_rounds, timeout_s,
        hooks,
    )  # fmt: skip
    return LocalHandle(model, optimizer, settings, composition, options, group)
