"""The error after many steps with a NaN or an infinity, with advice from the loss scale and the dtypes in use."""

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

LARGE_SCALE = 2.0**16  # the default initial scale of a GradScaler


class NonFiniteMonitor:
    """Raises NonFiniteError after too many consecutive bad steps (or rounds), with advice.

    Args:
        model: The model; its first forward pass shows whether autocast is in use.
        layers: The specs of its parameters.
        option: The name of the argument that limits the steps.
        scaler: The GradScaler that was passed to `attach`.
        scaler_remedy: What to do about a GradScaler that was not passed; "" if there is nothing to do.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[TensorSpec],
        option: str,
        scaler: GradScaler | None = None,
        scaler_remedy: str = "",
    ) -> None:
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.option, self.scaler_remedy = option, scaler_remedy
        self.float16_weights = any(layer.dtype == torch.float16 for layer in layers)
        self.autocast = AutocastProbe(model)
        self._has_warned = False

    def check(self, step: int, consecutive: int, limit: int) -> None:
        """Raise NonFiniteError at the limit (0: no limit); at the first bad step, warn of an unknown GradScaler."""
        if consecutive == 1:
            self._warn_of_scaler()
        if limit and consecutive >= limit:
            raise NonFiniteError(
                f"step {step}: {limit} consecutive {self.option.rpartition('_')[2]} had a NaN or an infinity on some "
                f"rank; the log of that rank names the parameters. {self.advice()}"
            )

    def _warn_of_scaler(self) -> None:
        if (
            self.scaler is None
            and self.scaler_remedy
            and not self._has_warned
            and (scale := find_loss_scale()) is not None
        ):
            self._has_warned = True
            warnings.warn(f"thinwire: {self._describe_unknown(scale)}", stacklevel=2)

    def advice(self) -> str:
        """Return what to do, from the scale and the dtypes in use."""
        if self.scaler is not None:
            return self._advise_known(self.scaler.get_scale())
        and_remedy = f", and {self.scaler_remedy}" if self.scaler_remedy else ""
        if (scale := find_loss_scale()) is not None:
            return f"{self._describe_unknown(scale)}. {self._advise_scale(scale) or self._advise_training()}"
        if self.float16_weights:
            return (
                "Some parameters are float16 (at most 65504): use bfloat16, or float32 parameters under "
                f"autocast with a GradScaler{and_remedy}"
            )
        if self.autocast.float16:
            return (
                f"The model runs under autocast(float16) and no GradScaler is in use: use one{and_remedy}; or autocast "
                "to bfloat16, which needs none"
            )
        return self._advise_training()

    def _advise_known(self, scale: float) -> str:
        if scale > LARGE_SCALE:
            return f"The GradScaler's scale is {_power(scale)} and still decreasing. {self._advise_scale(scale)}"
        return f"The GradScaler's scale is {_power(scale)}, so it is probably not the cause. {self._advise_training()}"

    def _describe_unknown(self, scale: float) -> str:
        what = f"A GradScaler with scale {_power(scale)} is in use"
        return f"{what} and was not passed to thinwire: {self.scaler_remedy}" if self.scaler_remedy else what

    def _advise_scale(self, scale: float) -> str:
        start = f"Start with GradScaler(init_scale={LARGE_SCALE:.0f}), or raise {self.option}"
        return start if scale > LARGE_SCALE else ""

    def _advise_training(self) -> str:
        return f"Lower the learning rate, clip gradients, or raise {self.option}"


def find_loss_scale() -> float | None:
    """Return the largest scale of all GradScalers of this process that have been used; None if there are none.

    Searches all objects, because neither model nor optimizer refers to a scaler; so only for errors and warnings.
    """
    found = [each for each in gc.get_objects() if issubclass(type(each), GradScaler)]
    scales = [each.get_scale() for each in found if each.is_enabled() and has_scaled(each)]
    return max(scales, default=None)


def _power(scale: float) -> str:
    exponent = math.log2(scale) if scale > 0 else 0.5
    return f"2^{exponent:.0f}" if exponent.is_integer() and abs(exponent) > 6 else f"{scale:g}"


class AutocastProbe:
    """Whether a model is trained under autocast(float16); a hook tests it in one forward pass and removes itself."""

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
