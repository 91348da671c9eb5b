"""What no encoder could have written: every decoder answers with a DecodeError or a finite tensor of the agreed form.

Valid payloads of every compressor are mutated, and payloads are drawn at random, some twenty thousand in all. No other
exception may come out, nothing may take long, and a short message may not make its reader allocate much.
"""

from __future__ import annotations

import random
import resource
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from drawn import COMPRESSOR_TEXTS, compressors
from thinwire.catalog import parse_compressor
from thinwire.core import Compressor, DecodeError, Payload, TensorSpec, derive_key, nbytes_of
from thinwire.kernels.varint import varint
from thinwire.wire import as_bytes, decode_indices, from_bytes, pack_payload, unpack_payload

torch.set_num_threads(1)

MORE_TEXTS = [  # compositions whose decoders nest, and widths at the ends of their range
    "topk(density=0.6)",
    "topk(density=0.3, values=sign())",
    "topk(density=0.5, values=topk(density=0.5))",
    "randomk(density=0.5, values=qsgd(bits=4, block=4))",
    "randomk(density=0.5, values=topk(k=2, values=power2()))",
    "qsgd(bits=16, block=5)",
]
TEXTS = [*COMPRESSOR_TEXTS, *MORE_TEXTS]
EVERY = pytest.mark.parametrize(
    "compressor", [*compressors(), *map(parse_compressor, MORE_TEXTS)], ids=[text.replace('"', "") for text in TEXTS]
)
SPECS = [
    TensorSpec("empty", (0,)),
    TensorSpec("scalar", ()),
    TensorSpec("one", (1,)),
    TensorSpec("nine", (9,)),
    TensorSpec("matrix", (3, 5)),
    TensorSpec("hundred", (100,)),
    TensorSpec("half", (33,), torch.float16),
    TensorSpec("brain", (4, 4), torch.bfloat16),
    TensorSpec("double", (2, 3, 4), torch.float64),
]
KEY = derive_key("hostile")
CASES_EACH = 130  # per compressor and spec: ten of each mutation
DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
]  # fmt: skip


# Mutations: (rng, payload) -> parts, or None where it does not apply.

Parts = list[Tensor]
Mutation = Callable[[random.Random, Payload], Parts | None]


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
    """A part that begins as coded indices do and announces more than there can be."""
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


def valid_payload(compressor: Compressor, spec: TensorSpec, rng: random.Random) -> Payload:
    values = torch.tensor([rng.gauss(0, 1) for _ in range(spec.numel)], dtype=torch.float64)
    return compressor.encode(values.to(spec.dtype).view(spec.shape), KEY)


def outcome(compressor: Compressor, payload: Payload, spec: TensorSpec) -> str:
    """ "refused" or "accepted"; anything else that happens is a failure of the test."""
    try:
        tensor = compressor.decode(payload, spec, KEY)
    except DecodeError as error:
        assert len(str(error)) > 10  # it says what was wrong
        return "refused"
    assert (tuple(tensor.shape), tensor.dtype) == (spec.shape, spec.dtype)
    assert bool(tensor.isfinite().all()), payload
    return "accepted"


@EVERY
def test_a_mutated_payload_is_refused_or_decodes_to_a_finite_tensor(compressor):
    rng = random.Random(f"{compressor}")
    outcomes: Counter[str] = Counter()
    began = time.perf_counter()
    for spec in SPECS:
        payload = valid_payload(compressor, spec, rng)
        assert outcome(compressor, payload, spec) == "accepted"
        for case in range(CASES_EACH):
            mutation = MUTATIONS[case % len(MUTATIONS)]
            parts = mutation(rng, payload)
            if parts is None:
                mutation, parts = anything, anything(rng, payload)
            result = outcome(compressor, Payload(tuple(parts)), spec)
            assert result == "refused" or mutation not in ALWAYS_REFUSED, (mutation.__name__, spec, parts)
            outcomes[result] += 1
    assert outcomes.total() == CASES_EACH * len(SPECS)
    assert outcomes["refused"] > 0 and outcomes["accepted"] > 0  # the mutations reach both sides
    assert (time.perf_counter() - began) / outcomes.total() < 0.05


def test_the_suite_has_at_least_twenty_thousand_cases():
    assert CASES_EACH % len(MUTATIONS) == 0
    assert CASES_EACH * len(SPECS) * len(TEXTS) >= 20_000


@EVERY
def test_a_message_with_wrong_bytes_is_refused_or_decodes_to_a_finite_tensor(compressor):
    """The same from the wire's side: bytes change after framing."""
    rng = random.Random(f"framed {compressor}")
    for spec in SPECS:
        payload = valid_payload(compressor, spec, rng)
        dtypes = [part.dtype for part in payload.parts]
        blob = pack_payload(payload)
        for case in range(12):
            hostile = blob.clone()
            for _ in range(1 + case % 3):
                hostile[rng.randrange(hostile.numel())] = rng.randrange(256)
            hostile = hostile[: rng.randrange(hostile.numel() + 1)] if case % 4 == 0 else hostile
            try:
                received = unpack_payload(hostile, dtypes)
            except DecodeError:
                continue
            assert outcome(compressor, received, spec) in ("refused", "accepted")


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_what_an_encoder_writes_is_finite_and_accepted_even_at_the_ends_of_the_range(compressor, dtype):
    limits = torch.finfo(dtype)
    for value in (limits.max, -limits.max, limits.tiny, -limits.smallest_normal, limits.tiny * limits.eps, 0.0, -0.0):
        for numel in (1, 7, 14, 100):  # means of 7 and of 14 of the largest float32 were infinite once
            tensor = torch.full((numel,), value, dtype=dtype)
            payload = compressor.encode(tensor, KEY)
            assert all(bool(part.isfinite().all()) for part in payload.parts), value
            assert outcome(compressor, payload, TensorSpec.of("extreme", tensor)) == "accepted"


# Memory


class Allocations(TorchDispatchMode):
    """Adds up the bytes of every tensor that torch makes, freed or not; numpy's and Python's peak comes on top."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler at the first operation: seconds, and memory that is not ours

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self.nbytes += nbytes_of(tensor)
        return made

    def __enter__(self):
        tracemalloc.start()
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self.nbytes += tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


@pytest.fixture(scope="module", autouse=True)
def warm():
    with Allocations():  # whatever torch imports for its first dispatch is not a decoder's doing
        torch.zeros(1).nonzero()


def resident_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts kilobytes


def hundred_bytes(rng: random.Random, like: Payload) -> Parts:
    """Parts of the right types that take a hundred bytes together; the first announces what it likes."""
    share = 100 // max(1, len(like.parts))
    parts = [some_vector(rng, part.dtype, share // part.element_size()) for part in like.parts]
    if rng.random() < 0.8:
        parts[0] = huge_count(rng, Payload((parts[0],)))[0]
    return parts


@EVERY
def test_a_hundred_bytes_cannot_make_a_decoder_allocate_more_than_a_few_megabytes(compressor):
    rng = random.Random(f"memory {compressor}")
    spec = TensorSpec("thousand", (1000,))
    payload = valid_payload(compressor, spec, rng)
    before = resident_peak_bytes()
    for mutation in [hundred_bytes] * 20 + [huge_count] * 10 + [anything] * 10:
        parts = mutation(rng, payload)
        with Allocations() as allocations:
            outcome(compressor, Payload(tuple(parts)), spec)
        assert allocations.nbytes < 2_000_000
    assert resident_peak_bytes() - before < 64_000_000


def test_the_measure_of_memory_sees_both_torch_and_numpy():
    with Allocations() as allocations:
        torch.zeros(1000).nonzero()
    assert 4_000 <= allocations.nbytes < 1_000_000
    with Allocations() as allocations:
        torch.zeros(1000, dtype=torch.uint8).numpy().repeat(1000)
    assert allocations.nbytes >= 1_000_000


@pytest.mark.parametrize("tail", [b"\x00", b"\x01", b"\x80", b"\xff"])
def test_twelve_bytes_that_announce_positions_of_2_to_40_are_refused_without_allocating(tail):
    before = resident_peak_bytes()
    for first in range(256):  # every coding with every parameter, and none
        for count in (2**10, 2**20, 2**31, 2**39, 2**40, 2**40 + 1, 2**63 - 1):
            head = bytes([first]) + varint(count)
            blob = torch.tensor(list(head + tail * (12 - len(head))), dtype=torch.uint8)
            with pytest.raises(DecodeError):
                decode_indices(blob, 2**40)
    with Allocations() as allocations:
        for first in (0, 1, 2, 2 | 20 << 2, 2 | 40 << 2, 2 | 41 << 2):
            for count in (2**10, 2**31, 2**40):
                head = bytes([first]) + varint(count)
                with pytest.raises(DecodeError):
                    decode_indices(torch.tensor(list(head + tail * (12 - len(head))), dtype=torch.uint8), 2**40)
    assert allocations.nbytes < 1_000_000  # of all eighteen together
    assert resident_peak_bytes() - before < 64_000_000


def test_a_bitmap_of_2_to_40_places_is_refused_without_its_bytes():
    with Allocations() as allocations, pytest.raises(DecodeError):
        decode_indices(torch.tensor([1, 2, 3], dtype=torch.uint8), 2**40)
    assert allocations.nbytes < 100_000
