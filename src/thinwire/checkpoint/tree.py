"""Nested states as a JSON tree and tensors by name, and back.

Lists, strings, finite numbers, booleans and None are JSON's. Everything else is an object with one key:
{"dict": {...}}, {"items": [[key, value], ...]} if a key is no string, {"tuple": [...]}, {"tensor": name},
{"float": "nan"}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..core import CheckpointError
from .files import CODES

MAX_DEPTH = 64  # deeper than any state_dict, and far below the recursion limit
MAX_INT_BITS = 4096  # JSON readers refuse longer numbers


class TensorTable:
    """Tensors by unique names."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def add(self, tensor: Tensor, field: str) -> str:
        """The name under which a tensor is stored; equal views of one memory are stored once."""
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta:
            raise _cannot_store(field, f"{type(tensor).__name__} on {tensor.device} ({tensor.layout})", "dense tensors")
        if tensor.dtype not in CODES:
            raise _cannot_store(
                field, f"tensor of {tensor.dtype}", "real numbers and booleans; torch.view_as_real helps"
            )
        tensor = tensor.detach()
        view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.is_neg())
        if tensor.numel() and view in self._names:
            return self._names[view]
        name, count = field.encode(errors="backslashreplace").decode(), 1
        while name in self.tensors or name == "__metadata__":  # reserved by safetensors
            count += 1
            name = f"{field}#{count}".encode(errors="backslashreplace").decode()
        self._names[view] = name
        self.tensors[name] = tensor
        return name


def encode(state: Mapping[Any, Any]) -> tuple[Any, dict[str, Tensor]]:
    """(tree, tensors by name) of a state; what cannot be stored is a CheckpointError that names its field."""
    if not isinstance(state, Mapping):
        raise CheckpointError(f"checkpoint: the state must be a dict, got a {type(state).__name__}")
    table = TensorTable()
    return _encode(state, "", 0, table), table.tensors


def _encode(value: Any, field: str, depth: int, table: TensorTable) -> Any:
    if depth > MAX_DEPTH:
        raise CheckpointError(f"checkpoint: {field[:80]!r}... is nested deeper than {MAX_DEPTH}; does it hold itself?")
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):  # bool is one, too
        if value.bit_length() > MAX_INT_BITS:
            raise _cannot_store(field, f"whole number of {value.bit_length()} bits", f"at most {MAX_INT_BITS}")
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, Tensor):
        return {"tensor": table.add(value, field)}
    if isinstance(value, Mapping):
        return _encode_mapping(value, field, depth, table)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        nodes = [_encode(v, _inside(field, i), depth + 1, table) for i, v in enumerate(value)]
        return nodes if isinstance(value, list) else {"tuple": nodes}
    kinds = "tensors, numbers, strings, None, and dicts, lists and tuples of such; thinwire.core.flatten_state helps"
    raise _cannot_store(field, type(value).__name__, kinds)


def _encode_mapping(value: Mapping[Any, Any], field: str, depth: int, table: TensorTable) -> Any:
    if odd := [key for key in value if not isinstance(key, str | int)]:
        raise _cannot_store(_inside(field, odd[0]), f"key of type {type(odd[0]).__name__}", "strings and whole numbers")
    nodes = [(key, _encode(v, _inside(field, key), depth + 1, table)) for key, v in value.items()]
    if all(isinstance(key, str) for key, _ in nodes):
        return {"dict": dict(nodes)}
    return {"items": [[key, node] for key, node in nodes]}


def decode(tree: Any, tensors: Mapping[str, Tensor]) -> dict[Any, Any]:
    """The state that `encode` was given; ValueError, naming the field, if `encode` cannot have written this."""
    used: set[str] = set()
    state = _decode(tree, "state", 0, tensors, used)
    if not isinstance(state, dict):
        raise ValueError("field 'state' is not a dict")
    if odd := sorted(tensors.keys() - used):
        raise ValueError(f"field 'state' does not use the tensor {odd[0]!r}")
    return state


def _decode(node: Any, field: str, depth: int, tensors: Mapping[str, Tensor], used: set[str]) -> Any:
    def inner(key: Any, child: Any) -> Any:
        return _decode(child, _inside(field, key), depth + 1, tensors, used)

    def tensor(name: str) -> Tensor:
        if name not in tensors:
            raise ValueError(f"field {field!r} uses the tensor {name!r}, which is missing")
        if tensors[name].dtype not in CODES:
            raise ValueError(f"field {field!r} is a tensor of {tensors[name].dtype}, which is never written")
        used.add(name)
        return tensors[name]

    if depth > MAX_DEPTH:
        raise ValueError(f"field {field[:80]!r}... is nested deeper than {MAX_DEPTH}")
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, list):
        return [inner(i, child) for i, child in enumerate(node)]
    readers: dict[str, tuple[type, Callable[[Any], Any]]] = {
        "tensor": (str, tensor),
        "dict": (dict, lambda nodes: {key: inner(key, child) for key, child in nodes.items()}),
        "items": (list, lambda pairs: {_key(pair, field): inner(pair[0], pair[1]) for pair in pairs}),
        "tuple": (list, lambda nodes: tuple(inner(i, child) for i, child in enumerate(nodes))),
        "float": (str, lambda text: _not_finite(text, field)),
    }
    for tag, content in node.items() if len(node) == 1 else ():
        kind, read = readers.get(tag, (type(None), repr))
        if isinstance(content, kind) and tag in readers:
            return read(content)
    raise ValueError(f"field {field!r} is none of {', '.join(readers)}")


def _key(pair: Any, field: str) -> str | int:
    if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str | int):
        return pair[0]
    raise ValueError(f"field {field!r} has an item that is not a pair of a key and a value")


def _not_finite(text: str, field: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f"field {field!r} is the float {text[:20]!r}; nan, inf and -inf are written that way")
    return float(text)


def _inside(field: str, key: Any) -> str:
    return f"{field}.{key}" if field else str(key)


def _cannot_store(field: str, got: str, allowed: str) -> CheckpointError:
    return CheckpointError(f"checkpoint: field {field!r} is a {got}; it can store {allowed}")
