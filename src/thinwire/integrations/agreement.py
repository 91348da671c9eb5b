"""Do all ranks mean the same? Settings are compared before the first step, weights now and then."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import (
    AllGather,
    Broadcast,
    ConfigMismatch,
    DivergedError,
    GatheredPayloads,
    Label,
    Payload,
    Program,
)

Facts = Mapping[str, Any]
WRAP_AGAIN = "wrap the model in DDP again after unfreezing, and attach again"


def agree_on(facts: Facts) -> Program[None]:
    """Compare plain facts over ranks; a ConfigMismatch on every rank names the field, the values and who has them."""
    text = json.dumps(_flat(facts)).encode()
    mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    gathered: GatheredPayloads = yield AllGather(Payload((mine,)), (Label("", "settings", len(text), 8.0 * len(text)),))
    by_rank = [json.loads(bytes(payload.parts[0].tolist())) for payload in gathered]
    for field in dict.fromkeys(field for one in by_rank for field in one):
        values = [one.get(field, "nothing") for one in by_rank]
        if any(value != values[0] for value in values):
            raise ConfigMismatch(f"ranks differ in {field}: {_who_has_what(values)}; give all ranks the same")


def _flat(facts: Facts, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        flat |= _flat(value, f"{prefix}{name}: ") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _who_has_what(values: Sequence[Any]) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(json.dumps(value), []).append(rank)
    return ", ".join(
        f"{value} on rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}" for value, who in ranks.items()
    )


def announce_end() -> Program[None]:
    """Tell all ranks that this one has finished; one that asks for something else instead is an error of both."""
    yield AllGather(Payload((torch.ones(1, dtype=torch.uint8),)), (Label("", "the end of training", 1, 8.0),))


def fingerprint(tensors: Sequence[Tensor]) -> Tensor:
    """One number a tensor: equal bits give equal numbers, a changed bit almost surely another.

    Sums of whole numbers, so that their order does not matter; every place counts differently, so that swaps show.
    """
    return torch.stack([_fingerprint(tensor.detach()) for tensor in tensors]) if tensors else torch.zeros(0).long()


def _fingerprint(tensor: Tensor) -> Tensor:
    raw = tensor.contiguous().view(-1).view(torch.uint8)
    words = torch.nn.functional.pad(raw, (0, -raw.numel() % 4)).view(torch.int32).to(torch.int64)
    places = torch.arange(1, words.numel() + 1, device=words.device)
    return (words * (2 * places + 1)).sum().cpu()


def compare_weights(
    names: Sequence[str],
    weights: Sequence[Tensor],
    step: int,
    *,
    stop: bool,
    idle: bool = False,
    unreduced: Collection[str] = (),
) -> Program[list[int]]:
    """Places of the tensors that differ between ranks; with `stop`, an error instead.

    idle: this rank has run out of inputs (Join), so it does not take the others' steps; nothing is compared then.
    unreduced: the last of these names, which want gradients though DDP does not reduce them.
    """
    marks = torch.cat([fingerprint(weights), torch.tensor([idle])])
    gathered: GatheredPayloads = yield AllGather(
        Payload((marks,)), (Label("", "fingerprint", 8 * len(marks), 64.0 * len(marks)),), step
    )
    marks_of_all = [payload.parts[0] for payload in gathered]
    if len({len(each) for each in marks_of_all}) > 1:
        numbers = _who_has_what([len(each) - 1 for each in marks_of_all])
        raise DivergedError(
            f"step {step}: ranks want gradients of different numbers of parameters: {numbers}; freeze and unfreeze "
            f"alike on all ranks. DDP does not reduce {some(unreduced) or 'those of other ranks'}: {WRAP_AGAIN}"
        )
    by_rank = torch.stack(marks_of_all)
    if by_rank[:, -1].any():
        return []
    differing: list[int] = (by_rank != by_rank[0]).any(dim=0).nonzero().flatten().tolist()
    if differing and stop:
        others = (by_rank[:, differing[0]] != by_rank[0, differing[0]]).nonzero().flatten().tolist()
        left_out = [names[at] for at in differing if names[at] in unreduced]
        remedy = f"DDP does not reduce {some(left_out)}: {WRAP_AGAIN}. " if left_out else ""
        raise DivergedError(
            f"step {step}: weights differ between ranks in {len(differing)} of {len(names)} parameters, first in "
            f"{names[differing[0]]} (rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))} against 0); "
            f'{remedy}on_divergence="resync" copies rank 0\'s weights instead of stopping'
        )
    return differing


def differ_anywhere(weights: Sequence[Tensor], step: int) -> Program[bool]:
    """Whether all ranks' tensors together are not the same."""
    mark = fingerprint(weights).sum().reshape(1)
    gathered: GatheredPayloads = yield AllGather(Payload((mark,)), (Label("", "fingerprint", 8, 64.0),), step)
    return len({payload.parts[0].item() for payload in gathered}) > 1


def some(names: Collection[str], most: int = 6) -> str:
    """The first of these names, for a message."""
    return ", ".join(list(names)[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def resync_weights(names: Sequence[str], weights: Sequence[Tensor], places: Sequence[int], step: int) -> Program[None]:
    """Give all ranks rank 0's tensors at these places; not during a backward pass, which may need the old ones."""
    for at in places:
        own = weights[at].detach()
        payload = yield Broadcast(
            Payload((own.contiguous().view(-1),)),
            0,
            (Label(names[at], "resync", own.nbytes, 8.0 * own.nbytes),),
            step,
        )
        own.copy_(payload.parts[0].view(own.shape))
