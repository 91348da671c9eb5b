"""Send how the tensor changed, keep what everybody believes it to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Aggregator,
    Capabilities,
    Capability,
    Context,
    Held,
    IncompatibleParts,
    Key,
    Program,
    Reduced,
    SendForm,
    TensorSpec,
    adopt_into,
    cast_saturating,
    check_inner,
    held_by,
    mean_state,
    merge_memories,
    saturate,
    send_form_of,
    split_kind,
    target_of,
    topology_of,
)


class EF21State(NamedTuple):
    local: Tensor  # what the others believe this rank's tensor to be
    shared: Tensor  # the average of all ranks' `local`, the same everywhere
    inner: Any


@dataclass(frozen=True)
class EF21:
    """Send the compressed difference to what was believed before; every rank's `shared` is the mean of all `local`."""

    capabilities: ClassVar[Capabilities] = frozenset(
        {Capability.CORRECTS_ERROR, Capability.SENDS_DIFFERENCES, Capability.ACCEPTS_MOMENT_PAIRS}
    )

    inner: Aggregator[Any]

    def __post_init__(self) -> None:
        check_inner("EF21", self.inner, sends_differences=True)
        if (topology := topology_of(self.inner)) is not None:
            raise IncompatibleParts(
                f"EF21 keeps the mean of all ranks' beliefs, over {type(topology).__name__} each rank hears others; "
                "use ef(gossip(...)), or choco(...) on a fixed graph"
            )

    def init(self, spec: TensorSpec, key: Key) -> EF21State:
        zeros = torch.zeros(spec.shape, dtype=spec.work_dtype, device=spec.device)
        return EF21State(zeros, zeros, self.inner.init(spec, key))

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: EF21State, ctx: Context) -> Program[Reduced[EF21State]]:
        news = cast_saturating(saturate(tensor - state.local), spec.dtype)
        out = yield from self.inner.reduce(news, spec, state.inner, ctx)
        local, shared = saturate(state.local + out.sent), saturate(state.shared + out.value)
        return Reduced(shared, local, EF21State(local, shared, out.state))

    def target(self, tensor: Tensor, spec: TensorSpec, state: EF21State, ctx: Context) -> Tensor:
        return target_of(
            self.inner, saturate(cast_saturating(tensor, spec.dtype) - state.local), spec, state.inner, ctx
        )

    def hand_over(self, state: EF21State, spec: TensorSpec) -> list[Held]:
        lost = "nothing that was to be sent is lost; what ranks knew of each other's tensors is"
        return [Held("estimate", self, (state.local, state.shared), lost), *held_by(self.inner, state.inner, spec)]

    def adopt(
        self, state: EF21State, spec: TensorSpec, held: Sequence[Held], ctx: Context
    ) -> tuple[EF21State, list[Held]]:
        """One estimate: two cannot be added. All ranks take the same one, so `shared` stays the mean of all `local`."""
        (*estimates,), rest = split_kind(held, "estimate")
        local, shared = estimates.pop(0).value if estimates else (state.local, state.shared)
        inner, rest = adopt_into(self.inner, state.inner, spec, [*estimates, *rest], ctx)
        return EF21State(local, shared, inner), rest

    def merge(self, states: Sequence[EF21State], spec: TensorSpec) -> EF21State:
        local, shared = (mean_state([state[at] for state in states]) for at in range(2))
        return EF21State(local, shared, merge_memories(self.inner, [state.inner for state in states], spec))

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: EF21State, ctx: Context) -> EF21State:
        return state  # the next message says what changed since the last one that was accepted: nothing is lost

    def send_form(self) -> SendForm:
        """The server adds differences to its estimate of the worker; if it has lost that, all in here begins anew."""
        form = send_form_of(self.inner)
        if form.believes:
            raise IncompatibleParts("EF21 inside EF21: a server keeps one belief of each worker; one EF21 would do")
        return SendForm(form.compressor, lambda sender: replace(self, inner=form.assemble(sender)), believes=True)
