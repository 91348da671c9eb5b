"""Type hints of settings, taken apart."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin


def union_members(hint: Any) -> tuple[Any, ...]:
    """The types a union has, or the one that it is."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
