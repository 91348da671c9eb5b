"""Who chooses a menu entry per layer, and when."""

from .fixed import Fixed
from .lgreco import LGreCo
from .several import Several, who_chooses

__all__ = ["Fixed", "LGreCo", "Several", "who_chooses"]
