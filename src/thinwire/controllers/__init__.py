"""Who chooses a menu entry per layer, and when."""

from .fixed import Fixed

__all__ = ["Fixed"]
