"""Checkpoints that are there whole or not at all: safetensors and JSON with checksums. Nothing is ever unpickled."""

from .store import load, save, steps

__all__ = ["save", "load", "steps"]
