"""Who chooses a menu entry per layer, and when."""

from .accordion import Accordion
from .by_size import BySize
from .fixed import Fixed
from .kmeans import KMeans
from .lgreco import LGreCo
from .several import Several, elsewhere, explained, who_chooses

__all__ = [
    "Accordion", "BySize", "Fixed", "KMeans", "LGreCo", "Several", "elsewhere", "explained", "who_chooses",
]  # fmt: skip
