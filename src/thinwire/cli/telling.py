"""Progress as plain lines, for commands that run beside one another."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable


def now_and_then(seconds: float = 2.0) -> Callable[[str], None]:
    """Prints the first thing it is told at once, later what is new, at most every so many seconds."""
    printed, text_before = -math.inf, ""

    def tell(text: str) -> None:
        nonlocal printed, text_before
        if text != text_before and time.monotonic() - printed >= seconds:
            printed, text_before = time.monotonic(), text
            print(text, file=sys.stderr, flush=True)

    return tell
