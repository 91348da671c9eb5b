"""Progress of `thinwire serve` and `thinwire join` as plain lines on standard error."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable


def throttled_print(seconds: float = 2.0) -> Callable[[str], None]:
    """A function that prints its text to standard error, at most once in `seconds` and only if the text is new."""
    last_time, last_text = -math.inf, ""

    def print_line(text: str) -> None:
        nonlocal last_time, last_text
        if text != last_text and time.monotonic() - last_time >= seconds:
            last_time, last_text = time.monotonic(), text
            print(text, file=sys.stderr, flush=True)

    return print_line
