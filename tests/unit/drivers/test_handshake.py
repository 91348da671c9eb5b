"""The handshake: keys that are slow to guess, versions, and settings that differ."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import struct

import pytest

from helpers.faulty_link import FaultyLink, kind_of
from thinwire.core import AuthenticationError, ConfigMismatch, FrameError, Message
from thinwire.drivers.sockets import Connection, Listener, Secret, protocol
from thinwire.drivers.sockets.settings import describe_differences, describe_settings
from thinwire.wire import decode_frame, encode_frame
from thinwire.wire.frames import HEADER_BYTES

LOCAL = "127.0.0.1:0"
PHRASE = b"correct horse ba"  # 16 letters


def ok(message):
    return Message("ok", payload=message.payload)


def facts_of(passed, fingerprint=0):
    """What was said in the open in a recorded handshake: the salt, then all else that a key follows from."""
    hello, challenge = (decode_frame(p.data, None) for p in passed if p.kind in ("~hello", "~challenge"))
    words = (hello.fields["nonce"], challenge.fields["nonce"], hello.sender, hello.fields["generation"])
    return challenge.fields["salt"], [*words, f"{fingerprint:016x}", f"{fingerprint:016x}"]


def tag_of(key, frame, count=0):
    return hmac.new(key, b"c" + struct.pack("<Q", count) + frame, hashlib.sha256).digest()


def session_key(master, salt, facts):
    return hmac.digest(master, "\x1f".join(["thinwire frames 2", salt, *facts]).encode(), hashlib.sha256)


def recorded(secret):
    with Listener(LOCAL, ok, secret=secret) as listener, FaultyLink(listener.address) as link:
        with Connection(link.address, "w", secret=secret) as worker:
            assert worker.call(Message("push")).kind == "ok"
        return list(link.passed)


def test_the_key_of_a_phrase_is_what_scrypt_makes_of_it():
    passed = recorded(Secret(PHRASE))
    salt, facts = facts_of(passed)
    master = hashlib.scrypt(PHRASE, salt=f"thinwire {salt}".encode(), n=2**15, r=8, p=1, maxmem=64 << 20, dklen=32)
    proof = next(p.data for p in passed if p.kind == "~proof")
    assert proof[-32:] == tag_of(session_key(master, salt, facts), proof[:-32])
    assert proof[-32:] != tag_of(session_key(PHRASE, salt, facts), proof[:-32])  # a guess at one hash each


@pytest.mark.parametrize(
    "write", [bytes.hex, lambda key: key.hex().upper(), lambda key: base64.b64encode(key).decode()]
)
def test_thirty_two_random_bytes_are_a_key_as_they_are(write, monkeypatch):
    monkeypatch.setattr(hashlib, "scrypt", None)
    key = bytes(range(100, 132))
    passed = recorded(Secret(write(key).encode()))
    salt, facts = facts_of(passed)
    proof = next(p.data for p in passed if p.kind == "~proof")
    assert proof[-32:] == tag_of(session_key(key, salt, facts), proof[:-32])


@pytest.mark.parametrize("phrase", [b"z" * 64, b"0" * 63, b"=" * 44, b"A" * 43 + b"!", "ü".encode() * 32])
def test_what_only_looks_like_a_key_is_stretched(phrase):
    salted = f"thinwire {'5' * 32}".encode()
    made = hashlib.scrypt(phrase, salt=salted, n=2**15, r=8, p=1, maxmem=64 << 20, dklen=32)
    assert Secret(phrase).master_key("5" * 32) == made


def test_a_proof_with_the_bare_secret_is_refused_and_the_right_phrase_is_accepted():
    secret = Secret(PHRASE)

    class Bare(Secret):  # as it was before: the secret itself is the key
        def master_key(self, salt):
            return PHRASE

    with Listener(LOCAL, ok, secret=secret) as listener:
        with Connection(listener.address, "w", secret=Bare(PHRASE)) as worker, pytest.raises(AuthenticationError):
            worker.call(Message("push"))
        assert listener.rejected == {"wrong secret": 1}
        with (
            Connection(listener.address, "w", secret=Secret(b"correct horse bb")) as worker,
            pytest.raises(AuthenticationError, match="same secret"),
        ):
            worker.call(Message("push"))
        with Connection(listener.address, "w", secret=secret) as worker:
            assert worker.call(Message("push")).kind == "ok"


def test_every_server_has_its_own_salt_and_a_key_is_worked_out_once_for_each(monkeypatch):
    calls, scrypt = [], hashlib.scrypt

    def counting(value, *, salt, **settings):
        calls.append(salt)
        return scrypt(value, salt=salt, n=2, r=8, p=1)

    monkeypatch.setattr(hashlib, "scrypt", counting)
    ours, theirs = Secret(PHRASE), Secret(PHRASE)
    for _ in range(2):
        with Listener(LOCAL, ok, secret=ours) as listener:
            for name in "ab":
                with Connection(listener.address, name, secret=theirs) as worker:
                    worker.call(Message("push"))
    assert len(calls) == 4 and len(set(calls)) == 2
    for number in range(100):
        ours.master_key(str(number))
    assert len(ours._keys) <= 8


def without(passing, *names):
    """The same frame as an older version writes it."""
    data = passing.data[:-32] if passing.data[5] else passing.data
    message = decode_frame(data, None)
    fields = {name: value for name, value in message.fields.items() if name not in names}
    return bytes(encode_frame(Message(message.kind, message.sender, fields=fields)))


@pytest.mark.parametrize("secret", [None, Secret(b"0123456789abcdef" * 4)], ids=["open", "secret"])
@pytest.mark.parametrize("old", ["~hello", "~challenge"], ids=["old worker", "old server"])
def test_a_peer_with_an_older_handshake_is_told_so_before_any_proof(old, secret):
    def fault(passing):
        return [without(passing, "handshake", "salt") if passing.kind == old else passing.data]

    with Listener(LOCAL, ok, secret=secret) as listener, FaultyLink(listener.address, fault) as link:
        with (
            Connection(link.address, "w", secret=secret) as worker,
            pytest.raises(FrameError, match="version 1 of the handshake, this side 3; run the same") as caught,
        ):
            worker.call(Message("push"))
        assert caught.value.reason == "handshake version" and worker.connects == 1
        assert "~proof" not in [p.kind for p in link.passed]


@pytest.mark.parametrize("secret", [None, Secret(b"0123456789abcdef" * 4)], ids=["open", "secret"])
def test_settings_that_differ_are_named_with_both_values(secret, caplog):
    ours = {"task": "digits", "exchange": "ef(topk(density=0.1))", "rounds": 0, "seed": 1}
    theirs = {**ours, "exchange": "dense()", "seed": 2}
    with Listener(LOCAL, ok, secret=secret, fingerprint=5, settings=ours) as listener:
        with (
            Connection(listener.address, "w", secret=secret, fingerprint=6, settings=theirs) as worker,
            caplog.at_level(logging.WARNING, "thinwire"),
            pytest.raises(ConfigMismatch) as caught,
        ):
            worker.call(Message("push"))
        assert "exchange: dense() here, ef(topk(density=0.1)) there; seed: 2 here, 1 there" in str(caught.value)
        assert "task" not in str(caught.value) and "rounds" not in str(caught.value)
        assert (
            listener.rejected == {"fingerprint": 1} and worker.connects == 1 and "'w' has other settings" in caplog.text
        )
        with Connection(listener.address, "w", secret=secret, fingerprint=5, settings=ours) as worker:
            assert worker.call(Message("push")).kind == "ok"


def test_settings_are_sent_only_to_peers_that_hold_the_secret():
    secret, other = Secret(b"0123456789abcdef" * 4), Secret(b"fedcba9876543210" * 4)
    with (
        Listener(LOCAL, ok, secret=secret, fingerprint=5, settings={"task": "hidden"}) as listener,
        FaultyLink(listener.address) as link,
        Connection(link.address, "w", secret=other, fingerprint=6) as worker,
    ):
        with pytest.raises(AuthenticationError):
            worker.call(Message("push"))
        assert not any(b"hidden" in p.data for p in link.passed)


def test_a_changed_fingerprint_is_no_way_around_the_proof():
    secret = Secret(b"0123456789abcdef" * 4)

    def fault(passing):  # a man in the middle makes both sides believe that they have the same settings
        if passing.kind not in ("~hello", "~proof"):
            return [passing.data]
        sealed = passing.data[5]
        message = decode_frame(passing.data[:-32] if sealed else passing.data, None)
        return [bytes(encode_frame(message, 5, bool(sealed))) + (passing.data[-32:] if sealed else b"")]

    with Listener(LOCAL, ok, secret=secret, fingerprint=5) as listener, FaultyLink(listener.address, fault) as link:
        with Connection(link.address, "w", secret=secret, fingerprint=6) as worker, pytest.raises(AuthenticationError):
            worker.call(Message("push"))
        assert listener.rejected == {"wrong secret": 1}


@pytest.mark.parametrize("value", ["\\" * 500, "\x00" * 500, "ü" * 500, "(" * 89, 7])
def test_settings_fit_into_a_frame_of_the_handshake_whatever_they_are(value):
    settings = {f"{number}{'n' * 40}": value for number in range(40)}
    frame = encode_frame(
        Message("~rejected", "server", fields={"reason": "fingerprint", "settings": describe_settings(settings)})
    )
    assert len(frame) + 32 <= protocol.HANDSHAKE_BYTES


def test_long_settings_that_differ_at_the_end_still_differ():
    one, two = (describe_settings({"exchange": "x" * 300 + end}) for end in "ab")
    assert (
        describe_differences(one, two)
        and len(describe_differences(one, two)) < 260
        and not describe_differences(one, one)
    )


@pytest.mark.parametrize(
    "wrong", [None, 3, "ab", [], ["a"], [1, 2], ["a", None], ["a", "b" * 91], ["a", "b"] * 9, [["a", "b"]]]
)
def test_a_server_that_tells_nonsense_about_its_settings_is_still_told_apart(wrong):
    found = describe_differences(["a", "x"], wrong)
    assert found in ("", "a: x here, nothing there") and "\x1b" not in describe_differences(
        ["a", "x"], ["a", "\x1b[2J"]
    )


def test_the_frames_of_a_handshake_are_those_that_the_page_lists():
    kinds = [kind_of(p.data) for p in recorded(None)]
    assert kinds[:4] == ["~hello", "~challenge", "~proof", "~ready"] and HEADER_BYTES == 44
