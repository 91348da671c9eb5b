"""Compressed communication for distributed PyTorch training over links that are too thin for the gradients.

Names are loaded on first use, so that `thinwire --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import checkpoint, compressors, moments
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
        MissingExtra,
        NonFiniteError,
        PeerLostError,
        PluginError,
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
    from .integrations.ddp_handle import DDPHandle
    from .integrations.hook_state import HookState, hook
    from .integrations.local_handle import LocalHandle
    from .integrations.moments_handle import MomentsHandle
    from .integrations.torch_checkpoint import load_dcp

__version__ = "0.1.0"

_MODULE_OF = {
    "attach": "api", "local": "api", "serve": "api", "join": "api",
    "HookState": "integrations.hook_state", "hook": "integrations.hook_state",
    "load_dcp": "integrations.torch_checkpoint",
    "DDPHandle": "integrations.ddp_handle", "LocalHandle": "integrations.local_handle",
    "MomentsHandle": "integrations.moments_handle",
    "parse": "catalog", "register": "catalog", "to_text": "catalog", "Exchanger": "exchange",
    "lockstep": "drivers.lockstep", "Meter": "drivers.meter", "TorchDist": "drivers.torch_dist",
    "ImportanceSolver": "importance", "ModuleObjective": "importance", "Refresher": "importance",
    "loopback": "core", "TensorSpec": "core", "World": "core",
    "ThinwireError": "core", "CompositionError": "core", "DecodeError": "core", "IncompatibleParts": "core",
    "PeerLostError": "core", "ProtocolError": "core", "CheckpointError": "core", "ClosedError": "core",
    "ConfigMismatch": "core", "DivergedError": "core", "NonFiniteError": "core", "MissingExtra": "core",
    "PluginError": "core", "FrameError": "core", "AuthenticationError": "core", "UnsupportedTorch": "core",
}  # fmt: skip
_SUBMODULES = ("moments", "checkpoint", "compressors")

__all__ = [
    "attach", "local", "serve", "join", "HookState", "hook", "DDPHandle", "LocalHandle", "MomentsHandle",
    "load_dcp", "moments", "checkpoint", "compressors",
    "parse", "register", "to_text", "Exchanger", "lockstep", "Meter", "TorchDist",
    "loopback", "TensorSpec", "World", "ImportanceSolver", "ModuleObjective", "Refresher",
    "ThinwireError", "CompositionError", "DecodeError", "IncompatibleParts", "PeerLostError", "ProtocolError",
    "CheckpointError", "ClosedError", "ConfigMismatch", "DivergedError", "NonFiniteError", "MissingExtra",
    "PluginError", "FrameError", "AuthenticationError", "UnsupportedTorch",
    "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _MODULE_OF:
        known = ", ".join((*_MODULE_OF, *_SUBMODULES))
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}; it has {known}")
    return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
