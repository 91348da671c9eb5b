"""Run the contract, parity, DDP and local suites with the oldest and newest Python and torch, in virtual environments.

Writes the results to src/thinwire/core/tested_versions.json, which `thinwire doctor` reads, and to the README. The
CUDA builds of torch on PyPI need about 7 GB each, so environments are removed unless --keep is given; with PyTorch's
index of CPU wheels (PIP_EXTRA_INDEX_URL) they need less.

    make test-versions                                                # python tools/test_versions.py
    make test-versions PYTHONS=python3.12 TORCHES="2.11 newest"       # ... --python python3.12 --torch 2.11 newest
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "src" / "thinwire" / "core" / "tested_versions.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- written by make test-versions -->\n", "<!-- until here -->\n"
SUITES = (
    "tests/contracts",
    "tests/parity",
    "tests/unit/test_exchange.py",
    "tests/unit/core/test_torch_private.py",
    "tests/unit/drivers/test_torch_dist.py",
    "tests/unit/integrations",
)
OLDEST_PYTHON, LAST_MINOR = "python3.10", 20  # highest minor release that is searched
VERSIONS = "import platform, torch, numpy; print(platform.python_version(), torch.__version__, numpy.__version__)"

Entry = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    pythons, missing = find_interpreters(options.python)
    if missing:
        print(f"Not found: {', '.join(missing)}. Install them, or give the path of an interpreter: --python PATH")
    if not pythons:
        return 2
    entries = []
    for python in pythons:
        for torch in options.torch:
            folder = options.venvs / f"{python.name}-torch-{torch}"
            try:
                entries.append(run_one(python, torch, folder, options))
            finally:
                if not options.keep:
                    shutil.rmtree(folder, ignore_errors=True)
    print(table(entries))
    if not options.no_record:
        record(entries)
    return 1 if missing or any(entry["failed"] or not entry["passed"] for entry in entries) else 0


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python",
        nargs="+",
        metavar="NAME_OR_PATH",
        help="interpreters to test (default: python3.10 and the newest one found)",
    )
    parser.add_argument(
        "--torch",
        nargs="+",
        default=["oldest", "newest"],
        help="releases such as 2.11, oldest (the oldest supported one) or newest (default: oldest newest)",
    )
    parser.add_argument("--suites", nargs="+", default=SUITES, help="arguments for pytest (default: the main suites)")
    parser.add_argument(
        "--venvs", type=Path, default=ROOT / ".venvs", help="folder of the environments (default: .venvs)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the environments and use them the next time")
    parser.add_argument("--no-record", action="store_true", help="do not update the record and the README")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="factor on the time limits of tests, for busy machines (default: 1)"
    )
    return parser.parse_args(arguments)


def find_interpreters(names: Sequence[str] | None) -> tuple[list[Path], list[str]]:
    """Paths of interpreters and names that were not found; without names, the oldest and the newest."""
    if not names:
        newer = (find_interpreter(f"python3.{minor}") for minor in range(LAST_MINOR, 10, -1))
        newest = next((path for path in newer if path), None)
        names = [OLDEST_PYTHON, *([str(newest)] if newest else [])]
    found = {name: find_interpreter(name) for name in names}
    paths = [path for path in found.values() if path]
    return list(dict.fromkeys(paths)), [name for name, path in found.items() if path is None]


def find_interpreter(name: str) -> Path | None:
    """The path of an interpreter on PATH or of pyenv, if it runs (pyenv has names for inactive versions)."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(name), *sorted(map(str, pyenv.glob(f"*/bin/{name}")), reverse=True)]
    for candidate in filter(None, candidates):
        asked = [
            candidate,
            "-c",
            "import sys, venv; print(f'{sys.version_info[0]}.{sys.version_info[1]}', sys.executable)",
        ]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            release, executable = done.stdout.split(maxsplit=1)
            path = Path(executable.strip())
            return path.with_name(f"python{release}") if path.with_name(f"python{release}").exists() else path
    return None


def run_one(python: Path, torch: str, folder: Path, options: argparse.Namespace) -> Entry:
    """Install and test one combination of Python and torch."""
    began = time.monotonic()
    print(f"{python.name} with torch {torch}: installing ...", flush=True)
    if not (folder / "bin" / "python").exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    own = folder / "bin" / "python"
    run = {"cwd": ROOT, "env": environment(options.patience)}
    pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*pip, "-e", ".[dev]", torch_requirement(torch)], check=True, **run)
    versions = subprocess.run([own, "-c", VERSIONS], check=True, capture_output=True, text=True, **run).stdout.split()
    print(f"{python.name} with torch {versions[1]}: testing ...", flush=True)
    result = folder / "result.xml"
    result.unlink(missing_ok=True)
    pytest = [own, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    tests = [*pytest, f"--timeout={120 * options.patience:g}", f"--junitxml={result}", *options.suites]
    subprocess.run(tests, check=False, **run)
    counts = count_results(result)
    print(f"{python.name} with torch {versions[1]}: {counts}, {(time.monotonic() - began) / 60:.1f} min", flush=True)
    return dict(zip(("python", "torch", "numpy"), versions, strict=True)) | {"date": str(date.today())} | counts


def environment(patience: float) -> dict[str, str]:
    """The environment of this process without PYTHONPATH."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"THINWIRE_TEST_PATIENCE": str(patience)}


def torch_requirement(torch: str) -> str:
    """The requirement for pip. oldest: from pyproject.toml; newest: any version."""
    if torch == "oldest":
        torch = re.findall(r'"torch>=([\d.]+)', (ROOT / "pyproject.toml").read_text())[0]
    return "torch" if torch == "newest" else f"torch=={torch}.*"


def count_results(file: Path) -> dict[str, int]:
    """Counts from pytest's JUnit file; without a file the run has failed."""
    if not file.exists():
        return {"passed": 0, "failed": 1, "skipped": 0}
    suites = list(ElementTree.parse(file).getroot().iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return {"passed": total - failures - errors - skipped, "failed": failures + errors, "skipped": skipped}


def record(entries: Iterable[Entry]) -> None:
    """Replace the entries of the same releases of Python and torch in the record and in the README."""
    stored = {releases(entry): entry for entry in json.loads(RECORD.read_text())}
    stored |= {releases(entry): entry for entry in entries}
    ordered = [stored[key] for key in sorted(stored)]
    RECORD.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in ordered) + "\n]\n")
    before, _, rest = README.read_text().partition(BEGIN)
    README.write_text(before + BEGIN + "\n" + table(ordered) + "\n\n" + END + rest.partition(END)[2])


def releases(entry: Entry) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, entry[name].split("+")[0].split(".")[:2])) for name in ("python", "torch"))


def table(entries: Iterable[Entry]) -> str:
    head = [
        "| Python | torch | numpy | date | passed | failed | skipped |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    columns = ("python", "torch", "numpy", "date", "passed", "failed", "skipped")
    return "\n".join([*head, *("| " + " | ".join(str(entry[c]) for c in columns) + " |" for entry in entries)])


if __name__ == "__main__":
    sys.exit(main())
