"""EF21 (Richtárik et al., 2021): send C(g_i − h_i); each rank keeps its h_i and the mean of all h_i."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from ..core import (
    Aggregator,
    BatchAggregator,
    Capabilities,
    Capability,
    Context,
    IncompatibleParts,
    Key,
    LayerBatch,
    MemoryItem,
    Program,
    Reduced,
    ReducedBatch,
    SendForm,
    TensorSpec,
    adopt_into,
    cast_saturating,
    check_inner,
    copy_all,
    fuses_estimate,
    inherit_capabilities,
    mean_state,
    memory_items,
    merge_memories,
    reduce_singly,
    saturate,
    send_form_of,
    split_kind,
    target_of,
    topology_of,
)
from ..kernels import subtract_many
from .residuals import zero_state

_ALWAYS = frozenset({Capability.CORRECTS_ERROR, Capability.SENDS_DIFFERENCES, Capability.ACCEPTS_MOMENT_PAIRS})


class EF21State(NamedTuple):
    """Estimates of the ranks' gradients, and the state of the inner aggregator."""

    own_estimate: Tensor  # h_i: what the other ranks know of this rank's gradient
    mean_estimate: Tensor  # h, the mean of all h_i: the same on all ranks
    inner: Any


class _PendingStates(Sequence[EF21State]):
    """The new states of a batch. The mean estimates are added up when something first needs them.

    They are also the averages, and the caller usually wants these in tensors of its own: then one pass writes both.
    """

    def __init__(self, out: ReducedBatch, own: Sequence[Tensor], mean: Sequence[Tensor]) -> None:
        self._out, self._own, self._old_mean = out, own, mean
        self._states: list[EF21State] | None = None

    def write_means(self, outs: Sequence[Tensor]) -> None:
        """Write the mean estimates to these tensors."""
        if self._states is None:
            self._make(outs)
            return
        copy_all([state.mean_estimate for state in self._states], outs)

    def _make(self, outs: Sequence[Tensor] | None) -> list[EF21State]:
        mean = self._out.plus_values(self._old_mean, outs)
        self._states = [EF21State(*fields) for fields in zip(self._own, mean, self._out.states, strict=True)]
        return self._states

    def __len__(self) -> int:
        return len(self._own)

    def __getitem__(self, index: Any) -> Any:
        return (self._make(None) if self._states is None else self._states)[index]


@dataclass(frozen=True)
class EF21:
    """Send c_i = C(g_i − h_i), then h_i ← h_i + c_i; all ranks use h ← h + mean of c_i, which is the mean of all h_i.

    Needs a contractive C (delta > 0). With a gradient that does not change, h becomes exact.

    Args:
        inner: the aggregator that sends C(g_i − h_i), such as topk(density=0.01).
    """

    inner: Aggregator[Any]

    @cached_property
    def capabilities(self) -> Capabilities:
        return _ALWAYS | inherit_capabilities(self.inner, Capability.BATCHES_LAYERS)

    def __post_init__(self) -> None:
        check_inner("EF21", self.inner, sends_differences=True)
        if (topology := topology_of(self.inner)) is not None:
            raise IncompatibleParts(
                f"EF21 needs the mean over all ranks; over {type(topology).__name__} each rank receives another mean. "
                "Use ef(gossip(...)), or choco(...) on a fixed graph"
            )

    def init(self, spec: TensorSpec, key: Key) -> EF21State:
        zeros = zero_state(spec)
        return EF21State(zeros, zeros, self.inner.init(spec, key))

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: EF21State, ctx: Context) -> Program[Reduced[EF21State]]:
        difference = cast_saturating(saturate(tensor - state.own_estimate), spec.dtype)
        out = yield from self.inner.reduce(difference, spec, state.inner, ctx)
        own, mean = saturate(state.own_estimate + out.sent), saturate(state.mean_estimate + out.value)
        return Reduced(mean, own, EF21State(own, mean, out.state))

    def reduce_many(self, batch: LayerBatch, ctx: Context) -> Program[ReducedBatch]:
        if batch.residuals is not None:
            return (yield from reduce_singly(self, batch, ctx))
        own, mean, inner = ([state[field] for state in batch.states] for field in range(3))
        inner_batch = batch._replace(states=inner, outs=None)  # outs get h, not its change
        out = yield from self._send_differences(inner_batch, own, ctx)
        states = _PendingStates(out, out.plus_sent(own) if out.estimates is None else out.estimates, mean)

        def layer(i: int) -> Reduced[EF21State]:
            return Reduced(states[i].mean_estimate, states[i].own_estimate, states[i])

        return ReducedBatch(states, None, states.write_means, layer)

    def _send_differences(self, batch: LayerBatch, own: Sequence[Tensor], ctx: Context) -> Program[ReducedBatch]:
        """Reduce g_i − h_i; the inner aggregator subtracts h_i itself if it can."""
        inner: BatchAggregator = self.inner  # type: ignore[assignment]  # it declares BATCHES_LAYERS
        if fuses_estimate(inner):
            return (yield from inner.reduce_many(batch._replace(estimates=own), ctx))
        differences, first_bad = subtract_many(batch.tensors, own)
        if first_bad >= 0:
            ctx.nonfinite.append(batch.names[first_bad])
            differences, _ = subtract_many(batch.zeros().tensors, own)
        return (yield from inner.reduce_many(batch._replace(tensors=differences), ctx))

    def target(self, tensor: Tensor, spec: TensorSpec, state: EF21State, ctx: Context) -> Tensor:
        """What the compressor receives: g_i − h_i."""
        difference = saturate(cast_saturating(tensor, spec.dtype) - state.own_estimate)
        return target_of(self.inner, difference, spec, state.inner, ctx)

    def hand_over(self, state: EF21State, spec: TensorSpec) -> list[MemoryItem]:
        """Both estimates, and what the memories inside hold."""
        lost = "the ranks' estimates of each other's gradients are lost; nothing unsent is"
        estimates = MemoryItem("estimate", self, (state.own_estimate, state.mean_estimate), lost)
        return [estimates, *memory_items(self.inner, state.inner, spec)]

    def adopt(
        self, state: EF21State, spec: TensorSpec, items: Sequence[MemoryItem], ctx: Context
    ) -> tuple[EF21State, list[MemoryItem]]:
        """Take one estimate: two cannot be added. All ranks take the same one, so h stays the mean of all h_i."""
        (*estimates,), rest = split_kind(items, "estimate")
        own, mean = estimates.pop(0).value if estimates else (state.own_estimate, state.mean_estimate)
        inner, rest = adopt_into(self.inner, state.inner, spec, [*estimates, *rest], ctx)
        return EF21State(own, mean, inner), rest

    def merge(self, states: Sequence[EF21State], spec: TensorSpec) -> EF21State:
        """One state for those of several ranks: the mean of each field."""
        own, mean = (mean_state([state[field] for state in states]) for field in range(2))
        return EF21State(own, mean, merge_memories(self.inner, [state.inner for state in states], spec))

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: EF21State, ctx: Context) -> EF21State:
        return state  # the next message has the difference to the last accepted one: nothing is lost

    def send_form(self) -> SendForm:
        """The server adds differences to its estimate of a worker; if it has lost that, the worker restarts at zero."""
        form = send_form_of(self.inner)
        if form.sends_differences:
            raise IncompatibleParts(
                "EF21 inside EF21: a server keeps one estimate of each worker. Use a single ef21(...)"
            )
        return SendForm(
            form.compressor, lambda sender: replace(self, inner=form.assemble(sender)), sends_differences=True
        )
