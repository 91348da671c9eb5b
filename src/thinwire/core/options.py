"""Checks of options, alike for `attach`, `local` and `moments`: errors name the option, its value and what works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .errors import CompositionError
from .suggestions import did_you_mean

MIN_TIMEOUT_S, MAX_TIMEOUT_S = 1e-3, 1e9  # connections count milliseconds


def check_int(caller: str, name: str, value: Any, least: int | None = None, hint: str = "") -> None:
    """A whole number, not a bool, and at least `least`. hint: what a usual value means, for the error."""
    wanted = "a whole number" if least is None else f"a whole number, at least {least}"
    if type(value) is not int or (least is not None and value < least):
        raise CompositionError(f"{caller}: {name} must be {wanted}, got {value!r}{'; ' if hint else ''}{hint}")


def check_number(caller: str, name: str, value: Any, hint: str = "") -> None:
    """A finite number, not a bool."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CompositionError(f"{caller}: {name} must be a finite number, got {value!r}{'; ' if hint else ''}{hint}")


def check_timeout(caller: str, name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not MIN_TIMEOUT_S <= value <= MAX_TIMEOUT_S:  # false for NaN, too
        raise CompositionError(
            f"{caller}: {name} must be a number of seconds from {MIN_TIMEOUT_S:g} to {MAX_TIMEOUT_S:g}, got {value!r}; "
            "60 is usual, and longer than saving a checkpoint takes"
        )


def check_choice(caller: str, name: str, value: Any, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        meant = did_you_mean(value, known) if isinstance(value, str) else ""
        raise CompositionError(f"{caller}: {name} must be one of {', '.join(known)}, got {value!r}{meant}")


def check_flag(caller: str, name: str, value: Any) -> None:
    if type(value) is not bool:
        raise CompositionError(f"{caller}: {name} must be True or False, got {value!r}")


def check_scaler(caller: str, scaler: Any) -> None:
    """None, or what has a loss scale as `torch.amp.GradScaler` has it."""
    has_scale = all(callable(getattr(scaler, name, None)) for name in ("get_scale", "is_enabled"))
    if scaler is not None and (isinstance(scaler, type) or not has_scale):
        raise CompositionError(
            f"{caller}: scaler must be your torch.amp.GradScaler, got {scaler!r}; leave it out if you use none"
        )
