"""Averaging of sparse (COO) embedding gradients: the rows that any rank has are gathered, uncompressed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core import AllGather, GatheredPayloads, Label, Payload, Program, World, all_finite


def average_sparse_rows(gradient: Tensor, name: str, world: World, step: int) -> Program[tuple[Tensor, bool]]:
    """Return the average of sparse gradients, and whether any rank's had a NaN or an infinity."""
    own = gradient.coalesce()
    bad = not all_finite(own.values())
    rows, values = own.indices(), own.values()
    parts = (rows.contiguous(), values.contiguous(), torch.tensor([bad], dtype=torch.uint8))
    labels = tuple(
        Label(name, kind, part.nbytes, 8.0 * part.nbytes)
        for kind, part in zip(("indices", "values", "flag"), parts, strict=True)
    )
    flat = Payload(tuple(part.flatten() for part in parts))
    max_rows = math.prod(gradient.shape[: rows.shape[0]])
    max_bytes = max_rows * rows.shape[0] * rows.element_size() + gradient.numel() * values.element_size()
    gathered: GatheredPayloads = yield AllGather(flat, labels, step, expected_bytes=max_bytes)
    any_bad = any(bool(payload.parts[2].any()) for payload in gathered)
    total = torch.sparse_coo_tensor(
        torch.cat([payload.parts[0].view(rows.shape[0], -1) for payload in gathered], dim=1),
        torch.cat([payload.parts[1].view(-1, *values.shape[1:]) for payload in gathered]) / world.size,
        gradient.shape,
    )
    return total.coalesce(), any_bad
