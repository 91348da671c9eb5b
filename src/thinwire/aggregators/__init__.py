"""Aggregators: how the ranks' tensors become each rank's average. One module per aggregator."""

from .choco import Choco
from .dense import Dense
from .density_schedule import DensitySchedule
from .flatten import Flatten
from .gather_mean import GatherMean
from .gossip import Gossip
from .parameter_server import ParameterServer
from .powersgd import PowerSGD
from .ring_all_reduce import RingAllReduce
from .sketch import SketchSum
from .sum_mean import SumMean
from .switch import Adapt, Switch
from .two_hop import TwoHop
from .union import UnionSum
from .vote import Vote

__all__ = [
    "Dense", "GatherMean", "PowerSGD", "SumMean", "TwoHop", "SketchSum", "UnionSum", "Vote",
    "Choco", "Gossip", "RingAllReduce", "ParameterServer",
    "Adapt", "DensitySchedule", "Switch", "Flatten",
]  # fmt: skip
