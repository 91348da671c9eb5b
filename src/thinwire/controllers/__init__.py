"""Who chooses a menu entry per layer, and when."""

from .fixed import Fixed
from .lgreco import LGreCo
from .several import Several, explained, who_chooses

__all__ = ["Fixed", "LGreCo", "Several", "explained", "who_chooses"]
