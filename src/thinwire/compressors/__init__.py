"""One lossy map per file: settings, a contract, encode and decode. No memory, no collectives."""

from .adaptive_threshold import AdaptiveThreshold
from .cast import Cast
from .identity import Identity
from .level_search import LevelSearch
from .maxmin import MaxMin
from .natural import Natural
from .power2 import PowerOfTwo
from .qsgd import QSGD
from .randomk import RandomK
from .sign import ScaledSign
from .square_stochastic import SquareStochastic
from .ternary import Ternary
from .threshold import Threshold
from .topk import TopK
from .uniform import Uniform

__all__ = [
    "Identity", "Cast",
    "RandomK", "TopK", "Threshold", "AdaptiveThreshold", "LevelSearch", "SquareStochastic",
    "QSGD", "MaxMin", "Uniform", "Ternary", "ScaledSign", "Natural", "PowerOfTwo",
]  # fmt: skip
