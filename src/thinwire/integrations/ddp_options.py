"""The options of `attach`, checked before any connection is opened."""

from __future__ import annotations

from dataclasses import dataclass

from torch.amp.grad_scaler import GradScaler

from ..catalog import DENSE_BELOW
from ..core import check_choice, check_int, check_scaler, check_timeout

ON_DIVERGENCE = ("stop", "resync")
ZERO_MEANS = {
    "warmup_steps": "0 compresses from the first step on", "dense_below": "0 compresses all matrices",
    "check_weights_every": "0 disables the comparison", "max_bad_steps": "0 disables the limit",
}  # fmt: skip


@dataclass(frozen=True)
class DDPOptions:
    """The arguments of `attach` other than model and composition."""

    scaler: GradScaler | None = None
    warmup_steps: int = 0
    dense_below: int = DENSE_BELOW
    seed: int = 0
    check_weights_every: int = 100
    on_divergence: str = "stop"
    max_bad_steps: int = 10
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_scaler("attach", self.scaler)
        for name, zero in ZERO_MEANS.items():
            check_int("attach", name, getattr(self, name), 0, zero)
        check_int("attach", "seed", self.seed)
        check_choice("attach", "on_divergence", self.on_divergence, ON_DIVERGENCE)
        check_timeout("attach", "timeout_s", self.timeout_s)
