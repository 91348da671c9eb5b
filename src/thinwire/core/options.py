"""Checks of arguments of `attach`, `local` and `moments`: errors name the argument, its value and what works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .errors import CompositionError
from .suggestions import did_you_mean

MIN_TIMEOUT_S, MAX_TIMEOUT_S = 1e-3, 1e9  # connections count milliseconds


def check_int(caller: str, name: str, value: Any, min_value: int | None = None, hint: str = "") -> None:
    """Require an integer, not a bool, of at least `min_value`. hint: what a usual value means, for the error."""
    expected = "a whole number" if min_value is None else f"a whole number, at least {min_value}"
    if type(value) is not int or (min_value is not None and value < min_value):
        raise CompositionError(f"{caller}: {name} must be {expected}, got {value!r}{'; ' if hint else ''}{hint}")


def check_number(caller: str, name: str, value: Any, hint: str = "") -> None:
    """Require a finite number, not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CompositionError(f"{caller}: {name} must be a finite number, got {value!r}{'; ' if hint else ''}{hint}")


def check_timeout(caller: str, name: str, value: Any) -> None:
    """Require a number of seconds that sockets accept."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not MIN_TIMEOUT_S <= value <= MAX_TIMEOUT_S:  # false for NaN, too
        raise CompositionError(
            f"{caller}: {name} must be a number of seconds from {MIN_TIMEOUT_S:g} to {MAX_TIMEOUT_S:g}, got {value!r}; "
            "60 is usual; it must be longer than saving a checkpoint takes"
        )


def check_choice(caller: str, name: str, value: Any, known: Sequence[str]) -> None:
    """Require one of the known texts."""
    if not isinstance(value, str) or value not in known:
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise CompositionError(f"{caller}: {name} must be one of {', '.join(known)}, got {value!r}{hint}")


def check_flag(caller: str, name: str, value: Any) -> None:
    """Require True or False."""
    if type(value) is not bool:
        raise CompositionError(f"{caller}: {name} must be True or False, got {value!r}")


def check_scaler(caller: str, scaler: Any) -> None:
    """Require None or an object with the loss scale of `torch.amp.GradScaler`."""
    has_scale = all(callable(getattr(scaler, name, None)) for name in ("get_scale", "is_enabled"))
    if scaler is not None and (isinstance(scaler, type) or not has_scale):
        raise CompositionError(f"{caller}: scaler must be a torch.amp.GradScaler or None, got {scaler!r}")
