"""When workers talk, and what they say: local rounds (`rounds`), servers (`server`) and federations (`federated`)."""

from .client import FederatedClient
from .federated import Federation
from .measures import consensus, drift, mean_and_consensus
from .members import Pace
from .optimizers import SGD, Adam, Average, Nesterov, Outer
from .policies import BSP, Drift, Every, Moment, PostLocal, SyncPolicy, period_bound
from .robust import Rule
from .rounds import Rounds
from .sampling import Rounds as FederatedRounds
from .server import Server
from .settings import Local
from .texts import outer_of, parse_outer, parse_policy, parse_sync, sync_text
from .torch_optimizers import from_torch
from .worker import Worker

__all__ = [
    "Moment", "SyncPolicy", "Every", "BSP", "PostLocal", "Drift", "period_bound",
    "Outer", "Average", "SGD", "Nesterov", "Adam", "from_torch",
    "Local", "Rounds", "consensus", "drift", "mean_and_consensus",
    "Server", "Pace", "Worker", "Federation", "FederatedRounds", "Rule", "FederatedClient",
    "parse_sync", "parse_outer", "outer_of", "parse_policy", "sync_text",
]  # fmt: skip
