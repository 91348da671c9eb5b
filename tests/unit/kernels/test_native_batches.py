"""Every build of the C kernels codes all layers of a batch as the torch expressions code each of them."""

from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers.cases import KINDS
from helpers.same_bits import alike, drawn
from thinwire.core import DecodeError, PackedPayload, Payload, derive_key
from thinwire.kernels import CodeForm, Coding, batches, codes, native
from thinwire.kernels.native import calls_batches, calls_code_batches

SIZES = (1, 7, 33, 512, 4096, 4097, 9001)
KEYS = [derive_key("native batches", i) for i in range(len(SIZES))]
TOP, LARGEST = 16, 254

pytestmark = pytest.mark.skipif(not native.runnable_builds(), reason="no C kernels were built here")


def layers(kind, seed=0):
    """One tensor of each size; kinds take turns, so that a batch has several."""
    kinds = [*KINDS, "limits"]
    return [drawn(kinds[(kinds.index(kind) + i) % len(kinds)], size, seed) for i, size in enumerate(SIZES)]


def planes(x, key):
    return codes.natural_encode(x, key, 0, LARGEST), codes.pack_signs(x)


def block_form(coding, bits, block):
    """A form of block quantizers, and what defines it."""
    steps = () if coding == Coding.LEVELS else (coding == Coding.RANDOM_STEPS,)
    name = "qsgd" if coding == Coding.LEVELS else "uniform"
    encode, feedback, mean = (getattr(codes, f"{name}_{verb}") for verb in ("encode", "feedback", "mean"))
    return SimpleNamespace(
        form=CodeForm(coding, bits, block),
        encode=lambda x, key: encode(x, bits, block, *steps, key),
        feedback=lambda x, y, key: feedback(x, y, bits, block, *steps, key),
        mean=lambda parts, count: mean(*zip(*parts, strict=True), count, bits, block),
    )


FORMS = [
    *[
        block_form(coding, bits, block)
        for coding in (Coding.LEVELS, Coding.STEPS, Coding.RANDOM_STEPS)
        for bits, block in ((4, 512), (2, 33), (3, 1), (8, 100), (7, 10**9))
    ],
    SimpleNamespace(
        form=CodeForm(Coding.POWERS, limit=TOP),
        encode=lambda x, key: (codes.natural_encode_signed(x, key, TOP),),
        feedback=lambda x, y, key: codes.natural_feedback(x, y, key, TOP),
        mean=lambda parts, count: codes.natural_mean([each for (each,) in parts], TOP),
    ),
    SimpleNamespace(
        form=CodeForm(Coding.EXPONENTS, limit=LARGEST),
        encode=planes,
        feedback=lambda x, y, key: codes.exponents_feedback(x, y, key, LARGEST),
        mean=lambda parts, count: codes.exponents_mean(*zip(*parts, strict=True)),
    ),
    SimpleNamespace(
        form=CodeForm(Coding.SIGNS),
        encode=lambda x, key: tuple(part.reshape(-1) for part in codes.sign_encode(x)),
        feedback=lambda x, y, key: tuple(
            part.reshape(-1) if i == 1 else part for i, part in enumerate(codes.sign_feedback(x, y))
        ),
        mean=lambda parts, count: codes.sign_mean(*zip(*parts, strict=True), count),
    ),
]
EVERY = pytest.mark.parametrize("family", FORMS, ids=lambda family: "-".join(map(str, family.form[:3])))


@EVERY
@pytest.mark.parametrize("kind", [*KINDS, "limits"])
def test_codes_of_a_batch_are_the_same(library, family, kind):
    tensors = layers(kind)
    coded = calls_code_batches.encode_codes_many(library, family.form, tensors, None, KEYS)
    expected = [part for x, key in zip(tensors, KEYS, strict=True) for part in family.encode(x, key)]
    assert coded.first_bad == -1 and coded.rests is None
    assert alike(coded.payload.parts, tuple(expected))


@EVERY
@pytest.mark.parametrize("kind", [*KINDS, "limits"])
def test_codes_of_a_batch_with_residuals_and_what_is_left_are_the_same(library, family, kind):
    tensors, rests = layers(kind), [0.7 * drawn("limits", size, seed=3) for size in SIZES]
    coded = calls_code_batches.encode_codes_many(library, family.form, tensors, rests, KEYS)
    rows = [family.feedback(*row) for row in zip(tensors, rests, KEYS, strict=True)]
    assert coded.first_bad == -1
    assert alike(coded.payload.parts, tuple(part for *parts, _ in rows for part in parts))
    assert alike(tuple(coded.rests), tuple(rest for *_, rest in rows))
    assert all(bool(rest.isfinite().all()) for rest in coded.rests)


def packed_at(parts, shift):
    """These parts in one buffer without gaps, beginning at any byte, as in a message."""
    lengths = np.array([part.nbytes for part in parts], dtype=np.int64)
    starts = shift + np.cumsum([0, *lengths[:-1]])
    buffer = torch.cat([torch.zeros(shift, dtype=torch.uint8), *[part.view(torch.uint8) for part in parts]])
    return PackedPayload(buffer, starts.astype(np.int64), lengths, tuple([part.dtype for part in parts]))


@EVERY
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_means_of_a_batch_are_the_same_wherever_its_parts_begin(library, family, ranks):
    batch = [[family.encode(x, key) for x, key in zip(layers("gaussian", r), KEYS, strict=True)] for r in range(ranks)]
    payloads = [packed_at([part for parts in each for part in parts], shift) for shift, each in enumerate(batch)]
    outs = [torch.full((size,), 7.0) for size in SIZES]
    assert calls_code_batches.mean_codes_many(library, family.form, payloads, outs)
    expected = [family.mean([each[i] for each in batch], size) for i, size in enumerate(SIZES)]
    assert alike(tuple(outs), tuple(expected))


@EVERY
def test_what_c_cannot_code_is_left_to_the_definition(library, family):
    tensors = layers("gaussian")
    encode = lambda *args: calls_code_batches.encode_codes_many(library, family.form, *args, KEYS)  # noqa: E731
    strided = [drawn("gaussian", 2 * size)[::2] for size in SIZES]
    assert encode(strided, None) is None and encode(tensors, strided) is None
    assert encode([x.double() for x in tensors], None) is None and encode(tensors, tensors[::-1]) is None
    assert encode([torch.zeros(0)], None) is None
    wide = CodeForm(Coding.LEVELS, 9, 512)
    assert calls_code_batches.encode_codes_many(library, wide, tensors, None, KEYS) is None
    payload, outs = encode(tensors, None).payload, [torch.zeros(size) for size in SIZES]
    mean = lambda payloads, into: calls_code_batches.mean_codes_many(library, family.form, payloads, into)  # noqa: E731
    assert mean([payload], outs) and not mean([], outs) and not mean([payload], strided[:1])
    assert not mean([payload], [out.double() for out in outs]) and not mean([payload, Payload(payload.parts[1:])], outs)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), -float("inf")])
def test_magnitudes_that_no_encoder_sends_are_refused_in_every_layer(library, value):
    for family in FORMS:
        if family.form.coding in (Coding.POWERS, Coding.EXPONENTS):
            continue
        for layer in range(len(SIZES)):
            parts = [p.clone() for x, k in zip(layers("gaussian"), KEYS, strict=True) for p in family.encode(x, k)]
            outs = [torch.zeros(size) for size in SIZES]
            parts[2 * layer + 1][-1] = -0.0
            assert calls_code_batches.mean_codes_many(library, family.form, [packed_at(parts, 1)], outs)
            parts[2 * layer + 1][-1] = value
            assert not calls_code_batches.mean_codes_many(library, family.form, [packed_at(parts, 1)], outs)


def test_codes_that_no_encoder_sends_are_refused_in_every_layer(library):
    """The exponent of infinity, a step above the highest, and bits after the last code."""
    for family in FORMS:
        coding, bits = family.form.coding, family.form.bits
        if coding == Coding.POWERS or (coding == Coding.LEVELS and bits == 8):
            continue
        for layer, size in enumerate(SIZES):
            parts = [p.clone() for x, k in zip(layers("gaussian"), KEYS, strict=True) for p in family.encode(x, k)]
            part = parts[2 * layer]
            if coding == Coding.EXPONENTS:
                part[-1] = 255
            elif coding in (Coding.STEPS, Coding.RANDOM_STEPS):
                part.copy_(codes.pack(torch.full((size,), (1 << bits) - 1), bits))
            elif size * bits % 8 == 0:
                continue
            else:
                part[-1] |= 128
            outs = [torch.zeros(size) for size in SIZES]
            assert not calls_code_batches.mean_codes_many(library, family.form, [packed_at(parts, 3)], outs)


# top-k


@pytest.mark.parametrize("kind", [*KINDS, "limits"])
@pytest.mark.parametrize("density", [0.001, 0.1, 1.0])
def test_the_largest_of_a_batch_are_taken_out_the_same(library, kind, density):
    tensors, counts = layers(kind), [max(1, int(density * size)) for size in SIZES]
    for rests in (None, [0.7 * drawn("limits", size, seed=3) for size in SIZES]):
        ours = calls_batches.take_largest_many(library, tensors, rests, counts)
        theirs = batches.take_largest_many(tensors, rests, counts)
        assert alike(ours.payload.parts, theirs.payload.parts)
        assert (ours.codings, ours.first_bad) == (theirs.codings, theirs.first_bad) == (theirs.codings, -1)
        assert alike(tuple(ours.rests or ()), tuple(theirs.rests or ()))


LEVELS = [0.0, 1e-3, 0.5, 1.5, 2.5, 1e30, 0.25]  # of all, some and none of a layer


@pytest.mark.parametrize("kind", [*KINDS, "limits"])
def test_positions_that_reach_a_level_are_found_and_taken_the_same(library, kind):
    for remove in (False, True):
        ours, theirs = ([each.clone() for each in layers(kind)] for _ in range(2))
        positions, counts = calls_batches.positions_reaching_many(library, ours, LEVELS)
        assert alike(positions, batches.positions_reaching_many(theirs, LEVELS)[0]) and positions.numel() == sum(counts)
        taken = calls_batches.take_at_many(library, ours, positions, counts, remove)
        expected = batches.take_at_many(theirs, positions, counts, remove)
        assert alike(taken.payload.parts, expected.payload.parts) and taken.codings == expected.codings
        assert alike(tuple(ours), tuple(theirs))
        means = [torch.full((size,), 7.0) for size in SIZES]
        calls_batches.sparse_mean_many(library, [taken.payload] * 2, [(0, size) for size in SIZES], means)
        plain = [torch.full((size,), 7.0) for size in SIZES]
        batches.sparse_mean_many([expected.payload] * 2, [(0, size) for size in SIZES], plain)
        assert alike(tuple(means), tuple(plain))


@pytest.mark.parametrize("kind", [*KINDS, "limits"])
def test_sums_and_levels_of_a_batch_are_the_same(library, kind):
    tensors, counts = layers(kind), [-(-size // 10) for size in SIZES]
    others = [0.7 * drawn("limits", size, seed=3) for size in SIZES]
    ours, theirs = calls_batches.add_many(library, tensors, others), batches.add_many(tensors, others)
    assert alike(tuple(ours[0]), tuple(theirs[0])) and ours[1] == theirs[1] == -1
    assert calls_batches.kth_magnitudes(library, tensors, counts) == batches.kth_magnitudes(tensors, counts)


def test_positions_outside_a_layer_are_refused(library):
    for wrong in ([3, 3], [5, 4], [0, 40], [-1, 2]):
        with pytest.raises(IndexError):
            calls_batches.take_at_many(library, [torch.randn(40)], torch.tensor(wrong), [2], True)


@pytest.mark.parametrize("layer", [0, 3, 6])
@pytest.mark.parametrize("spoil", [float("nan"), float("inf")])
def test_the_first_bad_layer_is_found(library, layer, spoil):
    tensors, counts = layers("gaussian"), [max(1, size // 10) for size in SIZES]
    tensors[layer][-1] = spoil
    tensors[6][0] = spoil
    for rests in (None, layers("gaussian", 5)):
        ours = calls_batches.take_largest_many(library, tensors, rests, counts)
        assert ours.first_bad == layer == batches.take_largest_many(tensors, rests, counts).first_bad
        assert calls_batches.add_many(library, tensors, rests)[1] == layer == batches.add_many(tensors, rests)[1]
        for family in FORMS:
            assert calls_code_batches.encode_codes_many(library, family.form, tensors, rests, KEYS).first_bad == layer


@lru_cache
def sparse_parts(seed, counts):
    return batches.take_largest_many(layers("heavy tails", seed), None, counts).payload.parts


def sparse_means(mean, payloads, counts):
    outs = [torch.full((size,), 7.0) for size in SIZES]
    try:
        mean(payloads, [(count, count) for count in counts], outs)
    except DecodeError:
        return None
    return outs


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("density", [0.001, 0.1, 1.0])
def test_means_of_sparse_layers_are_the_same_wherever_their_parts_begin(library, ranks, density):
    counts = tuple(max(1, int(density * size)) for size in SIZES)
    payloads = [packed_at(sparse_parts(rank, counts), rank) for rank in range(ranks)]
    ours = sparse_means(lambda *args: calls_batches.sparse_mean_many(library, *args), payloads, counts)
    assert alike(tuple(ours), tuple(sparse_means(batches.sparse_mean_many, payloads, counts)))


@pytest.mark.parametrize("seed", range(6))
def test_sparse_layers_with_any_bytes_are_read_the_same_or_refused_by_both(library, seed):
    generator, counts = torch.Generator().manual_seed(seed), tuple(max(1, size // 10) for size in SIZES)
    refused = 0
    for _ in range(30):
        payloads = [[part.clone() for part in sparse_parts(rank, counts)] for rank in range(2)]
        part = payloads[1][int(torch.randint(len(payloads[1]), (1,), generator=generator))].view(torch.uint8)
        at = int(torch.randint(part.numel(), (1,), generator=generator))
        part[at:][:3] = int(torch.randint(256, (1,), generator=generator))
        packed = [packed_at(each, shift) for shift, each in enumerate(payloads)]
        ours = sparse_means(lambda *args: calls_batches.sparse_mean_many(library, *args), packed, counts)
        theirs = sparse_means(batches.sparse_mean_many, packed, counts)
        assert (ours is None) == (theirs is None)
        assert ours is None or alike(tuple(ours), tuple(theirs))
        refused += ours is None
    assert refused


# differences and sums of EF21

LONG = 70_003  # written by stores that bypass the cache


def with_a_long_one(tensors, kind, seed=0):
    return [*tensors, drawn(kind, LONG, seed)]


@pytest.mark.parametrize("kind", [*KINDS, "limits"])
@pytest.mark.parametrize("density", [0.001, 0.1, 1.0])
def test_the_largest_changes_of_a_batch_and_the_next_estimates_are_the_same(library, kind, density):
    tensors = with_a_long_one(layers(kind), kind)
    counts = [max(1, int(density * tensor.numel())) for tensor in tensors]
    zeros, same = [torch.zeros_like(x) for x in tensors], [x.clone() for x in tensors]
    limits = [drawn("limits", x.numel(), seed=3) for x in tensors]
    negative_zeros = [-zero for zero in zeros]
    for estimates in (zeros, same, limits, negative_zeros, with_a_long_one(layers("gaussian", 4), "gaussian", 4)):
        before = [(x.clone(), estimate.clone()) for x, estimate in zip(tensors, estimates, strict=True)]
        ours = calls_batches.take_changes_many(library, tensors, estimates, counts)
        theirs = batches.take_changes_many(tensors, estimates, counts)
        assert alike(ours.payload.parts, theirs.payload.parts) and alike(tuple(ours.rests), tuple(theirs.rests))
        assert (ours.codings, ours.first_bad) == (theirs.codings, theirs.first_bad) == (theirs.codings, -1)
        assert all(alike(*pair) for pair in zip(zip(tensors, estimates, strict=True), before, strict=True))


@pytest.mark.parametrize("layer", [0, 3, 6])
@pytest.mark.parametrize("spoil", [float("nan"), float("inf")])
def test_the_first_bad_layer_is_found_in_differences(library, layer, spoil):
    """An estimate that makes a difference overflow is none."""
    tensors, estimates = ([torch.full((size,), sign * 3e38) for size in SIZES] for sign in (1, -1))
    counts = [max(1, size // 10) for size in SIZES]
    take, subtract = calls_batches.take_changes_many, calls_batches.subtract_many
    assert take(library, tensors, estimates, counts).first_bad == subtract(library, tensors, estimates)[1] == -1
    tensors[layer][-1] = spoil
    tensors[6][0] = spoil
    assert take(library, tensors, estimates, counts).first_bad == layer == subtract(library, tensors, estimates)[1]
    assert batches.take_changes_many(tensors, estimates, counts).first_bad == layer


@pytest.mark.parametrize("kind", [*KINDS, "limits"])
def test_differences_of_a_batch_are_the_same(library, kind):
    tensors, others = (with_a_long_one(layers(each), each) for each in (kind, "limits"))
    ours, theirs = calls_batches.subtract_many(library, tensors, others), batches.subtract_many(tensors, others)
    assert alike(tuple(ours[0]), tuple(theirs[0])) and ours[1] == theirs[1] == -1


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("density", [0.001, 0.1, 1.0])
@pytest.mark.parametrize("shift", [None, 0, 1, 10])
def test_sums_with_sparse_layers_are_the_same_wherever_they_are_written(library, ranks, density, shift):
    bases = with_a_long_one(layers("limits"), "limits")
    counts = [max(1, int(density * base.numel())) for base in bases]
    sent = [with_a_long_one(layers("heavy tails", rank), "heavy tails", rank) for rank in range(ranks)]
    payloads = [
        packed_at(batches.take_largest_many(each, None, counts).payload.parts, rank) for rank, each in enumerate(sent)
    ]
    theirs = tuple(batches.add_sparse_many(bases, payloads, [(k, k) for k in counts]))
    if shift is None:
        assert alike(tuple(calls_batches.add_sparse_many(library, bases, payloads, [(k, k) for k in counts])), theirs)
        return
    whole = torch.full((shift + sum(base.numel() for base in bases) + 9,), 7.0)
    outs = list(whole[shift:-9].split([base.numel() for base in bases]))
    assert alike(tuple(calls_batches.add_sparse_many(library, bases, payloads, [(k, k) for k in counts], outs)), theirs)
    assert alike(tuple(outs), theirs)
    assert bool((whole[:shift] == 7).all() and (whole[-9:] == 7).all())  # nothing beside them


def test_sums_with_damaged_layers_are_refused_and_what_c_cannot_read_or_write_is_left_to_the_definition(library):
    bases, counts = layers("gaussian", 2), tuple(max(1, size // 10) for size in SIZES)
    payload = Payload(sparse_parts(0, counts))
    strided = [torch.full((2 * size,), 7.0)[::2] for size in SIZES]
    theirs = tuple(batches.add_sparse_many(bases, [payload], [(k, k) for k in counts]))
    assert alike(
        tuple(calls_batches.add_sparse_many(library, bases, [payload], [(k, k) for k in counts], strided)), theirs
    )
    assert alike(tuple(out.contiguous() for out in strided), theirs)
    gaps = [torch.stack((base, base), 1)[:, 0] for base in bases]
    assert alike(tuple(calls_batches.add_sparse_many(library, gaps, [payload], [(k, k) for k in counts])), theirs)
    ours = calls_batches.take_changes_many(library, gaps, bases[::-1][::-1], counts)
    assert alike(tuple(ours.rests), tuple(batches.take_changes_many(bases, bases, counts).rests))
    for layer in range(len(SIZES)):
        parts = [part.clone() for part in payload.parts]
        parts[2 * layer + 1][-1] = float("nan")
        with pytest.raises(DecodeError):
            calls_batches.add_sparse_many(library, bases, [payload, Payload(parts)], [(k, k) for k in counts])


@pytest.mark.parametrize("take", ("largest", "largest of sums", "changes"))
def test_the_largest_are_the_same_wherever_the_search_begins(library, take):
    """The level of the last step is where the next search begins: too high, too low, about right, or no number."""
    sizes, counts = (5000, 40_000), (50, 400)
    for step, scale in enumerate((1.0, 1.02, 0.97, 100.0, 1e-3, 1e38, 0.0, 1.0, 1e-42, 1.0, float("nan"), 1.0)):
        tensors = [scale * drawn("gaussian", size, step) for size in sizes]
        others = None if take == "largest" else [drawn("gaussian", size, 100 + step) for size in sizes]
        name = "take_changes_many" if take == "changes" else "take_largest_many"
        ours = getattr(calls_batches, name)(library, tensors, others, counts)
        plain = getattr(batches, name)(tensors, others, counts)
        assert ours.first_bad == plain.first_bad
        if plain.first_bad < 0:
            assert all(map(alike, ours.payload.parts, plain.payload.parts))
            assert all(map(alike, ours.rests or [], plain.rests or []))
