"""Memories: wrappers of aggregators that keep what was not sent and send it later. One module per method."""

from .dgc import DGC
from .ef21 import EF21
from .error_feedback import ErrorFeedback
from .residuals import ResidualMemory
from .scam import SCAM

__all__ = ["DGC", "EF21", "SCAM", "ErrorFeedback", "ResidualMemory"]
