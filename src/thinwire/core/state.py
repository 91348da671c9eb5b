"""States of parts as flat dicts of tensors and numbers, so that they can be stored without pickle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .errors import CheckpointError

Leaf: TypeAlias = Tensor | int | float | bool


def flatten_state(state: Any, prefix: str = "") -> dict[str, Leaf]:
    """{"residual": tensor, "inner.q": tensor, ...} for nested named tuples and mappings; {} for an empty state."""
    return dict(_leaves(state, prefix))


def _leaves(state: Any, prefix: str) -> Iterator[tuple[str, Leaf]]:
    if isinstance(state, Tensor | int | float):
        yield prefix, state
    elif isinstance(state, tuple | Mapping):
        for name, value in _items(state):
            yield from _leaves(value, f"{prefix}.{name}" if prefix else name)
    else:
        raise TypeError(
            f"state {prefix!r} is a {type(state).__name__}; a state must be a named tuple of tensors and numbers"
        )


def _items(state: tuple[Any, ...] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    if isinstance(state, Mapping):
        return list(state.items())
    names = getattr(state, "_fields", None) or tuple(map(str, range(len(state))))
    return list(zip(names, state, strict=True))


def _rebuild(form: Any, values: Sequence[Any]) -> Any:
    """The same kind of tuple or mapping with other values."""
    if isinstance(form, Mapping):
        return dict(zip(form, values, strict=True))
    return type(form)(*values) if hasattr(form, "_fields") else tuple(values)


def restore_state(form: Any, flat: Mapping[str, Leaf], prefix: str = "") -> Any:
    """A state of the same form as `form` with the stored values.

    Raises:
        CheckpointError: a value is missing or has another shape or type; the text names it.
    """
    if isinstance(form, Tensor | int | float):
        if prefix not in flat:
            raise CheckpointError(f"the stored state lacks {prefix!r}; it has {sorted(flat)}")
        return _like(form, flat[prefix], prefix)
    values = [restore_state(v, flat, f"{prefix}.{n}" if prefix else n) for n, v in _items(form)]
    return _rebuild(form, values)


def _like(form: Leaf, stored: Leaf, name: str) -> Leaf:
    if not isinstance(form, Tensor):
        return type(form)(stored)
    stored = torch.as_tensor(stored)
    if (stored.dtype, stored.shape) != (form.dtype, form.shape):
        ours = f"{tuple(form.shape)} {form.dtype}"
        raise CheckpointError(
            f"the stored state {name!r} is {tuple(stored.shape)} {stored.dtype}, this composition has {ours}"
        )
    return stored.detach().to(form.device).clone()


def require_keys(state: Mapping[str, Any], keys: Sequence[str], owner: str) -> None:
    """Raise CheckpointError unless a stored state has these keys."""
    if missing := [key for key in keys if key not in state]:
        have = ", ".join(map(str, state)) or "nothing"
        raise CheckpointError(f"the stored state lacks {', '.join(missing)}, which {owner} needs; it has {have}")


def mean_state(states: Sequence[Any]) -> Any:
    """One state for several ranks: means of tensors, so that residuals lose nothing; numbers of the first state."""
    first = states[0]
    if isinstance(first, Tensor):
        same = all(torch.equal(state, first) for state in states)
        if same or not first.is_floating_point():
            return first
        return (sum(state.double() for state in states) / len(states)).to(first.dtype)
    if not isinstance(first, tuple | Mapping):
        return first
    inside = [[value for _, value in _items(state)] for state in states]
    return _rebuild(first, [mean_state(members) for members in zip(*inside, strict=True)])
