"""Controllers: choose one option of each layer's menu during training."""

from .accordion import Accordion
from .by_size import BySize
from .composite import CompositeController, report_controller, resize_state, resolve_controller
from .fixed import Fixed
from .kmeans import KMeans
from .lgreco import LGreCo

__all__ = [
    "Accordion", "BySize", "CompositeController", "Fixed", "KMeans", "LGreCo", "report_controller", "resize_state",
    "resolve_controller",
]  # fmt: skip
