"""Builds the C kernels into the wheel, or beside their source for an editable install; goes on without a compiler."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "src/thinwire/kernels/native"


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        build = _builder(Path(self.root) / FOLDER / "build.py")
        try:
            made = build.build()
        except RuntimeError as error:
            reason = str(error).splitlines()
            self.app.display_warning(f"thinwire: built without its C kernels, torch will serve: {reason[0]}")
            for line in reason[1:]:
                self.app.display_warning(line)
            return
        # hatch leaves out what git ignores, unless it is an artifact
        build_data["artifacts"] += [path.relative_to(self.root).as_posix() for path in made]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"  # plain C: one wheel serves every Python and torch


def _platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _builder(path: Path) -> Any:
    """build.py alone: importing the package would need torch, which is not there yet."""
    spec = importlib.util.spec_from_file_location("thinwire_native_build", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
