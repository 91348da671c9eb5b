"""One way of combining per file: local tensors in, each rank's view of their average out."""

from .dense import Dense
from .gather_mean import GatherMean
from .powersgd import PowerSGD
from .scheduled import Scheduled
from .sketch import SketchSum
from .sum_mean import SumMean
from .switch import Switch
from .two_hop import TwoHop
from .union import UnionSum
from .vote import Vote

__all__ = [
    "Dense", "GatherMean", "PowerSGD", "SumMean", "TwoHop", "SketchSum", "UnionSum", "Vote",
    "Scheduled", "Switch",
]  # fmt: skip
