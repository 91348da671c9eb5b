"""The error after many steps with a NaN or an infinity, with advice by what was seen of loss scales and float16."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from ..core import NonFiniteError, TensorSpec
from ..core.torch_private import has_scaled

LARGE_SCALE = 2.0**16  # where a GradScaler begins unless told otherwise


class BadSteps:
    """Counts nothing itself: it is told how many steps (or rounds) in a row were bad, and advises or raises.

    option: the name of the setting that limits them. scaler: the one that was given to `attach`. give: what to do with
    a GradScaler that was not given, if anything.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[TensorSpec],
        option: str,
        scaler: GradScaler | None = None,
        give: str = "",
    ) -> None:
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.option, self.give = option, give
        self.float16_weights = any(layer.dtype == torch.float16 for layer in layers)
        self.autocast = AutocastWatch(model)
        self._has_warned = False

    def check(self, step: int, in_a_row: int, most: int) -> None:
        """Raise NonFiniteError if so many are too many; at the first, warn of a GradScaler that is not known."""
        if in_a_row == 1:
            self._warn_of_scaler()
        if most and in_a_row >= most:
            raise NonFiniteError(
                f"step {step}: {most} {self.option.rpartition('_')[2]} in a row had a NaN or an infinity on some rank; "
                f"the log of that rank names the parameters. {self.advice()}"
            )

    def _warn_of_scaler(self) -> None:
        if self.scaler is None and self.give and not self._has_warned and (scale := scale_in_use()) is not None:
            self._has_warned = True
            warnings.warn(f"thinwire: {self._unknown(scale)}", stacklevel=2)

    def advice(self) -> str:
        """What to do, by what was seen."""
        if self.scaler is not None:
            return self._known(self.scaler.get_scale())
        and_give = f", and {self.give}" if self.give else ""
        if (scale := scale_in_use()) is not None:
            return f"{self._unknown(scale)}. {self._too_large(scale) or self._slower()}"
        if self.float16_weights:
            return (
                "Some parameters are float16, which ends at 65504: use bfloat16, or float32 parameters under autocast "
                f"with a GradScaler{and_give}"
            )
        if self.autocast.float16:
            return (
                f"The model runs under autocast(float16) and no GradScaler is in use: use one{and_give}; or autocast "
                "to bfloat16, which needs none"
            )
        return self._slower()

    def _known(self, scale: float) -> str:
        if scale > LARGE_SCALE:
            return f"The GradScaler's scale is {_power(scale)} and still coming down. {self._too_large(scale)}"
        return f"The GradScaler's scale has come down to {_power(scale)}, so it is hardly the cause. {self._slower()}"

    def _unknown(self, scale: float) -> str:
        what = f"A GradScaler with scale {_power(scale)} is in use"
        return f"{what}, and was not given here: {self.give}" if self.give else what

    def _too_large(self, scale: float) -> str:
        start = f"Start with GradScaler(init_scale={LARGE_SCALE:.0f}), or raise {self.option}"
        return start if scale > LARGE_SCALE else ""

    def _slower(self) -> str:
        return f"Lower the learning rate, clip gradients, or raise {self.option}"


def scale_in_use() -> float | None:
    """The largest scale of all GradScalers of this process that have scaled something; None if there are none.

    A look at all objects, because a scaler leaves no trace on a model or an optimizer: for errors and warnings only.
    """
    found = [each for each in gc.get_objects() if issubclass(type(each), GradScaler)]
    scales = [each.get_scale() for each in found if each.is_enabled() and has_scaled(each)]
    return max(scales, default=None)


def _power(scale: float) -> str:
    exponent = math.log2(scale) if scale > 0 else 0.5
    return f"2^{exponent:.0f}" if exponent.is_integer() and abs(exponent) > 6 else f"{scale:g}"


class AutocastWatch:
    """Whether a model's training runs under autocast(float16): looked at in one forward pass, then the hook is gone."""

    def __init__(self, model: nn.Module) -> None:
        self.float16 = False
        self._handle = model.register_forward_pre_hook(self)

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self._handle.remove()
            kinds = {"cpu"} | {p.device.type for p in module.parameters()}
            self.float16 = any(
                torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16 for kind in kinds
            )
