"""TLS in both directions, with certificates made for the moment."""

from __future__ import annotations

import datetime
import logging
import shutil
import socket
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from helpers.socket_peers import until
from thinwire.core import AuthenticationError, ClosedError, CompositionError, Message, Payload
from thinwire.drivers.sockets import Connection, Listener, Secret, Tls

if shutil.which("openssl") is None:
    pytest.skip("no openssl command here, so no certificates can be made", allow_module_level=True)

EXPIRED = "expired"


def openssl(folder, *words):
    subprocess.run(["openssl", *words], cwd=folder, check=True, timeout=60, capture_output=True)


def made_by(folder, ca, name, days="2", also=""):
    """A key and a certificate of `ca`'s for 127.0.0.1 and, as common name, `name`; also: more subjectAltNames."""
    (folder / f"{name}.ext").write_text(f"subjectAltName=IP:127.0.0.1{also}\n")
    openssl(
        folder,
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        f"{name}.key",
        "-out",
        f"{name}.csr",
        "-subj",
        f"/CN={name}",
    )
    words = ["x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial"]
    openssl(folder, *words, "-out", f"{name}.pem", "-days", days, "-extfile", f"{name}.ext")
    return Tls(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    for ca in ("ca", "other_ca"):
        words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={ca}"]
        openssl(folder, *words, "-keyout", f"{ca}.key", "-out", f"{ca}.pem")
    made = {name: made_by(folder, "ca", name, also=also) for name, also in (("server", ""), ("worker", ",DNS:w"))}
    made["pod"] = made_by(folder, "ca", "pod", also=",DNS:pod-1,URI:thinwire:pod-2")
    made["foreign"] = made_by(folder, "other_ca", "foreign")
    made[EXPIRED] = made_by(folder, "ca", EXPIRED, days="-1")
    return made


def ok(message):
    return Message("ok", payload=message.payload)


def test_two_sides_with_certificates_understand_each_other(certificates):
    big = torch.arange(500_000, dtype=torch.float32)
    with Listener("0.0.0.0:0", ok, tls=certificates["server"], heartbeat_s=0.02, idle_timeout_s=1.0) as listener:
        address = listener.address.replace("0.0.0.0", "127.0.0.1")
        with Connection(
            address, "w", tls=certificates["worker"], heartbeat_s=0.01, idle_timeout_s=1.0
        ) as worker:  # beats meet answers
            for _ in range(10):
                assert torch.equal(worker.call(Message("push", payload=Payload((big,)))).payload.parts[0], big)
            assert worker.connects == 1 and not listener.rejected and worker.traffic.rows["~alive"].requests > 3


def test_closing_ends_a_call_of_another_thread(certificates):
    at_work, enough = threading.Event(), threading.Event()

    def handle(message):
        at_work.set()
        enough.wait(20)
        return Message("ok")

    with Listener("127.0.0.1:0", handle, tls=certificates["server"]) as listener, ThreadPoolExecutor(1) as pool:
        worker = Connection(listener.address, "w", tls=certificates["worker"])
        called = pool.submit(worker.call, Message("push"))
        assert at_work.wait(10)
        worker.close()
        with pytest.raises(ClosedError):
            called.result(timeout=5)
        enough.set()


@pytest.mark.parametrize("holder", ["foreign", EXPIRED, "no certificate"])
def test_a_worker_without_a_good_certificate_is_refused(certificates, holder):
    tls = Tls(ca=certificates["server"].ca) if holder == "no certificate" else certificates[holder]
    with Listener("127.0.0.1:0", ok, tls=certificates["server"]) as listener:
        with (
            Connection(listener.address, "w", tls=tls) as worker,
            pytest.raises(AuthenticationError, match="certificate"),
        ):
            worker.call(Message("push"))
        until(lambda: listener.rejected["tls"] == worker.connects)
        assert worker.connects <= 3 and not listener.traffic.rows and worker.traffic.received == 0
        with Connection(listener.address, "w", tls=certificates["worker"]) as worker:
            assert worker.call(Message("push")).kind == "ok"


@pytest.mark.parametrize("holder", ["foreign", EXPIRED])
def test_a_server_without_a_good_certificate_is_told_nothing(certificates, holder):
    with Listener("127.0.0.1:0", ok, tls=certificates[holder]) as listener:
        with (
            Connection(listener.address, "w", tls=certificates["worker"]) as worker,
            pytest.raises(AuthenticationError, match="certificate"),
        ):
            worker.call(Message("push"))
        assert worker.traffic.sent == 0


def test_a_certificate_for_another_host_is_refused(certificates):
    with (
        Listener("[::1]:0", ok, tls=certificates["server"]) as listener,
        Connection(listener.address, "w", tls=certificates["worker"]) as worker,
        pytest.raises(AuthenticationError, match="::1"),
    ):
        worker.call(Message("push"))


def test_tls_without_certificates_of_workers_needs_the_secret(certificates):
    one_sided = Tls(certificates["server"].certificate, certificates["server"].key)
    with pytest.raises(CompositionError, match="accepts every client"):
        Listener("0.0.0.0:0", ok, tls=one_sided)
    secret = Secret(b"0123456789abcdef" * 4)
    with Listener("0.0.0.0:0", ok, tls=one_sided, secret=secret) as listener:
        address = listener.address.replace("0.0.0.0", "127.0.0.1")
        with Connection(address, "w", tls=Tls(ca=certificates["server"].ca), secret=secret) as worker:
            assert worker.call(Message("push")).kind == "ok"
        with (
            Connection(address, "w", tls=Tls(ca=certificates["server"].ca)) as worker,
            pytest.raises(AuthenticationError, match="secret"),
        ):
            worker.call(Message("push"))


def test_old_versions_and_plain_text_are_refused(certificates):
    assert certificates["server"].server_context().minimum_version >= ssl.TLSVersion.TLSv1_2
    assert certificates["worker"].client_context().minimum_version >= ssl.TLSVersion.TLSv1_2
    with Listener("127.0.0.1:0", ok, tls=certificates["server"], handshake_s=1.0) as listener:
        host, _, port = listener.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5) as sock:
            sock.sendall(b"thwf" + bytes(60))
            assert b"thwf" not in sock.recv(4096)
        until(lambda: listener.rejected["tls"] == 1)


def test_files_that_are_no_certificates_are_named(certificates, tmp_path):
    wrong = tmp_path / "wrong.pem"
    wrong.write_text(str(datetime.date.today()))
    for tls in (
        Tls(wrong, wrong, wrong),
        Tls(tmp_path / "none.pem", certificates["server"].key),
        Tls(certificates["server"].certificate, certificates["worker"].key),
    ):
        with pytest.raises(CompositionError, match="tls: cannot use"):
            Listener("127.0.0.1:0", ok, tls=tls)
    with pytest.raises(CompositionError, match="needs a certificate"):
        Listener("127.0.0.1:0", ok, tls=Tls(ca=certificates["server"].ca))


@pytest.mark.parametrize("name", ["pod", "pod-1", "thinwire:pod-2"], ids=["common name", "DNS", "URI"])
def test_a_worker_may_speak_under_the_names_in_its_certificate(certificates, name):
    with Listener("127.0.0.1:0", ok, tls=certificates["server"]) as listener:
        with Connection(listener.address, name, tls=certificates["pod"]) as worker:
            assert worker.call(Message("push")).kind == "ok"
        assert not listener.rejected


@pytest.mark.parametrize("name", ["w", "POD-1", "127.0.0.1", "server", "pod-1.example"])
def test_a_worker_may_not_speak_under_a_name_that_is_not_in_its_certificate(certificates, name, caplog):
    with (
        Listener("127.0.0.1:0", ok, tls=certificates["server"]) as listener,
        Connection(listener.address, "w", tls=certificates["worker"]) as honest,
    ):
        honest.call(Message("push"))
        with (
            caplog.at_level(logging.WARNING, "thinwire"),
            Connection(listener.address, name, tls=certificates["pod"]) as worker,
            pytest.raises(AuthenticationError, match=f"'{name}' is not in its certificate, which is for 'pod'"),
        ):
            worker.call(Message("push"))
        assert listener.rejected == {"certificate name": 1} and worker.connects == 1
        assert f"'{name}' is not in its certificate" in caplog.text
        assert "push" not in worker.traffic.rows and honest.call(Message("push")).kind == "ok" and honest.connects == 1


def test_a_secret_beside_certificates_does_not_open_other_names(certificates):
    secret = Secret(b"0123456789abcdef" * 4)
    with (
        Listener("127.0.0.1:0", ok, tls=certificates["server"], secret=secret) as listener,
        Connection(listener.address, "w", tls=certificates["pod"], secret=secret) as worker,
        pytest.raises(AuthenticationError, match="certificate"),
    ):
        worker.call(Message("push"))
