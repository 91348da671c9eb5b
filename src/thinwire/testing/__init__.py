"""Laws of parts, for the tests of packages that bring their own."""

from .capabilities import check_capabilities, contradictions, observed

__all__ = ["check_capabilities", "contradictions", "observed"]
