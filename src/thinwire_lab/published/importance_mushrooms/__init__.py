"""Importance-weighted sparsification on the mushrooms data set (Khafizov & Beznosikov, 2024)."""

from .experiment import build_plan, summarize

__all__ = ["build_plan", "summarize"]
