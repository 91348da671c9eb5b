"""The guardian of a testbed: a process that outlives its owner and clears up when the owner ends, however it ends.

It is the only one that clears up, so that a good end and a SIGKILL go the same way. It is run as a file and needs the
standard library alone: it starts fast, and nothing in a user's folder can stand in its way.
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
_MARK = re.compile(r"(thinwire-(\d+)-(\d+)-[0-9a-f]{6})-.+")
_FAREWELL = "farewell"


class Guardian:
    """Clears up what bears `mark`, and the process groups it watches, as soon as this process closes it or ends."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        command = [sys.executable, "-I", __file__, mark]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd="/", start_new_session=True
        )

    def watch(self, group: int) -> None:
        """End this process group, too: for workers that no namespace holds."""
        self._tell(f"watch {group}")

    def forget(self, group: int) -> None:
        """The group is gone; its number may be another's soon."""
        self._tell(f"forget {group}")

    def __enter__(self) -> Guardian:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._tell(_FAREWELL)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._process.wait():  # somebody killed it
            remove(self._mark)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)


def new_mark() -> str:
    """A name for one testbed, from which anybody can tell whether its owner lives."""
    return f"thinwire-{os.getpid()}-{born(os.getpid()) or 0}-{secrets.token_hex(3)}"


def born(pid: int) -> int | None:
    """When a living process began, in clock ticks: numbers are given again, pairs of both are not."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # its name may hold spaces
    except OSError:
        return None
    return None if words[0] in "ZX" else int(words[19])  # a zombie has ended


def leftovers() -> list[str]:
    """Marks of testbeds whose owner is dead and whose guardian did not come to clear up."""
    found = [match for path in NAMESPACES.glob("thinwire-*") if (match := _MARK.fullmatch(path.name))]
    return sorted({match[1] for match in found if born(int(match[2])) != int(match[3])})


def namespaces(mark: str) -> list[str]:
    return sorted(path.name for path in NAMESPACES.glob(f"{mark}-*"))


def remove(mark: str) -> None:
    """End all that runs in the namespaces of a mark, and remove them; devices and queues go with them."""
    names = namespaces(mark)
    for _ in range(20):  # what is ended may just have started something
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
    """Forgiving: another may have been quicker to remove it."""
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False).stdout


def _main(mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends when its work is done, not before
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    parted = False
    for line in sys.stdin:
        word, _, group = line.strip().partition(" ")
        if word == "watch":
            groups.add(int(group))
        elif word == "forget":
            groups.discard(int(group))
        parted |= word == _FAREWELL
    for group in groups:
        end_group(group)
    remove(mark)
    if not parted:
        time.sleep(0.3)  # the owner was killed: an `ip netns add` of its own may just be at work
        remove(mark)
    for name in namespaces(mark):
        print(f"thinwire: could not remove the network namespace {name}; ip netns delete {name}", file=sys.stderr)


if __name__ == "__main__":
    _main(sys.argv[1])
