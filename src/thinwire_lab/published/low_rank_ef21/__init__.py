"""Low-rank compressors with and without EF21 (Rebrikov et al., 2024)."""

from .experiment import build_experiment, build_plan, summarize

__all__ = ["build_experiment", "build_plan", "summarize"]
