"""Mutations of payloads, for tests of decoders: some that an encoder could have written, some that none could."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

from ..core import Payload
from ..kernels.varint import varint
from ..wire import as_bytes, from_bytes

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
]  # fmt: skip

Parts = list[Tensor]
Mutation = Callable[[random.Random, Payload], Parts | None]  # None where it does not apply


def some_bytes(rng: random.Random, count: int) -> Tensor:
    return torch.tensor(list(rng.randbytes(count)), dtype=torch.uint8)


def some_vector(rng: random.Random, dtype: torch.dtype, count: int) -> Tensor:
    if dtype == torch.bool:
        return some_bytes(rng, count) > 127
    return from_bytes(some_bytes(rng, count * dtype.itemsize), dtype)


def with_part(payload: Payload, at: int, part: Tensor) -> Parts:
    return [*payload.parts[:at], part, *payload.parts[at + 1 :]]


def pick(rng: random.Random, payload: Payload) -> tuple[int, Tensor]:
    at = rng.randrange(len(payload.parts))
    return at, payload.parts[at]


def flip_bits(rng: random.Random, payload: Payload) -> Parts:
    at, part = pick(rng, payload)
    data = as_bytes(part).clone()
    for _ in range(rng.choice((1, 1, 2, 8)) if data.numel() else 0):
        data[rng.randrange(data.numel())] ^= 1 << rng.randrange(8)
    return with_part(payload, at, from_bytes(data, part.dtype))


def truncate(rng: random.Random, payload: Payload) -> Parts:
    at, part = pick(rng, payload)
    return with_part(payload, at, part[: rng.randrange(part.numel())] if part.numel() else part)


def extend(rng: random.Random, payload: Payload) -> Parts:
    at, part = pick(rng, payload)
    more = some_vector(rng, part.dtype, rng.choice((1, 1, 2, 9, 40)))
    return with_part(payload, at, torch.cat((part, more if rng.random() < 0.7 else torch.zeros_like(more))))


def reorder(rng: random.Random, payload: Payload) -> Parts:
    parts = list(payload.parts)
    rng.shuffle(parts)
    return [part.flip(0) for part in parts] if len(parts) == 1 else parts


def drop_a_part(rng: random.Random, payload: Payload) -> Parts:
    at, _ = pick(rng, payload)
    return [*payload.parts[:at], *payload.parts[at + 1 :]]


def add_a_part(rng: random.Random, payload: Payload) -> Parts:
    at, part = pick(rng, payload)
    more = rng.choice((part, part[:0], some_vector(rng, rng.choice(DTYPES), rng.randrange(20))))
    return [*payload.parts[:at], more, *payload.parts[at:]]


def change_type(rng: random.Random, payload: Payload) -> Parts:
    at, part = pick(rng, payload)
    return with_part(payload, at, part.to(rng.choice([dtype for dtype in DTYPES if dtype != part.dtype])))


def change_shape(rng: random.Random, payload: Payload) -> Parts:
    at, part = pick(rng, payload)
    shaped = [part[None], part[:, None], part[None, :, None], *([part[0]] if part.numel() == 1 else [])]
    return with_part(payload, at, rng.choice(shaped))


def poison(rng: random.Random, payload: Payload) -> Parts | None:
    """NaN or infinity among floats, the exponent that stands for infinity among exponents."""
    floats = [at for at, part in enumerate(payload.parts) if part.is_floating_point() and part.numel()]
    exponents = [at for at, kind in enumerate(payload.kinds) if kind == "exponents" and payload.parts[at].numel()]
    if not floats + exponents:
        return None
    at = rng.choice(floats + exponents)
    part = payload.parts[at].clone()
    part[rng.randrange(part.numel())] = (
        255 if at in exponents else rng.choice((float("nan"), float("inf"), -float("inf")))
    )
    return with_part(payload, at, part)


def random_content(rng: random.Random, payload: Payload) -> Parts:
    """The right types and lengths, so that the decoder gets as far as it can."""
    return [some_vector(rng, part.dtype, part.numel()) for part in payload.parts]


def random_length(rng: random.Random, payload: Payload) -> Parts:
    at, part = pick(rng, payload)
    return with_part(payload, at, some_vector(rng, part.dtype, rng.randrange(100)))


def huge_count(rng: random.Random, payload: Payload) -> Parts:
    """A part that begins like coded indices and announces more indices than possible."""
    at = 0 if rng.random() < 0.7 else pick(rng, payload)[0]
    count = rng.choice((101, 2**14, 2**31, 2**32, 2**40, 2**62, 2**63 - 1))
    head = bytes([rng.choice((0, 1, 2, 2 | rng.randrange(64) << 2, rng.randrange(256)))]) + varint(count)
    tail = rng.choice((b"", b"\x00" * 8, b"\xff" * 8, rng.randbytes(rng.randrange(30))))
    return with_part(payload, at, torch.tensor(list(head + tail), dtype=torch.uint8))


def anything(rng: random.Random, payload: Payload) -> Parts:
    del payload
    return [some_vector(rng, rng.choice(DTYPES), rng.randrange(60)) for _ in range(rng.randrange(5))]


MUTATIONS: list[Mutation] = [
    flip_bits, truncate, extend, reorder, drop_a_part, add_a_part, change_type, change_shape, poison,
    random_content, random_length, huge_count, anything,
]  # fmt: skip
ALWAYS_REFUSED = {drop_a_part, add_a_part, change_type, change_shape, poison}


def hundred_bytes(rng: random.Random, like: Payload) -> Parts:
    """Parts of the right types with a hundred bytes in total; the first may announce any count."""
    share = 100 // max(1, len(like.parts))
    parts = [some_vector(rng, part.dtype, share // part.element_size()) for part in like.parts]
    if rng.random() < 0.8:
        parts[0] = huge_count(rng, Payload((parts[0],)))[0]
    return parts
