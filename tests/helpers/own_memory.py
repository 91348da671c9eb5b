"""A memory of another package: it knows thinwire's protocol, and nothing of thinwire's memories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thinwire import TensorSpec
from thinwire.core import (
    Aggregator,
    Context,
    Key,
    MemoryItem,
    Program,
    Reduced,
    SendForm,
    adopt_into,
    cast_saturating,
    mean_state,
    memory_items,
    merge_memories,
    saturate,
    send_form_of,
    split_kind,
    target_of,
)


class LateState(NamedTuple):
    waits: torch.Tensor  # no field is called residual
    within: Any


@dataclass(frozen=True)
class Late:
    """Error feedback, written with the public protocol only."""

    part: Aggregator[Any]  # nor is what it goes around called inner

    def init(self, spec: TensorSpec, key: Key) -> LateState:
        return LateState(torch.zeros(spec.shape, dtype=spec.work_dtype), self.part.init(spec, key))

    def reduce(self, tensor: Tensor, spec: TensorSpec, state: LateState, ctx: Context) -> Program[Reduced[LateState]]:
        target = self.target_here(tensor, state)
        out = yield from self.part.reduce(cast_saturating(target, spec.dtype), spec, state.within, ctx)
        return Reduced(out.value, out.sent, LateState(saturate(target - out.sent), out.state))

    def target_here(self, tensor: Tensor, state: LateState) -> Tensor:
        return saturate(tensor + state.waits)

    def target(self, tensor: Tensor, spec: TensorSpec, state: LateState, ctx: Context) -> Tensor:
        return target_of(
            self.part, self.target_here(cast_saturating(tensor, spec.dtype), state), spec, state.within, ctx
        )

    def hand_over(self, state: LateState, spec: TensorSpec) -> list[MemoryItem]:
        return [
            MemoryItem("residual", self, state.waits, "it is late for ever"),
            *memory_items(self.part, state.within, spec),
        ]

    def adopt(
        self, state: LateState, spec: TensorSpec, held: Sequence[MemoryItem], ctx: Context
    ) -> tuple[LateState, list[MemoryItem]]:
        residuals, rest = split_kind(held, "residual")
        within, rest = adopt_into(self.part, state.within, spec, rest, ctx)
        return LateState(saturate(sum([one.value for one in residuals], state.waits)), within), rest

    def merge(self, states: Sequence[LateState], spec: TensorSpec) -> LateState:
        within = merge_memories(self.part, [state.within for state in states], spec)
        return LateState(mean_state([state.waits for state in states]), within)

    def give_back(self, tensor: Tensor, spec: TensorSpec, state: LateState, ctx: Context) -> LateState:
        return state._replace(waits=saturate(state.waits + tensor.to(spec.work_dtype)))

    def send_form(self) -> SendForm:
        form = send_form_of(self.part)
        return SendForm(
            form.compressor,
            lambda sender: replace(self, part=form.assemble(sender)),
            form.sends_differences,
            lambda state, fresh: state._replace(within=form.restart(state.within, fresh.within)),
        )
