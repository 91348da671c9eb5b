"""Aggregators around aggregators that remember what was lost."""

from .dgc import DGC
from .ef21 import EF21
from .error_feedback import ErrorFeedback
from .residuals import ResidualMemory
from .scam import SCAM

__all__ = ["DGC", "EF21", "SCAM", "ErrorFeedback", "ResidualMemory"]
