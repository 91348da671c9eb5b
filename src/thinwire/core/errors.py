"""The errors of thinwire. Each text names the part, the value received and what would work."""

from __future__ import annotations


class ThinwireError(Exception):
    """Base of all errors of this package."""


class CompositionError(ThinwireError, ValueError):
    """A composition text or a setting of a part is invalid; the text points at the position."""


class PluginError(CompositionError):
    """A part or task of another package was used, and the package cannot be loaded; the text names it."""


class PluginWarning(UserWarning):
    """Another package has parts or tasks that cannot be loaded; everything else works."""


class IncompatibleParts(ThinwireError, TypeError):
    """Two parts cannot be combined; raised when the composition is built."""


class DecodeError(ThinwireError, ValueError):
    """No encoder could have written this payload. Raised before memory is allocated for it."""


class FrameError(DecodeError):
    """A frame on a socket is damaged or not of thinwire; `reason` is a short word for counters."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class AuthenticationError(ThinwireError, RuntimeError):
    """A peer has no valid secret or certificate, or it rejected ours."""


class ProtocolError(ThinwireError, RuntimeError):
    """Ranks made different requests; the text names step, ranks and requests."""


class CheckpointError(ThinwireError, RuntimeError):
    """A checkpoint cannot be written or read; the text names file and field; `errno` is that of the system, if any."""

    def __init__(self, text: str, errno: int | None = None) -> None:
        super().__init__(text)
        self.errno = errno


class PeerLostError(ThinwireError, ConnectionError):
    """Another rank closed its connection or did not answer in time."""

    peer = ""  # its name, if peers have names
    log = ""  # its error output, if this process started it


class ClosedError(ThinwireError, RuntimeError):
    """A handle or a driver was used after it was closed or detached."""


class ConfigMismatch(ThinwireError, ValueError):
    """Ranks have different settings; the text names the field, the values and the ranks. Nothing was trained."""


class DivergedError(ThinwireError, RuntimeError):
    """Replicas that must be equal differ; the text names the first parameter and the ranks."""


class MissingExtra(ThinwireError, ImportError):
    """An optional package is not installed; the text has the command that installs it."""


class UnsupportedTorch(ThinwireError, RuntimeError):
    """This version of torch lacks a private API that thinwire uses; the text names it, and versions that have it."""


class NonFiniteError(ThinwireError, ArithmeticError):
    """Too many consecutive steps had a NaN or an infinity; the text names ranks and parameters."""
