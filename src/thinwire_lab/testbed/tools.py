"""What the testbed needs of this machine: the commands ip and tc, and the right to build network namespaces."""

from __future__ import annotations

import shutil

from thinwire.self_test import Finding

from .network import why_not


def examine_tools() -> list[Finding]:
    """Lines for `thinwire doctor`."""
    no_network = why_not()
    tools = {name: shutil.which(name) for name in ("ip", "tc")}
    return [
        *(Finding(name, path or "not found; only the testbed needs it") for name, path in tools.items()),
        Finding("testbed", f"no namespaces: {no_network}" if no_network else "namespaces can be built"),
    ]
