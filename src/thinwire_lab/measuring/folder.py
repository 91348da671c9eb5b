"""The folder of a run: its config, one folder per job with result and checkpoints, the result file and the report.

config.json        what was run; `thinwire run FOLDER/config.json` repeats it
about.json         command, versions, machine, start time, format
jobs/KEY/          result.json when the job is done, checkpoint/ and times/ until then, trace.json
result.json        everything that reports and tables read
report.html
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thinwire import __version__
from thinwire.core import ThinwireError, write_atomically

FORMAT = 2  # of a run's folder; 1 had other keys in config.json and in checkpoints
TIMES_FOLDER = "times"  # in a job's folder: the request log of each rank


class RunFolderError(ThinwireError, ValueError):
    """A folder is not the folder of a run, or cannot be read or resumed."""


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], command: str) -> RunFolder:
        """Create a new folder at `path`, or at NAME-2, NAME-3, ... if `path` is not empty."""
        place, count = path, 1
        while place.exists() and any(place.iterdir()):
            count += 1
            place = path.with_name(f"{path.name}-{count}")
        (place / "jobs").mkdir(parents=True)
        folder = cls(place)
        write_json(place / "config.json", config)
        about = {"format": FORMAT, "command": command, "versions": package_versions(), "machine": describe_machine()}
        write_json(place / "about.json", about | {"started": time.strftime("%Y-%m-%d %H:%M:%S %z")})
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an earlier run."""
        if not (path / "config.json").is_file():
            raise RunFolderError(f"{path} is not the folder of a run: it has no config.json")
        return cls(path)

    def read(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / name).read_text()))
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.path / name} cannot be read: {error}") from error

    def check_format(self) -> None:
        """Raise RunFolderError if another version of thinwire wrote the folder, so that it cannot be resumed."""
        found = self.read("about.json").get("format", 1)
        if found != FORMAT:
            raise RunFolderError(
                f"{self.path} has format {found}, this version of thinwire resumes format {FORMAT}: keys of its config "
                "and of its checkpoints were renamed. `thinwire show` and `thinwire report` read it; to run it again, "
                "start a new run"
            )

    def job_folder(self, key: str) -> Path:
        """The folder of a job, created if needed."""
        place = self.path / "jobs" / key
        place.mkdir(parents=True, exist_ok=True)
        return place

    def read_result(self, key: str) -> dict[str, Any] | None:
        """The result of a job; None until it is done."""
        if not (self.path / "jobs" / key / "result.json").is_file():
            return None
        return self.read(f"jobs/{key}/result.json")

    def store_result(self, key: str, result: Mapping[str, Any]) -> None:
        write_json(self.job_folder(key) / "result.json", result)
        for name in ("checkpoint", TIMES_FOLDER):
            shutil.rmtree(self.job_folder(key) / name, ignore_errors=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write strict JSON atomically; numbers that are not finite become null."""
    write_atomically(path, (json.dumps(_plain(value), indent=1) + "\n").encode())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def package_versions() -> dict[str, str]:
    import numpy
    import torch

    return {
        "thinwire": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def describe_machine() -> dict[str, Any]:
    """What measured times depend on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
