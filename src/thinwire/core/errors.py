"""Every error thinwire raises on purpose. Each text names the part, the value received and what would do."""

from __future__ import annotations


class ThinwireError(Exception):
    """Base of all errors of this package."""


class CompositionError(ThinwireError, ValueError):
    """A composition string or a part's setting is wrong; the text points at the place."""


class PluginError(CompositionError):
    """A part or task that is asked for comes from another package, which cannot be loaded; the text names it."""


class PluginWarning(UserWarning):
    """Another package offers parts or tasks that cannot be loaded; what does not use them is not affected."""


class IncompatibleParts(ThinwireError, TypeError):
    """Two parts cannot be put together; raised when they are, not at step 900."""


class DecodeError(ThinwireError, ValueError):
    """A payload is not what an encoder could have written. Nothing was allocated for it."""


class FrameError(DecodeError):
    """A frame on a socket was damaged or is not one of ours; `reason` is one word or two, for counting."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class AuthenticationError(ThinwireError, RuntimeError):
    """A peer does not hold the shared secret or a certificate we trust, or we do not hold one that it trusts."""


class ProtocolError(ThinwireError, RuntimeError):
    """Ranks disagree about what happens next; the text names step, ranks and requests."""


class CheckpointError(ThinwireError, RuntimeError):
    """A checkpoint cannot be written or read; the text names file and field, `errno` is the system's if it has one."""

    def __init__(self, text: str, errno: int | None = None) -> None:
        super().__init__(text)
        self.errno = errno


class PeerLostError(ThinwireError, ConnectionError):
    """Another rank closed its connection or did not answer in time."""

    peer = ""  # its name, where peers have names
    log = ""  # its whole error output, where we started it


class ClosedError(ThinwireError, RuntimeError):
    """A handle or a driver was used after it had been closed or detached."""


class ConfigMismatch(ThinwireError, ValueError):
    """Ranks were given different settings; the text names the field, the values and the ranks. Nothing was trained."""


class DivergedError(ThinwireError, RuntimeError):
    """Replicas that must be equal are not; the text names the first parameter and the ranks."""


class MissingExtra(ThinwireError, ImportError):
    """A package that only some wish for is not installed; the text has the command that installs it."""


class UnsupportedTorch(ThinwireError, RuntimeError):
    """This torch lacks something private that thinwire uses; the text names it, and versions that have it."""


class NonFiniteError(ThinwireError, ArithmeticError):
    """Too many steps in a row had a NaN or an infinity; the text names ranks and parameters."""
