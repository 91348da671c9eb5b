"""What commands share: a type, and how the rate of a link is read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    SubParsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
else:
    SubParsers = object


def rate(text: str) -> str:
    from ..testbed.network import rate_bits

    try:
        rate_bits(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
