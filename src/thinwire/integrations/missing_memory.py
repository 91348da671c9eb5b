"""The memory of ranks whose states are missing: theirs starts empty, and what ranks share starts again on all of them.

A residual or a velocity belongs to one rank. Everything else may have to match what other ranks have: EF21's mean of
all estimates, CHOCO's copies of neighbors, PowerSGD's factor. With one rank's part lost it would be wrong for good, so
all ranks start it again alike. Plans, controllers, counters and anchors are taken from a rank that is present.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core import (
    Aggregator,
    Context,
    TensorSpec,
    World,
    adopt_into,
    flatten_state,
    list_some,
    memory_items,
)
from .handle_memory import HandleMemory
from .rank_agreement import list_ranks
from .state_gather import State

OWN_KINDS = ("residual", "velocity")  # kinds of items that belong to one rank


def fill_missing(
    states: Mapping[int, State], needed: Iterable[int], memories: Sequence[HandleMemory], world: World
) -> dict[int, State]:
    """Return a state for each of the needed ranks; a missing one is that of the first present rank, without memory."""
    source = states[min(states)]
    filled: dict[int, State] = {}
    for rank in needed:
        filled[rank] = states.get(rank, source)
        for memory in memories:
            filled[rank] = _restart(memory, filled[rank], rank in states, world)
    return filled


def _restart(memory: HandleMemory, own: State, keeps_own: bool, world: World) -> State:
    stored = memory.find_in(own)
    if stored is None:
        return own
    old, new = memory.build_empty(), memory.build_empty()
    old.load_state_dict(stored)
    ctx = Context(int(own.get("step", 0)), world, new.seed, dict(old.plan))
    layers = {}
    for name, spec in new.layers.items():
        state = _restart_layer(new.aggregators[name], spec, old.states[name], new.states[name], keeps_own, ctx)
        layers[name] = flatten_state(state)
    return memory.replace_in(own, {**stored, "layers": layers})


def _restart_layer(
    part: Aggregator[Any], spec: TensorSpec, state: Any, initial: Any, keeps_own: bool, ctx: Context
) -> Any:
    items = memory_items(part, state, spec)
    own = [item for item in items if item.kind in OWN_KINDS]
    if keeps_own and len(own) == len(items):
        return state  # nothing is shared: it stays bit for bit, also a rounded residual
    return adopt_into(part, initial, spec, own if keeps_own else [], ctx)[0]


def describe_missing(missing: Sequence[int], memories: Sequence[HandleMemory]) -> list[str]:
    """Return what is lost, one text each, the same on all ranks."""
    shared: dict[tuple[str, str], list[str]] = {}
    for memory in memories:
        exchanger = memory.exchanger
        for name, spec in exchanger.layers.items():
            for item in memory_items(exchanger.aggregators[name], exchanger.states[name], spec):
                if item.kind not in OWN_KINDS:
                    shared.setdefault((type(item.part).__name__, item.kind), []).append(name)
    empty = f"the stored state has no memory of {list_ranks(missing)}, which counts as empty"
    return [
        empty,
        *(
            f"{owner}'s {kind} of {list_some(list(dict.fromkeys(names)))} is initialized again on all ranks: without "
            f"that of {list_ranks(missing)} it cannot be continued"
            for (owner, kind), names in shared.items()
        ),
    ]
