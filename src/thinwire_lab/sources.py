"""Load a run plan from a named experiment, a TOML file, a Python function, or the config.json of an earlier run."""

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
    source: str,
    published_size: bool = False,
    data: str | None = None,
    seeds: tuple[int, ...] = (),
    selection: Selection | None = None,
) -> tuple[RunPlan, dict[str, Any]]:
    """Load a plan, and the config that is stored in the run's folder and gives the same plan again.

    Args:
        source: a name or alias of a published experiment, FILE.toml, FILE.json, or FILE.py:FUNCTION.
        published_size: run a named experiment at its published size.
        data: folder of the data sets; None: $THINWIRE_DATA, then the cache.
        seeds: used instead of the experiment's own; empty: its own.
        selection: the methods and groups to run; None: all.

    Raises:
        ConfigError: the source does not exist, or its config is wrong.
    """
    selection = selection or Selection()
    name = ALIASES.get(source, source)
    if name in SUMMARIES:
        values = {"named": name, "published_size": published_size, "data": data, "seeds": seeds}
        values |= {"methods": selection.methods, "groups": selection.groups}
        config = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items() if v != ()}
        return build_named_plan(name, published_size, data, seeds, selection), config
    path, _, function = source.partition(":")
    if not Path(path).is_file():
        near = difflib.get_close_matches(source, [*SUMMARIES, *ALIASES], 1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"{source}: no such file and no named experiment{meant}; there are {', '.join(SUMMARIES)}")
    if published_size:
        raise ConfigError(f"--published-size: only named experiments have a published size, {path} is a file")
    if path.endswith(".json"):
        stored = _read_stored_config(Path(path))
        if "named" in stored:
            full = bool(stored.get("published_size", stored.get("full", False)))  # "full" before format 2
            seeds = seeds or tuple(stored.get("seeds", ()))
            selection = selection or Selection(tuple(stored.get("methods", ())), tuple(stored.get("groups", ())))
            return load_run_plan(stored["named"], full, data or stored.get("data"), seeds, selection)
        data = data or stored.pop("data", None)
        experiment = Experiment.from_dict(stored, name=Path(path).stem)
    else:
        experiment = _call_function(Path(path), function) if function else read_experiment(Path(path))
    if seeds:
        experiment = replace(experiment, seeds=seeds)
    experiment = selection.apply_to(experiment)
    try:
        return build_run_plan(experiment, data), {**experiment.to_dict(), **({"data": data} if data else {})}
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _read_stored_config(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(stored, dict):
        raise ConfigError(f"{path}: must contain a table of keys and values, got a {type(stored).__name__}")
    return stored


def _call_function(path: Path, name: str) -> Experiment:
    """Call a function of a Python file; it returns an Experiment, or a dict with the keys of a TOML file."""
    if path.suffix != ".py":
        raise ConfigError(f"{path}:{name}: FILE.py:FUNCTION needs a Python file, got {path.name!r}")
    module = import_file(path)
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{path}: has no function {name!r}")
    result = function()
    return result if isinstance(result, Experiment) else Experiment.from_dict(result, name=path.stem)
