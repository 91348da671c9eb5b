"""What the laws need besides thinwire itself: the extra `testing`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from ..core import MissingExtra

NEEDED = ("pytest", "hypothesis")
LAWS = ("aggregators", "compressors", "controllers", "decoders", "requests", "topologies", "lockstep")

if missing := [name for name in NEEDED if find_spec(name) is None]:
    raise MissingExtra(f"thinwire.testing needs {' and '.join(missing)}: pip install 'thinwire[testing]'")
if "pytest" in sys.modules:  # so that a broken law shows the values it compared
    sys.modules["pytest"].register_assert_rewrite(*(f"{__package__}.{name}" for name in LAWS))
