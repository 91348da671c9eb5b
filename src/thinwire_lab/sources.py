"""Where a plan comes from: a named experiment, a TOML file, a Python function, or the config that a run left."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from .configuration.class_paths import import_file
from .configuration.config import Experiment
from .configuration.run_plan import RunPlan
from .configuration.selection import Selection
from .published import ALIASES, SUMMARIES, build_named_plan
from .running.build_jobs import build_run_plan, read_experiment
from .tables import ConfigError


def load_run_plan(
    what: str,
    full: bool = False,
    data: str | None = None,
    seeds: tuple[int, ...] = (),
    some: Selection | None = None,
) -> tuple[RunPlan, dict[str, Any]]:
    """A plan, and the config that makes it again. what: a name, FILE.toml, FILE.json, or FILE.py:FUNCTION."""
    some = some or Selection()
    what = ALIASES.get(what, what)
    if what in SUMMARIES:
        made = {"named": what, "full": full, "data": data, "seeds": seeds, "methods": some.methods}
        made |= {"groups": some.groups}
        config = {key: list(v) if isinstance(v, tuple) else v for key, v in made.items() if v != ()}
        return build_named_plan(what, full, data, seeds, some), config
    path, _, function = what.partition(":")
    if not Path(path).is_file():
        near = difflib.get_close_matches(what, list(SUMMARIES), 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{what}: neither a file nor one of {', '.join(SUMMARIES)}{meant}")
    if full:
        raise ConfigError("--full: only named experiments have a published size")
    if path.endswith(".json"):
        stored = _read_stored_config(Path(path))
        if "named" in stored:
            seeds = seeds or tuple(stored.get("seeds", ()))
            some = some or Selection(tuple(stored.get("methods", ())), tuple(stored.get("groups", ())))
            return load_run_plan(stored["named"], stored["full"], data or stored["data"], seeds, some)
        data = data or stored.pop("data", None)
        experiment = Experiment.from_dict(stored, name=Path(path).stem)
    else:
        experiment = _call_function(Path(path), function) if function else read_experiment(Path(path))
    if seeds:
        experiment = replace(experiment, seeds=seeds)
    experiment = some.of(experiment)
    try:
        return build_run_plan(experiment, data), {**experiment.to_dict(), **({"data": data} if data else {})}
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _read_stored_config(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(stored, dict):
        raise ConfigError(f"{path}: a table of keys and values is needed, got a {type(stored).__name__}")
    return stored


def _call_function(path: Path, name: str) -> Experiment:
    """What the function of a user's own file returns: an Experiment, or a dict as a TOML file has it."""
    if path.suffix != ".py":
        raise ConfigError(f"{path}: a Python file is needed for FILE.py:FUNCTION")
    module = import_file(path)
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{path}: has no function called {name!r}")
    made = function()
    return made if isinstance(made, Experiment) else Experiment.from_dict(made, name=path.stem)
