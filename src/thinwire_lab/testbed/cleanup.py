"""The cleanup process of a testbed: it outlives its parent and removes the network when the parent ends in any way.

Only this process cleans up, so that a normal end and a SIGKILL take the same path. It is run as a file and needs only
the standard library: it starts fast, and modules in the user's folder cannot shadow its imports.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

NAMESPACES = Path("/var/run/netns")  # where `ip netns` keeps their names
_NAME = re.compile(r"(thinwire-(\d+)-(\d+)-[0-9a-f]{6})-.+")
_CLOSE = "close"


class CleanupProcess:
    """Removes the namespaces with a prefix and ends the watched process groups when this process closes it or ends."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        command = [sys.executable, "-I", __file__, prefix]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd="/", start_new_session=True
        )

    def watch(self, group: int) -> None:
        """End this process group, too: for workers outside of namespaces."""
        self._tell(f"watch {group}")

    def forget(self, group: int) -> None:
        """Stop watching: the group has ended and its number may be reused."""
        self._tell(f"forget {group}")

    def __enter__(self) -> CleanupProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._tell(_CLOSE)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._process.wait():  # it was killed
            remove_namespaces(self._prefix)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)


def new_prefix() -> str:
    """A prefix for the names of one testbed, with process id and start time, so that stale names are recognized."""
    return f"thinwire-{os.getpid()}-{start_ticks(os.getpid()) or 0}-{secrets.token_hex(3)}"


def start_ticks(pid: int) -> int | None:
    """Start time of a running process in clock ticks; with the process id it is unique. None if it does not run."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the process name may contain spaces
    except OSError:
        return None
    return None if words[0] in "ZX" else int(words[19])  # a zombie has ended


def find_stale_prefixes() -> list[str]:
    """Prefixes of testbeds that were not cleaned up although their parent process has ended."""
    found = [match for path in NAMESPACES.glob("thinwire-*") if (match := _NAME.fullmatch(path.name))]
    return sorted({match[1] for match in found if start_ticks(int(match[2])) != int(match[3])})


def list_namespaces(prefix: str) -> list[str]:
    return sorted(path.name for path in NAMESPACES.glob(f"{prefix}-*"))


def remove_namespaces(prefix: str) -> None:
    """Kill all processes in the namespaces of a prefix and remove these with their devices and queues."""
    names = list_namespaces(prefix)
    for _ in range(20):  # a process may have started another one in the meantime
        inside = [int(pid) for name in names for pid in _ip("netns", "pids", name).split()]
        for pid in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not inside:
            break
        time.sleep(0.02)
    for name in names:
        _ip("netns", "delete", name)


def end_group(group: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of a group of zombies
        os.killpg(group, number)


def _ip(*words: str) -> str:
    """Errors are ignored: the namespace may be removed already."""
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False).stdout


def _main(prefix: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends only after the cleanup
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    closed = False
    for line in sys.stdin:
        word, _, group = line.strip().partition(" ")
        if word == "watch":
            groups.add(int(group))
        elif word == "forget":
            groups.discard(int(group))
        closed |= word == _CLOSE
    for group in groups:
        end_group(group)
    remove_namespaces(prefix)
    if not closed:
        time.sleep(0.3)  # the parent was killed: an `ip netns add` of it may still run
        remove_namespaces(prefix)
    for name in list_namespaces(prefix):
        print(f"thinwire: could not remove the network namespace {name}; ip netns delete {name}", file=sys.stderr)


if __name__ == "__main__":
    _main(sys.argv[1])
