"""The options of `attach`, checked before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass

from torch.amp.grad_scaler import GradScaler

from ..catalog import SMALL
from ..core import check_choice, check_int, check_scaler, check_timeout

ON_DIVERGENCE = ("stop", "heal")
ZERO_MEANS = {"warmup_steps": "none", "small": "none", "check_every": "never", "most_bad_steps": "never"}


@dataclass(frozen=True)
class WireOptions:
    """What `attach` takes beside the composition."""

    scaler: GradScaler | None = None
    warmup_steps: int = 0
    small: int = SMALL
    seed: int = 0
    check_every: int = 100
    on_divergence: str = "stop"
    most_bad_steps: int = 10
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_scaler("attach", self.scaler)
        for name, zero in ZERO_MEANS.items():
            check_int("attach", name, getattr(self, name), 0, f"0 means {zero}")
        check_int("attach", "seed", self.seed)
        check_choice("attach", "on_divergence", self.on_divergence, ON_DIVERGENCE)
        check_timeout("attach", "timeout_s", self.timeout_s)
