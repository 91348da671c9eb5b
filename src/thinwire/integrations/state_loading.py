"""Loading stored states: comparison of compositions, and conversion of the memory of another composition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..catalog import parse, part_text
from ..core import Aggregator, CheckpointError, CompositionError, ConfigMismatch, flatten_state, list_some, require_keys
from ..core.logs import get_logger
from ..drivers.driver import Driver
from ..exchange import Exchanger
from .comparison import compare_settings
from .state_gather import Merge, State, select_rank_state

log = get_logger(__name__)

Texts = Mapping[str, str]
KINDS = ("composition", "moments")  # keys under which a stored state has the texts of its compositions


class HandleMemory(NamedTuple):
    """One exchanger of a handle, and where its memory is in a stored state."""

    kind: str  # one of KINDS
    texts: Texts  # of its composition
    exchanger: Exchanger
    path: tuple[str, ...]  # in one rank's state
    parse_texts: Callable[[Texts], Mapping[str, Aggregator[Any]]]  # from such texts to an aggregator for each layer


def describe_memory(exchanger: Exchanger, *path: str) -> HandleMemory:
    """The memory of a composition with a stored text for each layer."""
    texts = {name: part_text(rule) for name, rule in exchanger.aggregators.items()}
    return HandleMemory("composition", texts, exchanger, path, _parse_texts)


def _parse_texts(texts: Texts) -> dict[str, Aggregator[Any]]:
    return {name: parse(text) for name, text in texts.items()}


def load_rank_state(
    state: Mapping[str, Any], driver: Driver, merge: Merge, memories: Sequence[HandleMemory], strict: bool
) -> tuple[State, list[str]]:
    """Return this rank's part of a stored state, and texts of what had to be dropped; all ranks call this alike.

    Raises:
        ConfigMismatch: Ranks passed states of different steps, or strict and the state is of another composition.
        CheckpointError: The state is incomplete.
    """
    ranks = {key: value for key, value in state.items() if key.startswith("rank") and isinstance(value, Mapping)}
    stored_texts = {kind: state[kind] for kind in KINDS if kind in state}
    steps = sorted({int(value.get("step", -1)) for value in ranks.values()})
    stored = {"world_size": state.get("world_size"), "step": steps, **stored_texts}
    driver.run(compare_settings({"stored": stored, "strict": strict}))
    if state.get("world_size") is None or not ranks:
        keys = list_some(sorted(map(str, state))) or "no keys"
        raise CheckpointError(
            f"load_state_dict: this is not the state of a handle: it has {keys}; pass what state_dict() of the handle "
            "of attach, local or moments.average returned"
        )
    if strict:
        _require_same_composition(stored_texts, memories)
        return select_rank_state(state, driver.world, merge), []
    fitted, dropped = dict(state), _list_unknown(stored_texts, memories)
    for at, (key, own) in enumerate(sorted(ranks.items())):
        for memory in memories:
            own, lost = _convert(memory, stored_texts.get(memory.kind), own, driver)
            dropped += [] if at else lost
        fitted[key] = own
    for text in dropped:
        log.warning("load_state_dict: %s", text)
    return select_rank_state(fitted, driver.world, merge), dropped


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


def _convert(memory: HandleMemory, texts: Texts | None, own: State, driver: Driver) -> tuple[State, list[str]]:
    """Return one rank's stored state with the memory in the form of this composition, and what was dropped."""
    stored: Any = own
    for key in memory.path:
        stored = stored.get(key) if isinstance(stored, Mapping) else None
    if stored is None:
        return own, [f"the stored state has no memory of the {memory.kind}: it stays as it is"]
    present = memory.exchanger
    new = Exchanger(list(present.layers.values()), present.aggregators, seed=present.seed)
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
    dropped += new.take_over(old, int(own.get("step", 0)), driver.world)
    return _replace_at(own, memory.path, new.state_dict()), dropped


def _replace_at(own: State, path: Sequence[str], memory: State) -> dict[str, Any]:
    if not path:
        return {**own, **memory}
    return {**own, path[0]: _replace_at(own.get(path[0], {}), path[1:], memory)}
