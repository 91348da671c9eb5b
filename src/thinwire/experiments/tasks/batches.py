"""Which examples a step's batch has: a pure function of (seed, rank, step)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...core import Key, derive_key
from ...kernels.reference import noise16, noise32

_CPU = torch.device("cpu")


def batch_positions(step: int, batch: int, count: int, seed: int, rank: int) -> Tensor:
    """Positions below `count` of the step's examples: epochs follow one another, each in an order of its own.

    Every example comes once an epoch; a batch may end one epoch and begin the next, and may be larger than `count`.
    """
    begin, end = step * batch, (step + 1) * batch
    pieces = []
    while begin < end:
        epoch, at = divmod(begin, count)
        stop = min(count, at + end - begin)
        pieces.append(order(derive_key(seed, "order", rank, epoch), count)[at:stop])
        begin += stop - at
    return torch.cat(pieces)


@lru_cache(maxsize=64)
def order(key: Key, count: int) -> Tensor:
    """A permutation of `count` positions; do not change it."""
    return noise32(key, count, _CPU).argsort()  # all words differ, so that the order is the only one


def cropped_and_flipped(images: Tensor, key: Key, edge: int = 4) -> Tensor:
    """Each image moved by up to `edge` pixels, black coming in, and mirrored or not."""
    count, channels, height, width = images.shape
    draws = noise16(key, 3 * count, _CPU).view(3, count).long()
    down, right = draws[0] % (2 * edge + 1), draws[1] % (2 * edge + 1)
    rows = down[:, None] + torch.arange(height)  # (count, height), in the padded image
    columns = right[:, None] + torch.arange(width)
    columns = torch.where((draws[2] & 1).bool()[:, None], columns.flip(1), columns)
    padded = torch.nn.functional.pad(images, (edge, edge, edge, edge))
    every, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[None, :, None, None]
    return padded[every, channel, rows[:, None, :, None], columns[:, None, None, :]]


class Crop(NamedTuple):
    """A rectangle of an image, in pixels from its left upper corner."""

    left: float
    top: float
    right: float
    bottom: float
    mirrored: bool = False


DRAWS = 6  # 16-bit words that a crop takes


def crop_draws(key: Key, count: int) -> list[list[int]]:
    """What `drawn_crop` takes, for each of `count` images."""
    return noise16(key, DRAWS * count, _CPU).view(count, DRAWS).tolist()


def drawn_crop(width: int, height: int, draws: Sequence[int]) -> Crop:
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
