"""How long a message may be: bound by what the request could carry, not by what this rank happens to send itself."""

import pytest
import torch

from thinwire import DecodeError, Exchanger, TensorSpec, World, parse
from thinwire.core import AllGather, Broadcast, Payload
from thinwire.drivers import headers
from thinwire.drivers.headers import check_lengths, framed_bytes
from thinwire.integrations.sparse_rows import average_sparse_rows

LAYERS = [TensorSpec("a", (64, 64)), TensorSpec("b", (100,))]
SIZE = 2
VARYING = [
    "gather(threshold(tau=0.5))",
    "two_hop(threshold(tau=0.5))",
    "gossip(threshold(tau=0.5), ring())",
    "choco(threshold(tau=0.5), ring())",
    "parameter_server(threshold(tau=0.5))",
    "ef(gather(threshold(tau=0.5)))",
]


@pytest.fixture(autouse=True)
def little_is_believed(monkeypatch):
    """So that a few kilobytes are a long message: no test needs 64 MiB."""
    monkeypatch.setattr(headers, "_MAX_BYTES", 64)


def first_request(text, gradient, rank):
    exchanger = Exchanger(LAYERS, parse(text))
    tensors = {spec.name: torch.full(spec.shape, gradient) for spec in LAYERS}
    return next(request for request in exchanger.run_step(tensors, 0, World(rank, SIZE)) if not_a_begin(request))


def not_a_begin(request):
    return {label.layer for label in request.labels} >= {"a", "b"}


def announced(request, rank, length=None):
    return {rank: framed_bytes(request.payload_to(0)) if length is None else length}


@pytest.mark.parametrize("text", VARYING)
def test_a_rank_that_sends_next_to_nothing_takes_a_long_message(text):
    little, much = first_request(text, 0.0, rank=0), first_request(text, 1.0, rank=1)
    own = framed_bytes(little.payload_to(1))
    coming = announced(much, 1)
    assert coming[1] > 64 + 8 * own, "else the test shows nothing"
    check_lengths(coming, own, little)


@pytest.mark.parametrize("text", VARYING)
def test_a_header_that_no_layer_could_need_is_refused(text):
    little = first_request(text, 0.0, rank=0)
    dense = sum(spec.num_bytes for spec in LAYERS)
    for length in (8 * dense + 1000, 1 << 40, (1 << 64) - 1):
        with pytest.raises(DecodeError, match=rf"rank 1 announces {length} B for .*, at most \d+ B are accepted"):
            check_lengths(announced(little, 1, length), framed_bytes(little.payload_to(1)), little)


def test_rows_of_an_embedding_may_all_come_from_another_rank():
    empty, full = (torch.zeros(50, 8) + fill for fill in (0, 1))
    requests = [next(average_sparse_rows(g.to_sparse(1), "rows", World(r, 2), 0)) for r, g in enumerate((empty, full))]
    own, coming = framed_bytes(requests[0].payload_to(1)), announced(requests[1], 1)
    assert coming[1] > 64 + 8 * own
    check_lengths(coming, own, requests[0])


def test_a_form_says_how_much_it_expects():
    form = Broadcast(Payload((torch.empty(0),)), 0, expected_bytes=4000)
    check_lengths({0: 4003}, framed_bytes(form.payload_to(0)), form)
    with pytest.raises(DecodeError, match="must set `expected_bytes`"):
        check_lengths({0: 4003}, 1, Broadcast(form.payload, 0))


def test_without_anything_expected_the_own_length_counts():
    request = AllGather(Payload((torch.zeros(100),)))
    check_lengths({1: 64 + 8 * 402}, 402, request)
    with pytest.raises(DecodeError):
        check_lengths({1: 64 + 8 * 402 + 1}, 402, request)
