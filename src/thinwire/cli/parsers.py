"""The one type all commands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    SubParsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
else:
    SubParsers = object
