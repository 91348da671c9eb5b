"""Learning rates of configs: a number, or a multiple of 1/L for tasks with a known smoothness L."""

from __future__ import annotations

import re
from typing import Any

from ..tables import ConfigError, check_positive

_OVER_L = re.compile(r"([0-9.]+)/L")


def check_learning_rate(lr: Any, key: str) -> None:
    """Raise ConfigError unless lr is a positive number or a text such as "1/L"."""
    if isinstance(lr, str) and not _OVER_L.fullmatch(lr):
        raise ConfigError(f'{key}: must be a number or a text such as "1/L" or "0.5/L", got {lr!r}')
    if not isinstance(lr, str):
        check_positive(key, lr)


def resolve_learning_rate(lr: float | str, smoothness: float | None, key: str = "lr") -> float:
    """The learning rate as a number."""
    if not isinstance(lr, str):
        return float(lr)
    match = _OVER_L.fullmatch(lr)
    if match is None or smoothness is None:
        raise ConfigError(f"{key}: {lr!r} needs a task with a known smoothness L, such as logistic; use a number")
    return float(match[1]) / smoothness
