"""Requirements of the testbed: the commands ip and tc, and the permission to build network namespaces."""

from __future__ import annotations

import shutil

from thinwire.self_test import Finding

from .network import explain_unavailable


def examine_tools() -> list[Finding]:
    """Findings for `thinwire doctor`."""
    reason = explain_unavailable()
    tools = {name: shutil.which(name) for name in ("ip", "tc")}
    return [
        *(Finding(name, path or "not found; only the testbed needs it") for name, path in tools.items()),
        Finding("testbed", f"no namespaces: {reason}" if reason else "namespaces can be built"),
    ]
