"""Learning rates as configs write them: a number, or a share of 1/L where a task knows its smoothness L."""

from __future__ import annotations

import re
from typing import Any

from ..tables import ConfigError, check_positive

_OVER_L = re.compile(r"([0-9.]+)/L")


def check_learning_rate(lr: Any, key: str) -> None:
    if isinstance(lr, str) and not _OVER_L.fullmatch(lr):
        raise ConfigError(f'{key}: a number, or text such as "1/L" or "0.5/L", got {lr!r}')
    if not isinstance(lr, str):
        check_positive(key, lr)


def resolve_learning_rate(lr: float | str, smoothness: float | None, key: str = "lr") -> float:
    """A learning rate as a number."""
    if not isinstance(lr, str):
        return float(lr)
    match = _OVER_L.fullmatch(lr)
    if match is None or smoothness is None:
        raise ConfigError(f"{key}: {lr!r} needs a task that knows its smoothness L (logistic does); give a number")
    return float(match[1]) / smoothness
