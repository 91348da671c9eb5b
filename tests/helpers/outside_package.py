"""A package of another author on a temporary path, with the entry points of its pyproject.toml, as pip would install it."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thinwire.catalog import REGISTRY
from thinwire.testing import keep_registry
from thinwire_lab import tasks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE = Path(__file__).parents[1] / "outside"


def install_outside(place: Path) -> Path:
    """tests/outside, in this folder."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    shutil.copytree(SOURCE / "thinwire_outside", place / "thinwire_outside")
    install(place, project["name"], project["entry-points"])
    return place


def install(place: Path, name: str, entry_points: dict[str, dict[str, str]]) -> None:
    """The metadata of a package; its modules are there, or missing."""
    folder = place / f"{name.replace('-', '_')}-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    groups = (
        "\n".join([f"[{group}]", *(f"{n} = {v}" for n, v in them.items())]) for group, them in entry_points.items()
    )
    (folder / "entry_points.txt").write_text("\n".join(groups) + "\n")


@contextmanager
def on_path(place: Path) -> Iterator[None]:
    """With the packages of this folder installed; afterwards nothing is left of them."""
    held = dict(tasks.TASKS)
    sys.path.insert(0, str(place))
    importlib.invalidate_caches()
    try:
        with keep_registry():
            REGISTRY.plugins.reset()
            tasks.PLUGINS.reset()
            yield
    finally:
        sys.path.remove(str(place))
        for name in [name for name in sys.modules if name.partition(".")[0] in ("thinwire_outside", "thinwire_broken")]:
            del sys.modules[name]
        tasks.TASKS.clear()
        tasks.TASKS.update(held)
        tasks.PLUGINS.reset()
