"""Laws of every transport: each message is answered with its reply, errors arrive as errors, closed is closed."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.core import ClosedError, CompositionError, DecodeError, Message, Payload, ProtocolError
from thinwire.drivers.in_process import InProcess
from thinwire.drivers.sockets import Connection, Listener
from thinwire.wire import encode_frame
from thinwire.wire.frames import DTYPES


@contextmanager
def in_process(handle, sender="w"):
    transport = InProcess(handle, sender)
    yield transport
    transport.close()


@contextmanager
def over_sockets(handle, sender="w"):
    with Listener("127.0.0.1:0", handle) as listener, Connection(listener.address, sender) as transport:
        yield transport


OPENERS = {"in process": in_process, "over sockets": over_sockets}
EVERY = pytest.mark.parametrize("opened", OPENERS.values(), ids=OPENERS)


def answer(message):
    """Says what arrived."""
    fields = {**message.fields, "kind": message.kind, "sender": message.sender, "sequence": message.sequence}
    return Message("echo", round=message.round, fields=fields, payload=message.payload)


SCALARS = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False)
FIELDS = st.dictionaries(st.text("abc", min_size=1), SCALARS | st.text("xyz ü") | st.lists(SCALARS, max_size=3))
PARTS = st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 50)), max_size=4)


@EVERY
def test_replies_are_what_the_handler_gave_to_what_was_sent(opened):
    with opened(answer) as transport:
        sequences = []

        @settings(max_examples=40, deadline=None)
        @given(st.integers(0, 2**62), FIELDS, PARTS)
        def exchange(round, fields, parts):
            payload = Payload(tuple(torch.arange(length).to(dtype) for dtype, length in parts))
            reply = transport.call(Message("push", "ignored", round, 7, fields, payload))
            sequences.append(reply.fields["sequence"])
            expected = {**fields, "kind": "push", "sender": "w", "sequence": reply.sequence}
            assert (reply.kind, reply.round, dict(reply.fields)) == ("echo", round, expected)
            assert [part.dtype for part in reply.payload.parts] == [part.dtype for part in payload.parts]
            assert all(map(torch.equal, reply.payload.parts, payload.parts))

        exchange()
    assert sequences == list(range(1, len(sequences) + 1))


@EVERY
def test_a_reply_shares_no_memory_with_what_was_sent(opened):
    sent = torch.ones(5)
    with opened(answer) as transport:
        transport.call(Message("push", payload=Payload((sent,)))).payload.parts[0].add_(1)
    assert torch.equal(sent, torch.ones(5))


@EVERY
def test_errors_of_the_handler_arrive_as_errors_and_the_next_call_is_answered(opened, caplog):
    def handle(message):
        if message.kind == "odd":
            raise DecodeError("TopK: 3 parts expected, got 2")
        if message.kind == "bug":
            raise KeyError("hidden")
        return Message("ok")

    with opened(handle) as transport:
        with pytest.raises(
            ProtocolError, match="failed on a 'odd' message: DecodeError: TopK: 3 parts expected, got 2"
        ):
            transport.call(Message("odd"))
        with (
            caplog.at_level(logging.ERROR, "thinwire"),
            pytest.raises(ProtocolError, match="see its log") as bug,
        ):
            transport.call(Message("bug"))
        assert "hidden" not in str(bug.value) and "hidden" in caplog.text
        assert transport.call(Message("fine")).kind == "ok"


@EVERY
def test_kinds_of_the_transport_itself_are_refused(opened):
    with opened(answer) as transport, pytest.raises(ProtocolError, match="begin with ~"):
        transport.call(Message("~bye"))


@EVERY
def test_a_sender_has_a_name(opened):
    with pytest.raises(CompositionError, match="sender must not be empty"), opened(answer, ""):
        pass


@EVERY
@pytest.mark.parametrize("used", [True, False])
def test_a_closed_transport_says_so_at_once(opened, used):
    with opened(answer) as transport:
        if used:
            transport.call(Message("push"))
        transport.close()
        transport.close()
        began = time.monotonic()
        for _ in range(3):
            with pytest.raises(ClosedError, match=r"w: .* was closed"):
                transport.call(Message("push"))
        assert time.monotonic() - began < 1


@EVERY
def test_calls_of_several_threads_get_each_its_own_reply(opened):
    with opened(answer) as transport, ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda n: transport.call(Message("push", fields={"n": n})).fields["n"], range(40)))
    assert replies == list(range(40))


@EVERY
def test_bytes_are_those_of_the_frames(opened):
    """Whole frames by kind of message, to the byte; totals have the handshake and heartbeats of sockets besides."""
    messages = [Message(kind, fields={"n": 1}, payload=Payload((torch.ones(n),))) for kind, n in (("a", 3), ("b", 70))]
    with opened(answer) as transport:
        replies = [transport.call(message) for message in (*messages, messages[0])]
        rows = {kind: row for kind, row in transport.traffic.rows.items() if not kind.startswith("~")}
        total = (transport.traffic.sent, transport.traffic.received)
    sizes = {m.kind: len(encode_frame(Message(m.kind, "w", 0, 1, m.fields, m.payload))) for m in messages}
    assert {kind: (row.requests, row.sent_bytes) for kind, row in rows.items() if kind != "echo"} == {
        "a": (2, 2 * sizes["a"]), "b": (1, sizes["b"]),
    }  # fmt: skip
    assert rows["echo"].received_bytes == sum(len(encode_frame(reply)) for reply in replies)
    assert rows["b"].payload_bytes == 280 and rows["echo"].payload_bytes == 304
    frames = (sum(row.sent_bytes for row in rows.values()), sum(row.received_bytes for row in rows.values()))
    assert total == frames if opened is in_process else all(t > f for t, f in zip(total, frames, strict=True))
