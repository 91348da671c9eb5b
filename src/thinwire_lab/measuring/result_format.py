"""Read result files of earlier versions: keys that were renamed since format 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HEAD_KEYS = {"about": "description"}
_RUN_KEYS = {"adapting": "controller", "looking_bytes": "measurement_bytes"}


def upgrade_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the keys of this version; one that has them is returned unchanged."""
    upgraded = _rename(result, _HEAD_KEYS)
    if isinstance(upgraded.get("target"), Mapping):
        upgraded["target"] = _rename(upgraded["target"], {"measure": "metric"})
    if "runs" in upgraded:
        upgraded["runs"] = [_upgrade_run(run) for run in upgraded["runs"]]
    return upgraded


def _upgrade_run(run: Mapping[str, Any]) -> dict[str, Any]:
    upgraded = _rename(run, _RUN_KEYS)
    if "plans" in upgraded:
        upgraded["plans"] = [
            {**plan, "layers": {name: _rename(chosen, {"entry": "option"}) for name, chosen in plan["layers"].items()}}
            for plan in upgraded["plans"]
        ]
    return upgraded


def _rename(table: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in table.items()}
