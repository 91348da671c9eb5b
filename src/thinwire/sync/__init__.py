"""Local training (`rounds`), gradient servers (`server`) and federated servers (`federated`), without transports."""

from .client import FederatedClient
from .federated import FederatedServer
from .measures import consensus, drift, mean_and_consensus
from .members import Staleness
from .optimizers import SGD, Adam, Average, Nesterov, OuterOptimizer
from .policies import BSP, Drift, Every, PostLocal, StepInfo, SyncPolicy, period_bound
from .robust import RobustMean
from .rounds import LocalRounds
from .sampling import FederatedConfig
from .server import GradientServer
from .settings import Local
from .texts import parse_outer_optimizer, parse_policy, parse_sync, resolve_outer_optimizer, sync_text
from .torch_optimizers import from_torch
from .worker import GradientWorker

__all__ = [
    "StepInfo", "SyncPolicy", "Every", "BSP", "PostLocal", "Drift", "period_bound",
    "OuterOptimizer", "Average", "SGD", "Nesterov", "Adam", "from_torch",
    "Local", "LocalRounds", "consensus", "drift", "mean_and_consensus",
    "GradientServer", "Staleness", "GradientWorker", "FederatedServer", "FederatedConfig", "RobustMean",
    "FederatedClient", "parse_sync", "parse_outer_optimizer", "resolve_outer_optimizer", "parse_policy", "sync_text",
]  # fmt: skip
