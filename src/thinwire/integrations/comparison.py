"""Comparison over ranks: settings before the first step, weights every few steps; resynchronization from rank 0."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import AllGather, Broadcast, ConfigMismatch, DivergedError, GatheredPayloads, Label, Payload, Program
from .fingerprints import fingerprint
from .rank_agreement import gather_texts, list_ranks

Settings = Mapping[str, Any]
WRAP_AGAIN = "wrap the model in DDP again after unfreezing, and attach again"


def compare_settings(settings: Settings) -> Program[None]:
    """Compare plain settings over ranks.

    Raises:
        ConfigMismatch: On all ranks, with the first field that differs, its values and their ranks.
    """
    by_rank = [json.loads(text) for text in (yield from gather_texts(json.dumps(_flatten(settings))))]
    for field in dict.fromkeys(field for one in by_rank for field in one):
        values = [one.get(field, "nothing") for one in by_rank]
        if any(value != values[0] for value in values):
            raise ConfigMismatch(f"ranks differ in {field}: {_format_by_rank(values)}; pass the same on all ranks")


def _flatten(settings: Settings, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flatten(value, f"{prefix}{name}: ") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _format_by_rank(values: Sequence[Any]) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(json.dumps(value), []).append(rank)
    return ", ".join(f"{value} on {list_ranks(having)}" for value, having in ranks.items())


def announce_end() -> Program[None]:
    """Tell all ranks that this one has finished; a rank that requests anything else gets a ProtocolError."""
    yield AllGather(Payload((torch.ones(1, dtype=torch.uint8),)), (Label("", "the end of training", 1, 8.0),))


def compare_weights(
    names: Sequence[str],
    weights: Sequence[Tensor],
    step: int,
    *,
    stop: bool,
    idle: bool = False,
    unreduced: Collection[str] = (),
) -> Program[list[int]]:
    """Return the positions of the tensors that differ between ranks.

    Args:
        names: Names of the tensors.
        weights: The tensors.
        step: The step of the requests.
        stop: Raise DivergedError if there are any.
        idle: This rank has run out of inputs (Join) and does not make the others' steps; then nothing is compared.
        unreduced: The last of these names, which require gradients though DDP does not reduce them.
    """
    own = torch.cat([fingerprint(weights), torch.tensor([idle])])
    gathered: GatheredPayloads = yield AllGather(
        Payload((own,)), (Label("", "fingerprint", 8 * len(own), 64.0 * len(own)),), step
    )
    fingerprints = [payload.parts[0] for payload in gathered]
    if len({len(each) for each in fingerprints}) > 1:
        numbers = _format_by_rank([len(each) - 1 for each in fingerprints])
        raise DivergedError(
            f"step {step}: ranks have different numbers of parameters that require gradients: {numbers}; freeze and "
            f"unfreeze the same on all ranks. DDP does not reduce {shorten(unreduced) or 'those of other ranks'}: "
            f"{WRAP_AGAIN}"
        )
    by_rank = torch.stack(fingerprints)
    if by_rank[:, -1].any():
        return []
    differing: list[int] = (by_rank != by_rank[0]).any(dim=0).nonzero().flatten().tolist()
    if differing and stop:
        others = (by_rank[:, differing[0]] != by_rank[0, differing[0]]).nonzero().flatten().tolist()
        left_out = [names[at] for at in differing if names[at] in unreduced]
        remedy = f"DDP does not reduce {shorten(left_out)}: {WRAP_AGAIN}. " if left_out else ""
        raise DivergedError(
            f"step {step}: weights differ between ranks in {len(differing)} of {len(names)} parameters, first in "
            f"{names[differing[0]]} ({list_ranks(others)} against 0); "
            f'{remedy}on_divergence="resync" copies rank 0\'s weights instead of stopping'
        )
    return differing


def weights_differ(weights: Sequence[Tensor], step: int) -> Program[bool]:
    """Return whether any of these tensors differs between ranks."""
    own = fingerprint(weights).sum().reshape(1)
    gathered: GatheredPayloads = yield AllGather(Payload((own,)), (Label("", "fingerprint", 8, 64.0),), step)
    return len({payload.parts[0].item() for payload in gathered}) > 1


def shorten(names: Collection[str], max_names: int = 6) -> str:
    """Return the first of these names, for a message."""
    more = f", ... ({len(names)} in all)" if len(names) > max_names else ""
    return ", ".join(list(names)[:max_names]) + more


def resync_weights(
    names: Sequence[str], weights: Sequence[Tensor], positions: Sequence[int], step: int
) -> Program[None]:
    """Copy rank 0's tensors at these positions to all ranks; not during backward, which may need the old ones."""
    for at in positions:
        own = weights[at].detach()
        payload = yield Broadcast(
            Payload((own.contiguous().view(-1),)),
            0,
            (Label(names[at], "resync", own.nbytes, 8.0 * own.nbytes),),
            step,
        )
        own.copy_(payload.parts[0].view(own.shape))
