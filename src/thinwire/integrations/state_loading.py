"""Stored states: of which composition they are, and what a handle of another composition takes over from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..catalog import parse, part_text
from ..core import Aggregator, CheckpointError, CompositionError, ConfigMismatch, flatten_state, list_some, require_keys
from ..drivers.driver import Driver
from ..exchange import Exchanger
from .agreement import agree_on
from .state_gather import Merge, State, own_state

log = logging.getLogger("thinwire")

Texts = Mapping[str, str]
KINDS = ("composition", "moments")  # under these names a stored state says of what it is


class Memory(NamedTuple):
    """One exchanger of a handle, and where its memory is in a stored state."""

    kind: str  # one of KINDS
    texts: Texts  # of its composition
    exchanger: Exchanger
    path: tuple[str, ...]  # in one rank's state
    rules_of: Callable[[Texts], Mapping[str, Aggregator[Any]]]  # what texts like these mean, layer by layer


def memory_of(exchanger: Exchanger, *path: str) -> Memory:
    """The memory of a composition that is written layer by layer."""
    return Memory("composition", texts_of(exchanger.aggregators), exchanger, path, _rules_of)


def texts_of(rules: Mapping[str, Aggregator[Any]]) -> dict[str, str]:
    return {name: part_text(rule) for name, rule in rules.items()}


def _rules_of(texts: Texts) -> dict[str, Aggregator[Any]]:
    return {name: parse(text) for name, text in texts.items()}


def load_own(
    state: Mapping[str, Any], driver: Driver, merge: Merge, memories: Sequence[Memory], strict: bool
) -> tuple[State, list[str]]:
    """This rank's own of what a handle stored, and what had to be dropped; all ranks call this alike.

    Raises:
        ConfigMismatch: ranks were given states of different moments, or strict and it is of another composition.
        CheckpointError: something is missing.
    """
    ranks = {key: value for key, value in state.items() if key.startswith("rank") and isinstance(value, Mapping)}
    told = {kind: state[kind] for kind in KINDS if kind in state}
    moment = {"world_size": state.get("world_size"), "step": sorted({int(v.get("step", -1)) for v in ranks.values()})}
    driver.run(agree_on({"stored": moment | told, "strict": strict}))
    if state.get("world_size") is None or not ranks:
        raise CheckpointError(
            f"load_state_dict: this is no state of a handle: it has {list_some(sorted(map(str, state))) or 'nothing'}; "
            "give what state_dict() of attach, local or moments.average gave"
        )
    if strict:
        _compare(told, memories)
        return own_state(state, driver.world, merge), []
    fitted, dropped = dict(state), _unknown(told, memories)
    for at, (key, own) in enumerate(sorted(ranks.items())):
        for memory in memories:
            own, lost = _fitted(memory, told.get(memory.kind), own, driver)
            dropped += [] if at else lost
        fitted[key] = own
    for text in dropped:
        log.warning("load_state_dict: %s", text)
    return own_state(fitted, driver.world, merge), dropped


def _compare(told: Mapping[str, Texts], memories: Sequence[Memory]) -> None:
    """States of before they said of what they are have nothing to compare."""
    if not told:
        return
    ours = {memory.kind: memory.texts for memory in memories}
    for kind in KINDS:
        then, now = told.get(kind, {}), ours.get(kind, {})
        odd = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        if odd:
            others = f" ({len(odd) - 1} more differ)" if len(odd) > 1 else ""
            raise ConfigMismatch(
                f"load_state_dict: the stored state is of another composition: {odd[0]} was {then.get(odd[0])}, "
                f"here it is {now.get(odd[0])}{others}; use the stored one, or load_state_dict(state, strict=False), "
                "which takes over what fits and says what it drops"
            )


def _unknown(told: Mapping[str, Texts], memories: Sequence[Memory]) -> list[str]:
    have = {memory.kind for memory in memories}
    return [f"the stored memory of the {kind} is dropped: this handle has none" for kind in told if kind not in have]


def _fitted(memory: Memory, texts: Texts | None, own: State, driver: Driver) -> tuple[State, list[str]]:
    """One rank's stored state with the memory as this composition would have it."""
    stored: Any = own
    for key in memory.path:
        stored = stored.get(key) if isinstance(stored, Mapping) else None
    if stored is None:
        return own, [f"the stored state has no memory of the {memory.kind}: it stays as it is"]
    ours = memory.exchanger
    fresh = Exchanger(list(ours.layers.values()), ours.aggregators, seed=ours.seed)
    try:
        rules = dict(ours.aggregators) if texts is None else dict(memory.rules_of(texts))
    except CompositionError as error:
        raise CheckpointError(
            f"load_state_dict: the stored composition cannot be read here, so its memory cannot be taken over: {error}"
        ) from error
    require_keys(stored, ("layers",), "the memory of a handle")
    both = [spec for spec in ours.layers.values() if spec.name in rules and spec.name in stored["layers"]]
    old = Exchanger(both, {spec.name: rules[spec.name] for spec in both}, seed=ours.seed)
    dropped = old.load_matching(stored)
    new = [name for name in ours.layers if name not in old.layers and flatten_state(fresh.states[name])]
    dropped += [f"the stored state has nothing of {list_some(new)}: its memory begins empty"] if new else []
    dropped += fresh.take_over(old, int(own.get("step", 0)), driver.world)
    return _placed(own, memory.path, fresh.state_dict()), dropped


def _placed(own: State, path: Sequence[str], memory: State) -> dict[str, Any]:
    if not path:
        return {**own, **memory}
    return {**own, path[0]: _placed(own.get(path[0], {}), path[1:], memory)}
