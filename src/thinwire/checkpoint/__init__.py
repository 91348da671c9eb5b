"""Atomic checkpoints: safetensors and JSON with checksums; nothing is ever unpickled."""

from .migration import migrate
from .store import load, save, steps

__all__ = ["save", "load", "steps", "migrate"]
