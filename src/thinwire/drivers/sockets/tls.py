"""TLS 1.2 or later for connections between machines."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core import CompositionError, FrameError


@dataclass(frozen=True)
class Tls:
    """PEM files: our certificate (with its chain) and key, and the CA that signs the certificates we trust.

    A listener needs certificate and key, and with a CA it requires certificates of workers, too: then a worker
    may only use a name in its certificate, as common name (CN) or subjectAltName (DNS or URI). A worker
    needs the CA of the server (without it, those of the system are trusted), and certificate and key if the server
    requires them.
    """

    certificate: str | Path | None = None
    key: str | Path | None = None
    ca: str | Path | None = None

    @property
    def is_mutual(self) -> bool:
        """Whether both sides prove their identity."""
        return None not in (self.certificate, self.key, self.ca)

    def server_context(self) -> ssl.SSLContext:
        """The context of a listener."""
        if self.certificate is None or self.key is None:
            raise CompositionError("tls: a listener needs a certificate and its key, got neither or one of them")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._fill(context)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """The context of a worker."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the certificate and the host's name in it
        self._fill(context)
        if self.ca is None:
            context.load_default_certs()
        return context

    def _fill(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
            if self.ca is not None:
                context.load_verify_locations(self.ca)
        except (OSError, ssl.SSLError) as error:
            files = f"certificate={self.certificate}, key={self.key}, ca={self.ca}"
            raise CompositionError(f"tls: cannot use {files}: {error}") from error


def certificate_names(certificate: Mapping[str, Any]) -> list[str]:
    """The common names and the DNS and URI names of a verified certificate, as `getpeercert` gives it."""
    common = [value for group in certificate.get("subject", ()) for key, value in group if key == "commonName"]
    return common + [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")]


def check_certificate_name(sender: str, certificate: Mapping[str, Any]) -> None:
    """Raise FrameError if a name is not in the certificate: otherwise a worker could use the name of another."""
    names = certificate_names(certificate)
    if sender not in names:
        shown = ", ".join(f"{name!r:.70}" for name in names[:5]) or "no name"
        raise FrameError(
            "certificate name", f"{sender!r:.70} is not in its certificate, which is for {shown}; use a name from it"
        )
