"""Every composition that batches layers sends the bytes of the plain form, and its decoders refuse what that refuses."""

from __future__ import annotations

import pytest
import torch

from helpers.cases import COMPOSITION_TEXTS, COMPRESSOR_TEXTS, draw
from thinwire import parse
from thinwire.catalog import parse_compressor
from thinwire.core import Capability, DecodeError, LayerBatch, Payload, TensorSpec, codes_positions, derive_key, has
from thinwire.testing import AGGREGATOR_LAWS
from thinwire.wire import pack_payload, unpack_payload

LAWS = [law for law in AGGREGATOR_LAWS if law.check.__module__ == "thinwire.testing.batches"]
BATCHED = [text for text in COMPOSITION_TEXTS if has(parse(text), Capability.BATCHES_LAYERS)]
COMPRESSORS = [text for text in COMPRESSOR_TEXTS if has(parse_compressor(text), Capability.BATCHES_LAYERS)]
SIZES = (1, 9, 700, 5000)
SPECS = tuple([TensorSpec(f"layer{i}", (size,)) for i, size in enumerate(SIZES)])
KEYS = [derive_key("batch", i) for i in range(len(SIZES))]


@pytest.mark.parametrize("text", BATCHED)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_every_composition_that_batches_keeps(law, text):
    law(parse(text))


def test_the_families_of_the_issue_batch():
    families = (
        "topk(",
        "threshold(",
        "quantile_threshold(",
        "level_threshold(",
        "qsgd(",
        "uniform(",
        "natural(",
        "sign(",
        "powersgd(",
    )
    for family in families:
        assert any(text.startswith(family) for text in BATCHED), family
        assert has(parse(f"ef({next(text for text in BATCHED if text.startswith(family))})"), Capability.BATCHES_LAYERS)


def encode(compressor, seed=0):
    """The payload of a batch as a receiver has it: framed, so that parts may begin at any byte."""
    tensors = [draw("gaussian", (size,), seed=seed + i) for i, size in enumerate(SIZES)]
    payload = compressor.encode_many(LayerBatch(tensors, SPECS, [()] * len(SIZES)), KEYS).payload
    return unpack_payload(pack_payload(payload), payload.dtypes)


def mean(compressor, payloads):
    """The means, and those of the plain form; None for an error."""
    outs = [torch.full(spec.shape, 7.0) for spec in SPECS]
    counts = [payloads[0].num_parts // len(SIZES)] * len(SIZES)
    keys = [KEYS] * len(payloads)
    try:
        compressor.decode_mean_many(payloads, SPECS, keys, outs)
        batched = [out.numpy().tobytes() for out in outs]
    except DecodeError as error:
        batched = str(error)
    columns = zip(*[Payload(payload.parts).cut(counts) for payload in payloads], strict=True)
    try:
        layers = zip(columns, SPECS, [[key] * len(payloads) for key in KEYS], strict=True)
        means = [compressor.decode_mean(*layer) for layer in layers]
        return batched, [each.numpy().tobytes() for each in means]
    except DecodeError as error:
        return batched, str(error)


@pytest.mark.parametrize("text", COMPRESSORS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_received_batch_is_averaged_as_each_layer_would_be(text, ranks):
    compressor = parse_compressor(text)
    batched, plain = mean(compressor, [encode(compressor, 10 * rank) for rank in range(ranks)])
    assert batched == plain and isinstance(plain, list)


@pytest.mark.parametrize("text", COMPRESSORS)
@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_batch_is_refused_or_read_as_by_the_plain_form(text, seed):
    """Bytes of any part of one rank are changed: to those of NaN, infinity, negative numbers, codes never sent."""
    compressor, refused = parse_compressor(text), 0
    generator = torch.Generator().manual_seed(seed)
    for _ in range(40):
        payloads = [encode(compressor, rank) for rank in range(2)]
        part = payloads[1].parts[int(torch.randint(payloads[1].num_parts, (1,), generator=generator))]
        raw = part.view(torch.uint8)
        at = int(torch.randint(raw.numel(), (1,), generator=generator))
        raw[at:][:4] = int(torch.tensor([0xFF, 0x80, 0x7F, 0x00])[torch.randint(4, (1,), generator=generator)])
        changed = Payload([each.clone() for each in payloads[1].parts])
        packed = unpack_payload(pack_payload(changed), changed.dtypes)
        batched, plain = mean(compressor, [payloads[0], packed])
        is_refused = isinstance(plain, str)
        assert isinstance(batched, str) if is_refused and codes_positions(compressor) else batched == plain
        refused += is_refused
    assert refused or text == "natural(bits=8)"  # there every byte is a number


@pytest.mark.parametrize("text", COMPRESSORS)
def test_a_batch_with_parts_of_other_lengths_types_or_shapes_is_refused(text):
    compressor = parse_compressor(text)
    good = encode(compressor)
    for i in range(good.num_parts):
        part = good.parts[i]
        others = () if codes_positions(compressor) else (part.to(torch.float64), part[None])  # no receiver has such
        for wrong in (part[:-1], torch.cat((part, part[:1])), *others):
            parts = [*good.parts[:i], wrong, *good.parts[i + 1 :]]
            with pytest.raises(DecodeError):
                outs = [torch.zeros(spec.shape) for spec in SPECS]
                compressor.decode_mean_many([good, Payload(parts)], SPECS, [KEYS] * 2, outs)


@pytest.mark.parametrize("text", COMPRESSORS)
@pytest.mark.parametrize("with_residuals", [False, True])
def test_layers_that_c_cannot_read_are_coded_one_by_one(text, with_residuals):
    """A tensor with gaps in memory, for which there is no C kernel, changes no byte."""
    compressor = parse_compressor(text)
    tensors = [draw("gaussian", (2 * size,), seed=i)[::2] for i, size in enumerate(SIZES)]
    rests = [0.5 * draw("gaussian", (size,), seed=5 + i) for i, size in enumerate(SIZES)] if with_residuals else None
    strided, copied = (
        compressor.encode_many(LayerBatch(each, SPECS, [()] * 4, rests), KEYS)
        for each in (tensors, [tensor.contiguous() for tensor in tensors])
    )
    assert strided.first_bad == copied.first_bad == -1
    assert (strided.payload.kinds, strided.payload.model_bits) == (copied.payload.kinds, copied.payload.model_bits)
    assert torch.equal(pack_payload(strided.payload), pack_payload(copied.payload))
    assert all(map(torch.equal, strided.residuals or (), copied.residuals or ()))
    assert (strided.residuals is None) == (copied.residuals is None) == (rests is None)


@pytest.mark.parametrize("text", COMPRESSORS)
@pytest.mark.parametrize("with_residuals", [False, True])
@pytest.mark.parametrize("spoil", [float("nan"), float("inf"), -float("inf")])
def test_the_first_layer_that_is_not_finite_is_found(text, with_residuals, spoil):
    """Wherever the number stands, and not where a sum with a residual overflows."""
    compressor = parse_compressor(text)
    huge = [torch.full((size,), 3e38) for size in SIZES]
    rests = huge if with_residuals else None
    assert compressor.encode_many(LayerBatch(huge, SPECS, [()] * 4, rests), KEYS).first_bad == -1
    for layer, at in ((0, 0), (1, 8), (2, 511), (2, 699), (3, 4096), (3, 4999)):
        tensors = [each.clone() for each in huge]
        tensors[layer][at] = spoil
        tensors[3][4500] = spoil
        assert compressor.encode_many(LayerBatch(tensors, SPECS, [()] * 4, rests), KEYS).first_bad == layer
