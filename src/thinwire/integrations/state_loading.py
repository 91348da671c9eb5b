"""Loading stored states: comparison of compositions, and conversion of the memory of another composition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..core import CheckpointError, CompositionError, ConfigMismatch, World, flatten_state, list_some, require_keys
from ..core.logs import get_logger
from ..drivers.driver import Driver
from ..exchange import Exchanger
from .comparison import compare_settings
from .handle_memory import KINDS, HandleMemory, Texts
from .missing_memory import describe_missing, fill_missing
from .rank_agreement import load_alike
from .state_gather import State
from .stored_ranks import Merge, StoredRanks, find_rank_states, gather_stored_ranks

log = get_logger(__name__)


class LoadTarget(NamedTuple):
    """What a handle does with a stored state."""

    memories: Sequence[HandleMemory]
    merge: Merge  # combines the states of a world of another size
    install: Callable[[State], None]  # loads one rank's state


def load_rank_state(state: Mapping[str, Any], driver: Driver, target: LoadTarget, strict: bool) -> list[str]:
    """Load this rank's part of a stored state; all ranks call this alike, and an error is one on all ranks.

    Returns:
        What had to be dropped, one text each.

    Raises:
        ConfigMismatch: Ranks passed states of different steps, or strict and the state is of another composition.
        CheckpointError: The state is incomplete.
    """
    ranks = find_rank_states(state)
    texts = {kind: state[kind] for kind in KINDS if kind in state}
    steps = sorted({int(value.get("step", -1)) for value in ranks.values()})
    stored = {"world_size": state.get("world_size"), "step": steps, **texts}
    driver.run(compare_settings({"stored": stored, "strict": strict}))
    if state.get("world_size") is None or not ranks:
        keys = list_some(sorted(map(str, state))) or "no keys"
        raise CheckpointError(
            f"load_state_dict: this is not the state of a handle: it has {keys}; pass what state_dict() of the handle "
            "of attach, local or moments.average returned"
        )
    if strict:
        _require_same_composition(texts, target.memories)
    stored_ranks = driver.run(gather_stored_ranks(ranks, int(state["world_size"])))
    stored_ranks.check(strict)
    return load_alike(driver, lambda: _load(ranks, texts, stored_ranks, driver.world, target, strict))


def _load(
    ranks: Mapping[int, State],
    texts: Mapping[str, Texts],
    stored_ranks: StoredRanks,
    world: World,
    target: LoadTarget,
    strict: bool,
) -> list[str]:
    dropped: list[str] = []
    if not strict:
        ranks, dropped = _convert_all(ranks, texts, target.memories, world)
    if missing := stored_ranks.missing:
        ranks = fill_missing(ranks, stored_ranks.needed(world.rank), target.memories, world)
        dropped += describe_missing(missing, target.memories)
    target.install(stored_ranks.select(ranks, world.rank, target.merge))
    for text in dropped:
        log.warning("load_state_dict: %s", text)
    return dropped


def _convert_all(
    ranks: Mapping[int, State], texts: Mapping[str, Texts], memories: Sequence[HandleMemory], world: World
) -> tuple[dict[int, State], list[str]]:
    """Return the states with memories in the form of this composition, and what was dropped of the first rank's."""
    converted, dropped = dict(ranks), _list_unknown(texts, memories)
    for at, (rank, own) in enumerate(sorted(ranks.items())):
        for memory in memories:
            own, lost = _convert(memory, texts.get(memory.kind), own, world)
            dropped += [] if at else lost
        converted[rank] = own
    return converted, dropped


def _require_same_composition(stored_texts: Mapping[str, Texts], memories: Sequence[HandleMemory]) -> None:
    """States from before texts were stored have nothing to compare."""
    if not stored_texts:
        return
    own_texts = {memory.kind: memory.texts for memory in memories}
    for kind in KINDS:
        stored, own = stored_texts.get(kind, {}), own_texts.get(kind, {})
        differing = [name for name in {**stored, **own} if stored.get(name) != own.get(name)]
        if differing:
            first, more = differing[0], f" ({len(differing) - 1} more differ)" if len(differing) > 1 else ""
            raise ConfigMismatch(
                f"load_state_dict: the stored state is of another composition: {first} was {stored.get(first)}, "
                f"here it is {own.get(first)}{more}; use the stored one, or load_state_dict(state, strict=False), "
                "which takes over what fits and returns what it drops"
            )


def _list_unknown(stored_texts: Mapping[str, Texts], memories: Sequence[HandleMemory]) -> list[str]:
    own = {memory.kind for memory in memories}
    return [
        f"the stored memory of the {kind} is dropped: this handle has none" for kind in stored_texts if kind not in own
    ]


def _convert(memory: HandleMemory, texts: Texts | None, own: State, world: World) -> tuple[State, list[str]]:
    """Return one rank's stored state with the memory in the form of this composition, and what was dropped."""
    stored = memory.find_in(own)
    if stored is None:
        return own, [f"the stored state has no memory of the {memory.kind}: it stays as it is"]
    present, new = memory.exchanger, memory.build_empty()
    try:
        rules = dict(present.aggregators) if texts is None else dict(memory.parse_texts(texts))
    except CompositionError as error:
        raise CheckpointError(
            f"load_state_dict: the stored composition is not valid here, so its memory cannot be taken over: {error}"
        ) from error
    require_keys(stored, ("layers",), "the memory of a handle")
    common = [spec for spec in present.layers.values() if spec.name in rules and spec.name in stored["layers"]]
    old = Exchanger(common, {spec.name: rules[spec.name] for spec in common}, seed=present.seed)
    dropped = old.load_matching(stored)
    missing = [name for name in present.layers if name not in old.layers and flatten_state(new.states[name])]
    dropped += [f"the stored state has nothing of {list_some(missing)}: its memory starts empty"] if missing else []
    dropped += new.take_over(old, int(own.get("step", 0)), world)
    return memory.replace_in(own, new.state_dict()), dropped
