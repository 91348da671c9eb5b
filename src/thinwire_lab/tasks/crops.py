"""Crops of large images: random ones for training (Szegedy et al., 2015), the center for evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from thinwire.core import Key
from thinwire.kernels.reference import noise16

from ..data.folders import Crop

DRAWS = 6  # 16-bit random words per crop


def draw_crop_numbers(key: Key, count: int) -> list[list[int]]:
    """What `drawn_crop` takes, for each of `count` images."""
    return noise16(key, DRAWS * count, torch.device("cpu")).view(count, DRAWS).tolist()


def random_crop(width: int, height: int, draws: Sequence[int]) -> Crop:
    """A crop with 8 to 100 % of the area and an aspect ratio from 3:4 to 4:3 at a random position, mirrored or not.

    A crop that does not fit is reduced to the largest that does. Uses only roots and products, no powers, so that every
    processor chooses the same crop.
    """
    area, form, upright, right, down, mirrored = draws
    ratio = 1 + form / 65535 / 3
    ratio = 1 / ratio if upright & 1 else ratio
    wide = min(math.sqrt((0.08 + 0.92 * area / 65535) * width * height * ratio), width, height * ratio)
    w, h = (min(limit, max(1, round(side))) for side, limit in ((wide, width), (wide / ratio, height)))
    left, top = right * (width - w + 1) >> 16, down * (height - h + 1) >> 16
    return Crop(left, top, left + w, top + h, bool(mirrored & 1))


def central_crop(width: int, height: int) -> Crop:
    """The center square with 7/8 of the shorter side, as 224 of 256 pixels."""
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return Crop(left, top, left + side, top + side)
