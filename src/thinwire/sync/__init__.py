"""When workers talk, and what they say: local rounds (`rounds`), servers (`server`) and federations (`federated`)."""

from .measures import consensus, drift, mean_and_consensus
from .outer import Average, Nesterov, Outer, OuterSGD
from .policies import BSP, Drift, Every, Moment, PostLocal, SyncPolicy, period_bound
from .rounds import Rounds
from .settings import Local
from .texts import parse_outer, parse_policy, parse_sync, sync_text

__all__ = [
    "Moment", "SyncPolicy", "Every", "BSP", "PostLocal", "Drift", "period_bound",
    "Outer", "Average", "OuterSGD", "Nesterov",
    "Local", "Rounds", "consensus", "drift", "mean_and_consensus",
    "parse_sync", "parse_outer", "parse_policy", "sync_text",
]  # fmt: skip
