"""Laws of decoders: on a damaged payload they raise DecodeError or return a finite tensor of the agreed shape and type.

Valid payloads are mutated, and payloads are drawn at random. No other exception may be raised, no decoding may take
long, and a short message may not make the decoder allocate much.
"""

from __future__ import annotations

import random
import time
from collections import Counter

import torch

from ..core import Compressor, DecodeError, Payload, TensorSpec, derive_key
from ..wire import pack_payload, unpack_payload
from .allocations import Allocations, resident_peak_bytes
from .laws import Law, law
from .mutations import ALWAYS_REFUSED, MUTATIONS, anything, huge_count, hundred_bytes

_HOSTILE_KEY = "hostile"  # frozen: makes the random bits

DECODER_LAWS: list[Law] = []
KEY = derive_key(_HOSTILE_KEY)
CASES_EACH = 130  # per compressor and spec: ten of each mutation
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


def valid_payload(compressor: Compressor, spec: TensorSpec, rng: random.Random) -> Payload:
    values = torch.tensor([rng.gauss(0, 1) for _ in range(spec.numel)], dtype=torch.float64)
    return compressor.encode(values.to(spec.dtype).view(spec.shape), KEY)


def outcome(compressor: Compressor, payload: Payload, spec: TensorSpec) -> str:
    """Return "refused" or "accepted"; any other exception breaks the law."""
    try:
        tensor = compressor.decode(payload, spec, KEY)
    except DecodeError as error:
        assert len(str(error)) > 10  # it says what was wrong
        return "refused"
    assert (tuple(tensor.shape), tensor.dtype) == (spec.shape, spec.dtype)
    assert bool(tensor.isfinite().all()), payload
    return "accepted"


@law(DECODER_LAWS)
def a_mutated_payload_is_refused_or_decodes_to_a_finite_tensor(compressor: Compressor) -> None:
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
    assert sum(outcomes.values()) == CASES_EACH * len(SPECS)
    assert outcomes["refused"] > 0 and outcomes["accepted"] > 0  # the mutations reach both sides
    assert (time.perf_counter() - began) / sum(outcomes.values()) < 0.05


@law(DECODER_LAWS)
def a_message_with_wrong_bytes_is_refused_or_decodes_to_a_finite_tensor(compressor: Compressor) -> None:
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


@law(DECODER_LAWS, dtype=(torch.float32, torch.float16, torch.bfloat16, torch.float64))
def what_an_encoder_writes_is_finite_and_accepted_even_at_the_ends_of_the_range(
    compressor: Compressor, dtype: torch.dtype
) -> None:
    limits = torch.finfo(dtype)
    for value in (limits.max, -limits.max, limits.tiny, -limits.smallest_normal, limits.tiny * limits.eps, 0.0, -0.0):
        for numel in (1, 7, 14, 100):  # means of 7 and of 14 of the largest float32 were infinite once
            tensor = torch.full((numel,), value, dtype=dtype)
            payload = compressor.encode(tensor, KEY)
            assert all(bool(part.isfinite().all()) for part in payload.parts), value
            assert outcome(compressor, payload, TensorSpec.of("extreme", tensor)) == "accepted"


@law(DECODER_LAWS)
def a_hundred_bytes_cannot_make_a_decoder_allocate_more_than_a_few_megabytes(compressor: Compressor) -> None:
    rng = random.Random(f"memory {compressor}")
    spec = TensorSpec("thousand", (1000,))
    payload = valid_payload(compressor, spec, rng)
    before = resident_peak_bytes()
    for mutation in [hundred_bytes] * 20 + [huge_count] * 10 + [anything] * 10:
        parts = mutation(rng, payload)
        with Allocations() as allocations:
            outcome(compressor, Payload(tuple(parts)), spec)
        assert allocations.num_bytes < 2_000_000
    assert resident_peak_bytes() - before < 64_000_000
