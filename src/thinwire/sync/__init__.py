"""When workers talk, and what they say: local rounds (`rounds`), servers (`server`) and federations (`federated`)."""

from .measures import consensus, drift, mean_and_consensus
from .optimizers import SGD, Adam, Average, Nesterov, Outer
from .policies import BSP, Drift, Every, Moment, PostLocal, SyncPolicy, period_bound
from .rounds import Rounds
from .settings import Local
from .texts import outer_of, parse_outer, parse_policy, parse_sync, sync_text
from .torch_optimizers import from_torch

__all__ = [
    "Moment", "SyncPolicy", "Every", "BSP", "PostLocal", "Drift", "period_bound",
    "Outer", "Average", "SGD", "Nesterov", "Adam", "from_torch",
    "Local", "Rounds", "consensus", "drift", "mean_and_consensus",
    "parse_sync", "parse_outer", "outer_of", "parse_policy", "sync_text",
]  # fmt: skip
