"""Which piece of a large image is taken: drawn from a key to train, the middle to measure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from thinwire.core import Key
from thinwire.kernels.reference import noise16

from ..data.folders import Crop

DRAWS = 6  # 16-bit words that a crop takes


def draw_crop_numbers(key: Key, count: int) -> list[list[int]]:
    """What `drawn_crop` takes, for each of `count` images."""
    return noise16(key, DRAWS * count, torch.device("cpu")).view(count, DRAWS).tolist()


def random_crop(width: int, height: int, draws: Sequence[int]) -> Crop:
    """8 to 100 % of the area, up to a third wider than high or higher than wide, anywhere inside, mirrored or not.

    Where so large a piece of that form does not fit, the largest that does. Roots and products only, no powers: every
    processor then cuts the same piece.
    """
    area, form, upright, right, down, mirrored = draws
    ratio = 1 + form / 65535 / 3
    ratio = 1 / ratio if upright & 1 else ratio
    wide = min(math.sqrt((0.08 + 0.92 * area / 65535) * width * height * ratio), width, height * ratio)
    w, h = (min(most, max(1, round(side))) for side, most in ((wide, width), (wide / ratio, height)))
    left, top = right * (width - w + 1) >> 16, down * (height - h + 1) >> 16
    return Crop(left, top, left + w, top + h, bool(mirrored & 1))


def central_crop(width: int, height: int) -> Crop:
    """The square in the middle, seven eighths of the shorter side: as 224 pixels out of 256."""
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return Crop(left, top, left + side, top + side)
