"""Type hints of settings."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin


def union_members(hint: Any) -> tuple[Any, ...]:
    """The member types of a union; of another type, itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
