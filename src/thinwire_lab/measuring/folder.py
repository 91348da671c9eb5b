"""The folder a run leaves: its config, a folder for each job with result and checkpoints, one result file, a report.

config.json        what was asked for; `thinwire run FOLDER/config.json` does the same again
about.json         command, versions, machine, when it began
jobs/KEY/          result.json when it is done, checkpoint/ and times/ until then, trace.json
result.json        everything reports and tables read
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
from thinwire.core import ThinwireError, write_whole

TIMES = "times"  # of a job's folder: when each rank asked and was answered, one file a rank


class RunFolderError(ThinwireError, ValueError):
    """A folder is not what a run leaves, or not the run that is asked for."""


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def new(cls, path: Path, config: Mapping[str, Any], command: str) -> RunFolder:
        """In an empty place: if there is something already, beside it, as NAME-2, NAME-3 and so on."""
        place, count = path, 1
        while place.exists() and any(place.iterdir()):
            count += 1
            place = path.with_name(f"{path.name}-{count}")
        (place / "jobs").mkdir(parents=True)
        folder = cls(place)
        write_json(place / "config.json", config)
        about = {"command": command, "versions": versions(), "machine": machine()}
        write_json(place / "about.json", about | {"started": time.strftime("%Y-%m-%d %H:%M:%S %z")})
        return folder

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        if not (path / "config.json").is_file():
            raise RunFolderError(f"{path} is no folder of a run: it has no config.json")
        return cls(path)

    def read(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / name).read_text()))
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.path / name} cannot be read: {error}") from error

    def job(self, key: str) -> Path:
        place = self.path / "jobs" / key
        place.mkdir(parents=True, exist_ok=True)
        return place

    def result_of(self, key: str) -> dict[str, Any] | None:
        """None until the job is done."""
        if not (self.path / "jobs" / key / "result.json").is_file():
            return None
        return self.read(f"jobs/{key}/result.json")

    def store(self, key: str, result: Mapping[str, Any]) -> None:
        write_json(self.job(key) / "result.json", result)
        for name in ("checkpoint", TIMES):
            shutil.rmtree(self.job(key) / name, ignore_errors=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Strict JSON (what is not finite becomes null), whole or not at all."""
    write_whole(path, (json.dumps(_plain(value), indent=1) + "\n").encode())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    import numpy
    import torch

    return {
        "thinwire": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def machine() -> dict[str, Any]:
    """What figures of time depend on."""
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
