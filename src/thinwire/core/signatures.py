"""Signatures of parts that are not in the catalog: class path and settings as a text, for comparison between ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor

from .errors import CompositionError

MAX_CHARACTERS = 200  # of a signature; a longer one is replaced by a digest

Known = Callable[[Any], str | None]


def signature_of(part: Any, known: Known = lambda part: None) -> str:
    """A text that is equal on all ranks for the same class and settings: "package.MyTopK(density=0.01)".

    A part that is no dataclass must have a method `signature() -> str`: the default `repr` contains an address, which
    differs between ranks.

    Args:
        part: any part.
        known: gives the text of a part that has one in the catalog, else None.
    """
    text = _instance(part, known)
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{_path(type(part))}(#{hashlib.sha256(text.encode()).hexdigest()[:16]})"


def _instance(part: Any, known: Known) -> str:
    path = _path(type(part))
    if callable(own := getattr(part, "signature", None)):
        return f"{path}({own()})"
    if is_dataclass(part):
        named = {field.name: getattr(part, field.name) for field in fields(part) if field.repr}
        return f"{path}({', '.join(f'{name}={_value(value, known)}' for name, value in named.items())})"
    raise CompositionError(
        f"{path} is neither in the catalog nor a dataclass, so ranks cannot compare its settings; make it a frozen "
        "dataclass, or give it a method signature() that returns its settings as a text"
    )


def _value(value: Any, known: Known) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, torch.dtype | torch.device | torch.Size):
        return str(value)
    if isinstance(value, Enum):
        return f"{_path(type(value))}.{value.name}"
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return _path(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(_value(each, known) for each in value)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_value(each, known) for each in value))}}}"
    if isinstance(value, Mapping):
        pairs = (f"{_value(name, known)}: {_value(each, known)}" for name, each in value.items())
        return f"{{{', '.join(sorted(pairs))}}}"
    if isinstance(value, Tensor):
        raw = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"tensor({value.dtype}, {list(value.shape)}, #{hashlib.sha256(raw).hexdigest()[:16]})"
    text = known(value)
    return _instance(value, known) if text is None else text


def _path(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
