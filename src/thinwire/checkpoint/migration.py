"""Names in states that were stored before format 2, and their translation.

Format 2 changed names only: fields of states, keys of dicts, and parts and settings in composition texts (these are in
`thinwire.renamed`). `checkpoint.load` and `load_dcp` translate; a state that was stored by other means goes through
`checkpoint.migrate`. A state with present names stays as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import renamed


class KeyRule(NamedTuple):
    """In a dict that has all of `keys`, these keys are renamed."""

    keys: frozenset[str]
    names: Mapping[str, str]


class FieldRule(NamedTuple):
    """In the state of a part that has all of `fields`, these fields are renamed."""

    fields: frozenset[str]
    names: Mapping[str, str]


EXCHANGER = frozenset({"plan", "plans", "controller", "layers"})  # keys of the state of an Exchanger
KEYS = (
    KeyRule(frozenset({"steps", "entries"}), {"entries": "options"}),  # plans
    KeyRule(  # local training
        frozenset({"anchor", "flights", "departed"}),
        {
            "since": "steps_since_sync", "flights": "pending_rounds", "departed": "rounds_started",
            "averages": "full_averages",
        },
    ),
    KeyRule(  # servers
        frozenset({"intake", "memory"}),
        {
            "memory": "optimizer_state", "intake": "decoder", "held": "pending_updates", "left": "replaced_estimates",
            "refusals": "rejections", "run": "run_id",
        },
    ),
    KeyRule(frozenset({"beliefs"}), {"beliefs": "estimates"}),
    KeyRule(frozenset({"known", "pending", "sent"}), {"known": "copies", "sent": "num_sent"}),
    KeyRule(frozenset({"clock", "settled"}), {"settled": "last_accepted", "refused": "rejected"}),  # members
    KeyRule(frozenset({"sampled", "accepted", "refused", "stepped"}), {"refused": "rejected"}),  # history of rounds
    KeyRule(  # numbers of workers, then of clients
        frozenset({"settled", "have", "version"}),
        {"settled": "last_accepted", "have": "changes_received", "refused": "rejected"},
    ),
    KeyRule(frozenset({"settled", "have", "round"}), {"settled": "last_accepted", "have": "model_round"}),
    KeyRule(frozenset({"task", "exchange", "down"}), {"exchange": "composition", "down": "downlink_compression"}),
)  # fmt: skip
SERVER_SETTINGS = frozenset({"task", "composition", "downlink_compression"})  # keys of a server's settings
FIELDS = (
    FieldRule(frozenset({"local", "shared"}), {"local": "own_estimate", "shared": "mean_estimate"}),  # EF21
    FieldRule(frozenset({"own", "mixed"}), {"own": "own_estimate", "mixed": "mixed_estimate"}),  # CHOCO
)
OPTION_STATES = (re.compile(r"(?<![^.])entries(?=\.\d+(\.|$))"), "states")  # Switch
CONTROLLER = {  # longest first: beginnings of names in the state of a windowed controller
    "own.timing.entries": "extra.timing.options",
    "own.timing.verdict": "extra.timing.status",
    "own.reference": "extra.defaults_state",
    "own.entries": "extra.defaults",
    "own.old": "extra.norms",
    "own": "extra",
    "begun": "num_exchanges",
}
VALUES = {  # of settings, by part and setting under their present names
    ("lgreco", "errors_from"): {"one": "rank0"},
    ("kmeans", "errors_from"): {"one": "rank0"},
    ("lgreco", "observed"): {"pure": "gradient", "corrected": "target"},
    ("kmeans", "observed"): {"pure": "gradient", "corrected": "target"},
    ("impk", "weights"): {"normalised": "normalized"},
    ("importance_topk", "weights"): {"normalised": "normalized"},
}
TEXTS = ("composition", "moments")  # keys of the state of a handle under which each layer has a text


def migrate(state: Any) -> Any:
    """Translate a stored state to present names.

    Args:
        state: a nested state of dicts, lists and tuples, of any version.

    Returns:
        The state with present names; tensors are not copied.
    """
    if type(state) in (list, tuple):
        return type(state)(map(migrate, state))
    if not isinstance(state, Mapping):
        return state
    found = {key: migrate(value) for key, value in state.items()}
    for rule in KEYS:
        if rule.keys <= found.keys():
            found = {rule.names.get(key, key): value for key, value in found.items()}
    if found.keys() >= EXCHANGER:
        found["layers"] = {name: _migrate_layer(fields) for name, fields in found["layers"].items()}
        found["controller"] = _migrate_controller(found["controller"])
    if found.keys() >= SERVER_SETTINGS:
        found |= _migrate_texts({key: found[key] for key in ("composition", "downlink_compression")})
    if "world_size" in found:
        found |= {key: _migrate_texts(found[key]) for key in TEXTS if isinstance(found.get(key), Mapping)}
    return found


def _migrate_layer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Names are dotted paths: "inner.local" is a field of the part inside."""
    owners: dict[str, set[str]] = {}
    for path in fields:
        owner, _, name = path.rpartition(".")
        owners.setdefault(owner, set()).add(name)
    names = {
        owner: {old: new for rule in FIELDS if rule.fields <= own for old, new in rule.names.items()}
        for owner, own in owners.items()
    }
    return {_rename_field(path, names): value for path, value in fields.items()}


def _rename_field(path: str, names: Mapping[str, Mapping[str, str]]) -> str:
    owner, dot, name = path.rpartition(".")
    pattern, replacement = OPTION_STATES
    return pattern.sub(replacement, f"{owner}{dot}{names[owner].get(name, name)}")


def _migrate_controller(fields: Mapping[str, Any]) -> dict[str, Any]:
    if not any(path.rpartition(".")[2] == "begun" for path in fields):
        return dict(fields)
    return {_rename_controller_field(path): value for path, value in fields.items()}


def _rename_controller_field(path: str) -> str:
    found = re.match(r"(?:\d+\.)*", path)  # a place for each controller of several
    prefix = found[0] if found else ""
    name = path[len(prefix) :]
    for old, new in CONTROLLER.items():
        if name == old or name.startswith(f"{old}."):
            return f"{prefix}{new}{name[len(old) :]}"
    return path


def _migrate_texts(texts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: migrate_text(text) if isinstance(text, str) else text for name, text in texts.items()}


def migrate_text(text: str) -> str:
    """Translate the parts, settings and values of a composition text; what is no such text stays as it is."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return text
    edits: list[tuple[int, int, str]] = []  # start, end, new
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            part = renamed.PARTS.get(call.func.id, call.func.id)
            edits.append((call.func.col_offset, call.func.end_col_offset or 0, part))
            for setting in call.keywords:
                edits += _edit_setting(part, setting)
    data = text.encode()  # offsets count bytes
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new.encode() + data[end:]
    return data.decode()


def _edit_setting(part: str, setting: ast.keyword) -> list[tuple[int, int, str]]:
    if setting.arg is None:
        return []
    name = renamed.SETTINGS.get(f"{part}.{setting.arg}", setting.arg)
    edits = [(setting.col_offset, setting.col_offset + len(setting.arg), name)]
    value = setting.value
    if isinstance(value, ast.Constant) and value.value in VALUES.get((part, name), {}):
        edits.append((value.col_offset, value.end_col_offset or 0, f'"{VALUES[part, name][value.value]}"'))
    return edits
