"""L-GreCo and other per-layer controllers (Alimohammadi et al., 2024)."""

from .experiment import build_experiment, build_plan
from .tables import summarize

__all__ = ["build_experiment", "build_plan", "summarize"]
