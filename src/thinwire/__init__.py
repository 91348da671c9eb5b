"""Distributed training over links that are too thin for the gradients.

Names are loaded when they are first used, so that `thinwire --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import moments
    from .api import attach, join, local, serve
    from .catalog import parse, register, to_text
    from .core import (
        AuthenticationError,
        CheckpointError,
        ClosedError,
        CompositionError,
        ConfigMismatch,
        DecodeError,
        DivergedError,
        FrameError,
        IncompatibleParts,
        NonFiniteError,
        PeerLostError,
        ProtocolError,
        TensorSpec,
        ThinwireError,
        UnsupportedTorch,
        World,
        loopback,
    )
    from .drivers.lockstep import lockstep
    from .drivers.meter import Meter
    from .drivers.torch_dist import TorchDist
    from .exchange import Exchanger
    from .importance import ImportanceSolver, ModuleObjective, Refresher
    from .integrations.torch_checkpoint import load_dcp

__version__ = "0.1.0"

_HOME = {
    "attach": "api", "local": "api", "serve": "api", "join": "api",
    "load_dcp": "integrations.torch_checkpoint",
    "parse": "catalog", "register": "catalog", "to_text": "catalog", "Exchanger": "exchange",
    "lockstep": "drivers.lockstep", "Meter": "drivers.meter", "TorchDist": "drivers.torch_dist",
    "ImportanceSolver": "importance", "ModuleObjective": "importance", "Refresher": "importance",
    "loopback": "core", "TensorSpec": "core", "World": "core",
    "ThinwireError": "core", "CompositionError": "core", "DecodeError": "core", "IncompatibleParts": "core",
    "PeerLostError": "core", "ProtocolError": "core", "CheckpointError": "core", "ClosedError": "core",
    "ConfigMismatch": "core", "DivergedError": "core", "NonFiniteError": "core",
    "FrameError": "core", "AuthenticationError": "core", "UnsupportedTorch": "core",
}  # fmt: skip
_ROOMS = ("moments",)  # whole modules

__all__ = [
    "attach", "local", "serve", "join",
    "load_dcp", "moments", "parse", "register", "to_text", "Exchanger", "lockstep", "Meter", "TorchDist",
    "loopback", "TensorSpec", "World", "ImportanceSolver", "ModuleObjective", "Refresher",
    "ThinwireError", "CompositionError", "DecodeError", "IncompatibleParts", "PeerLostError", "ProtocolError",
    "CheckpointError", "ClosedError", "ConfigMismatch", "DivergedError", "NonFiniteError", "FrameError",
    "AuthenticationError", "UnsupportedTorch",
    "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}; it has {', '.join((*_HOME, *_ROOMS))}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
