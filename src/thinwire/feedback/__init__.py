"""Aggregators around aggregators that remember what was lost."""

from .ef21 import EF21
from .error_feedback import ErrorFeedback

__all__ = ["EF21", "ErrorFeedback"]
