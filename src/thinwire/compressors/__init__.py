"""One lossy map per file: settings, a contract, encode and decode. No memory, no collectives."""

from .adaptive_threshold import AdaptiveThreshold
from .cast import Cast
from .cp import CP
from .identity import Identity
from .importance import Greedy, ImpK, Stochastic
from .level_search import LevelSearch
from .maxmin import MaxMin
from .natural import Natural
from .power2 import PowerOfTwo
from .projection import RandomProjection
from .qsgd import QSGD
from .randomised_svd import RandomisedSVD
from .randomk import RandomK
from .sign import ScaledSign
from .square_stochastic import SquareStochastic
from .svd import TruncatedSVD
from .tensor_train import TensorTrain
from .ternary import Ternary
from .threshold import Threshold
from .topk import TopK
from .tucker import HOSVD, STHOSVD
from .uniform import Uniform

__all__ = [
    "Identity", "Cast",
    "RandomK", "TopK", "Threshold", "AdaptiveThreshold", "LevelSearch", "SquareStochastic",
    "ImpK", "Greedy", "Stochastic",
    "QSGD", "MaxMin", "Uniform", "Ternary", "ScaledSign", "Natural", "PowerOfTwo",
    "TruncatedSVD", "RandomisedSVD", "RandomProjection", "STHOSVD", "HOSVD", "TensorTrain", "CP",
]  # fmt: skip
