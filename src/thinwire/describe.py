"""The table of operators, read off the catalog: what each sends, what it promises, in figures for one tensor."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .catalog import AGGREGATORS, CONTROLLERS, MEMORIES, REGISTRY, Entry, Reader, parse_compressor
from .catalog.kinds import PLURALS
from .core import (
    Capability,
    CompositionError,
    Compressor,
    Contract,
    IncompatibleParts,
    TensorSpec,
    Topology,
    capabilities_of,
    has,
    labels,
)
from .topologies import mixing_rate

SPEC = TensorSpec("example", (1024, 1024))
WORLDS = (4, 16, 64)
_INSIDE = (
    "topk(density=0.01)",
    "randomk(density=0.01)",
    "topk(density=0.01), ring()",
    "topk(density=0.01), controller=lgreco()",
    "rows=((0.5, 0.5), (0.5, 0.5))",
)  # what a part that needs others may be put around
CAPABILITIES = (
    "What parts can do beyond the protocol of their kind. A part declares it, code asks by `has(part, Capability.X)`, "
    "and `thinwire.testing.check_capabilities(part)` compares with what the part does. Some depend on settings or on "
    "the part inside: listed is what the examples of `thinwire operators` have."
)


def operator_rows() -> list[dict[str, str]]:
    """One row a compressor: text, what it is, bits per coordinate and saving for a float32 matrix, contract."""
    return [_row(text, entry) for entry in _entries("compressor") for text in _texts(entry)]


def _entries(kind: str) -> list[Entry]:
    REGISTRY.load_all()
    return [entry for entry in REGISTRY.entries.values() if entry.kind == kind]


def _texts(entry: Entry) -> list[str]:
    """The part with its typical settings; without any, if it has none."""
    return [f"{entry.name}({settings})" for settings in entry.typical or ("",)]


def _row(text: str, entry: Entry) -> dict[str, str]:
    row = {"part": text, "what it does and costs": summary(entry.cls)}
    try:
        part = parse_compressor(text)
    except CompositionError:  # it has no figures without settings; `typical` of its registration gives some
        return row | dict.fromkeys(("bits per coordinate", "saving", "contract"), "–")
    bits = 8 * part.num_bytes(SPEC) / SPEC.numel
    return row | {
        "bits per coordinate": f"{bits:.3g}",
        "saving": f"{32 / bits:.3g}×",
        "contract": contract_text(part),
    }


def summary(part: type[object]) -> str:
    return (inspect.getdoc(part) or "").split("\n")[0]


def contract_text(part: Compressor) -> str:
    contract: Contract = part.contract(SPEC)
    words = []
    if contract.omega is not None:
        words.append("exact" if contract.omega == 0 else f"unbiased, ω = {contract.omega:.3g}")
    elif contract.delta is not None:
        words.append(f"δ = {contract.delta:.3g}" if contract.delta < 0.99 else f"δ = 1 − {1 - contract.delta:.2g}")
    else:
        words.append("no relative bound")
    if has(part, Capability.ADDITIVE):
        words.append(Capability.ADDITIVE.label)
    return ", ".join(words)


def part_rows() -> list[dict[str, str]]:
    """One row a part of the catalog: an example of it, its kind, and the capabilities of this example."""
    return [
        {"part": text, "kind": kind, "capabilities": labels(capabilities_of(part)) or "–"}
        for kind in PLURALS
        for text, part in map(example, _entries(kind))
    ]


def example(entry: Entry) -> tuple[str, Any]:
    """A text that begins with this part, and the part: with the first settings that it takes. Else its name, None."""
    for inside in (*entry.typical, "", *entry.examples, *_INSIDE):
        with suppress(CompositionError, IncompatibleParts):
            return f"{entry.name}({inside})", Reader(f"{entry.name}({inside})").part()
    return entry.name, None


def capability_rows() -> list[dict[str, str]]:
    """One row a capability: what it means, and the parts of the catalog that have it."""
    entries = [entry for kind in PLURALS for entry in _entries(kind)]
    parts = [(entry.name, capabilities_of(example(entry)[1])) for entry in entries]
    return [
        {
            "capability": capability.label,
            "a part that has it": capability.about,
            "parts": ", ".join(f"`{name}`" for name, found in parts if capability in found),
        }
        for capability in Capability
    ]


def topology_rows() -> list[dict[str, str]]:
    """One row a topology and typical settings: what it is, and how fast it mixes."""
    rows = []
    for entry in _entries("topology"):
        for at, text in enumerate(_texts(entry)):
            about = summary(entry.cls) if at == 0 else "The same with this setting."
            rows.append({"part": text.removesuffix("()"), "who hears whom": about, **gaps(text)})
    return rows


def gaps(text: str) -> dict[str, str]:
    """The gap per step for worlds of a few sizes: the larger, the sooner all ranks agree; 1 is an average at once."""
    try:
        topology = Reader(text).part(("topologies",))
    except CompositionError:  # it has no figures before it is given
        return {f"n = {n}": "–" for n in WORLDS}
    return {f"n = {n}": _gap(topology, n) for n in WORLDS}


def _gap(topology: Topology, size: int) -> str:
    try:
        return f"{mixing_rate(topology, size):.3g}"
    except CompositionError:
        return "–"  # not for that many


def to_markdown(rows: Sequence[dict[str, str]]) -> str:
    """The page docs/operators.md, whole."""
    shape = "×".join(map(str, SPEC.shape))
    lines = ["# Operators", "", "Generated by `thinwire operators --markdown`; figures are for one "
             f"{shape} float32 tensor ({SPEC.numel:,} values, 32 bits each).", "", "## Compressors", ""]  # fmt: skip
    lines += _table(rows)
    for title, parts in (("Aggregators", AGGREGATORS), ("Memories", MEMORIES)):
        lines += ["", f"## {title}", ""]
        lines += _table([{"part": name, "what it does and costs": summary(cls)} for name, cls in parts.items()])
    lines += ["", "## Topologies", "", "For `gossip` and `choco`; figures are spectral gaps per step for n ranks.", ""]
    lines += _table(topology_rows())
    lines += ["", "## Controllers", "", "Who chooses for each layer: `by=` of `switch` and `adapt`.", ""]
    lines += _table([{"part": name, "what it chooses": summary(cls)} for name, cls in CONTROLLERS.items()])
    lines += ["", "## Capabilities", "", CAPABILITIES, ""]
    lines += _table(capability_rows(), quoted=False)
    lines += [
        "",
        "δ: E|x − C(x)|² ≤ (1 − δ)|x|². ω: unbiased, with E|x − C(x)|² ≤ ω|x|². Saving: dense bytes / sent bytes.",
    ]
    return "\n".join(lines)


def _table(rows: Sequence[dict[str, str]], quoted: bool = True) -> list[str]:
    """quoted: the first column is what a user writes."""
    cells = [[value.replace("|", "\\|") for value in row.values()] for row in rows]
    cells = [[f"`{first}`", *rest] for first, *rest in cells] if quoted else cells
    return [f"| {' | '.join(line)} |" for line in [list(rows[0]), ["---"] * len(rows[0]), *cells]]
