"""Compressing Adam's moments between hosts (Maslov & Polyakov, 2026)."""

from .experiment import build_plan

__all__ = ["build_plan"]
