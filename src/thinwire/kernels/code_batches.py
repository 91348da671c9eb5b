"""Codes of quantizers for all layers of a batch at once: their form, and what there is without C.

The definition is the quantizer's own code for one layer, applied to each (compressors/coded.py); so nothing is computed
here, and a quantizer is told that it must do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import Key, Payload
from .packing import packed_bytes


class Coding(IntEnum):
    """What a code is; numbered as in batched_codes.c."""

    LEVELS = 0  # qsgd_encode
    STEPS = 1  # uniform_encode, to the nearest
    RANDOM_STEPS = 2  # uniform_encode, stochastic
    POWERS = 3  # natural_encode_signed
    EXPONENTS = 4  # natural_encode and pack_signs
    SIGNS = 5  # sign_encode


_RANDOM = (Coding.LEVELS, Coding.RANDOM_STEPS, Coding.POWERS, Coding.EXPONENTS)


class CodeForm(NamedTuple):
    """How a quantizer codes a layer.

    bits: of a code. block: values that share a magnitude. limit: the window of POWERS, the largest of EXPONENTS.
    """

    coding: Coding
    bits: int = 8
    block: int = 1
    limit: int = 0

    @property
    def is_random(self) -> bool:
        """Whether codes depend on the key."""
        return self.coding in _RANDOM

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The types of the parts of a layer."""
        return _DTYPES.get(self.coding, (torch.uint8, torch.float32))

    def part_bytes(self, numel: int) -> tuple[int, ...]:
        """The bytes of the parts of a layer."""
        if self.coding == Coding.POWERS:
            return (numel,)
        if self.coding == Coding.EXPONENTS:
            return numel, packed_bytes(numel, 1)
        if self.coding == Coding.SIGNS:
            return packed_bytes(numel, 1), 4
        return packed_bytes(numel, self.bits), 4 * -(-numel // self.block)


_DTYPES = {Coding.POWERS: (torch.uint8,), Coding.EXPONENTS: (torch.uint8, torch.uint8)}


class CodedBatch(NamedTuple):
    """The codes of each layer.

    payload: the parts of each layer in turn. rests: what is not sent of each layer; None if there were no residuals.
    first_bad: the first layer with a tensor that is not finite, or -1; then the rest is void.
    """

    payload: Payload
    rests: list[Tensor] | None
    first_bad: int


def encode_codes_many(
    form: CodeForm, tensors: Sequence[Tensor], residuals: Sequence[Tensor] | None, keys: Sequence[Key]
) -> CodedBatch | None:
    """The codes of each layer, of the sums with the residuals if there are any; None if C cannot make them."""
    del form, tensors, residuals, keys
    return None


def mean_codes_many(form: CodeForm, payloads: Sequence[Payload], outs: Sequence[Tensor]) -> bool:
    """Write the mean of all ranks' codes of each layer to `outs`; a payload is that of `encode_codes_many`.

    Returns:
        False if C cannot read the payloads, or one of them is damaged; then `outs` are void.
    """
    del form, payloads, outs
    return False
