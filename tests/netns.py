"""Two hosts on one machine: network namespaces of our own, joined by a cable of our own. Needs root and iproute2."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from contextlib import ExitStack, contextmanager

DEVICE = "eth0"  # of the cable, in both namespaces


def why_not():
    """What stands against namespaces here, for a skip; empty if nothing does."""
    if os.geteuid() != 0:
        return "building network namespaces needs root"
    if shutil.which("ip") is None:
        return "building network namespaces needs `ip` (iproute2)"
    try:
        with cable():
            return ""
    except RuntimeError as error:
        return f"this machine lets nobody build network namespaces: {error}"


@contextmanager
def cable():
    """The names of two namespaces with a DEVICE each, joined and unshaped; both are gone afterwards, come what may."""
    mark = f"thinwire-{os.getpid()}-{secrets.token_hex(3)}"
    names = (f"{mark}-0", f"{mark}-1")
    with ExitStack() as undo:
        for name in names:
            _ip("netns", "add", name)
            undo.callback(_ip, "netns", "delete", name)
        _ip("link", "add", DEVICE, "netns", names[0], "type", "veth", "peer", "name", DEVICE, "netns", names[1])
        for host, name in enumerate(names, start=1):
            _ip("-n", name, "address", "add", f"10.77.1.{host}/24", "dev", DEVICE)
            _ip("-n", name, "link", "set", DEVICE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names


def inside(name, *command):
    """The command that runs `command` in a namespace."""
    return ["ip", "netns", "exec", name, *command]


def _ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
