"""Compressors: one lossy map per file, with settings, a contract, encode and decode. No state, no communication."""

from .cast import Cast
from .cp import CP
from .energy_sampling import EnergySampling
from .identity import Identity
from .impk import ImpK
from .importance_sampling import ImportanceSampling
from .importance_topk import ImportanceTopK
from .level_threshold import LevelThreshold
from .minmax import MinMax
from .natural import Natural
from .nearest_power2 import NearestPower2
from .projection import RandomProjection
from .qsgd import QSGD
from .quantile_threshold import QuantileThreshold
from .randomized_svd import RandomizedSVD
from .randomk import RandomK
from .sign import ScaledSign
from .svd import TruncatedSVD
from .tensor_train import TensorTrain
from .ternary import Ternary
from .threshold import Threshold
from .topk import TopK
from .tucker import HOSVD, STHOSVD
from .uniform import Uniform

__all__ = [
    "Identity", "Cast",
    "RandomK", "TopK", "Threshold", "QuantileThreshold", "LevelThreshold", "EnergySampling",
    "ImpK", "ImportanceTopK", "ImportanceSampling",
    "QSGD", "MinMax", "Uniform", "Ternary", "ScaledSign", "Natural", "NearestPower2",
    "TruncatedSVD", "RandomizedSVD", "RandomProjection", "STHOSVD", "HOSVD", "TensorTrain", "CP",
]  # fmt: skip
