"""Addresses, secrets and other settings of Listener and Connection."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.socket_peers import LOCAL, SECRET, Echo
from thinwire.core import (
    CompositionError,
    Message,
    ProtocolError,
)
from thinwire.drivers.sockets import Connection, Listener, Tls, read_secret


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "192.0.2.7:7000", "trainer.example:7000", "[::ffff:127.0.0.1]:0"]
)
def test_other_machines_are_not_let_in_without_a_secret_or_certificates(address):
    for tls in (None, Tls(certificate="server.pem", key="server.key")):
        with pytest.raises(CompositionError, match=r"Listener: .*secret .*TLS .*127\.0\.0\.1"):
            Listener(address, Echo(), tls=tls)
    with pytest.raises(CompositionError, match=r"Connection: .*secret"):
        Connection(address, "w")


def test_a_secret_opens_other_addresses():
    with Listener("0.0.0.0:0", Echo(), secret=SECRET) as listener:
        address = listener.address.replace("0.0.0.0", "127.0.0.1")
        with Connection(address, "w", secret=SECRET) as worker:
            assert worker.call(Message("push")).kind == "echo"


@pytest.mark.parametrize("text", ["", "7000", ":7000", "host:", "host:x", "host:70000", "unix:", "host:-1", "host:１"])
def test_an_address_that_is_none_is_named(text):
    with pytest.raises(CompositionError, match="address"):
        Connection(text, "w")


def test_an_address_in_use_is_named():
    with Listener(LOCAL, Echo()) as listener, pytest.raises(CompositionError, match=listener.address):
        Listener(listener.address, Echo())


def test_a_path_is_for_its_user_alone_and_only_dead_sockets_are_replaced(tmp_path):
    path = tmp_path / "socket"
    with Listener(f"unix:{path}", Echo()) as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(CompositionError, match="cannot listen"):
            Listener(f"unix:{path}", Echo())
    left = subprocess.run(
        [sys.executable, "-c", f"import socket; socket.socket(socket.AF_UNIX).bind({str(path)!r})"],
        check=True,
        timeout=60,
    )
    assert left.returncode == 0 and path.exists()
    with Listener(f"unix:{path}", Echo()) as listener, Connection(listener.address, "w") as worker:
        assert worker.call(Message("push")).kind == "echo"
    path.write_text("a file of the user's")
    with pytest.raises(CompositionError, match="cannot listen"):
        Listener(f"unix:{path}", Echo())
    assert path.read_text() == "a file of the user's"


def test_settings_that_cannot_work_are_refused_at_once(tmp_path):
    for wrong in ({"sender": ""}, {"heartbeat_s": 5.0}, {"address": f"unix:{tmp_path}/x", "tls": Tls()}):
        with pytest.raises(CompositionError):
            Connection(**{"address": LOCAL, "sender": "w", **wrong})
    with pytest.raises(CompositionError, match="heartbeat_s"):
        Listener(LOCAL, Echo(), heartbeat_s=9.0)
    with Connection(LOCAL, "w") as worker, pytest.raises(ProtocolError, match="~"):
        worker.call(Message("~proof"))


def test_a_secret_comes_from_a_file_or_the_environment_and_is_never_shown(tmp_path: Path, monkeypatch):
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    with pytest.raises(CompositionError, match="chmod 600"):
        file.chmod(0o644)
        read_secret(file=file)
    file.chmod(0o600)
    monkeypatch.setenv("THINWIRE_SECRET", "0123456789abcdef0123456789abcdef")
    one, two = read_secret(file=file), read_secret(environment="THINWIRE_SECRET")
    assert one.session_key("a") == two.session_key("a") != one.session_key("b")
    assert "0123" not in repr(one) + str(one) + repr(vars(Listener))
    monkeypatch.setenv("THINWIRE_SECRET", "short")
    for wrong in ({"environment": "THINWIRE_SECRET"}, {"environment": "NO_SUCH_NAME"}, {"file": tmp_path / "none"}, {}):
        with pytest.raises(CompositionError, match="secret") as caught:
            read_secret(**wrong)
        assert "short" not in str(caught.value)
