"""Requests that carry payloads: joining those of several requests, cutting answers up again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ..tensors import Payload
from .base import Gathered


def join(payloads: Sequence[Payload]) -> Payload:
    return Payload(tuple([part for payload in payloads for part in payload.parts]))


def cut(payload: Payload, counts: Sequence[int]) -> list[Payload]:
    ends = accumulate(counts)
    return [Payload(payload.parts[end - count : end]) for count, end in zip(counts, ends, strict=True)]


def cut_all(answer: Gathered, counts: Sequence[int]) -> list[Gathered]:
    """One rank's answer holds all layers; one layer's answer holds all ranks."""
    by_layer = zip(*[cut(payload, counts) for payload in answer], strict=True) if answer else ((),) * len(counts)
    return [Gathered(payloads).also(answer.shared) for payloads in by_layer]


def any_raised(answer: Gathered) -> bool:
    """Whether any of the payloads is a raised flag."""
    return answer.once("flag", lambda: any(bool(payload.parts[0].any()) for payload in answer))
