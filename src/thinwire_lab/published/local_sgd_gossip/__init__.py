"""Local-SGD, gossip and sparsification in ten configurations (Tolstobrov, 2022)."""

from .experiment import build_experiment, build_plan, summarize

__all__ = ["build_experiment", "build_plan", "summarize"]
