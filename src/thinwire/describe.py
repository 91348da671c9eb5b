"""Tables of all parts, from the catalog: what each sends, its contract, its capabilities (docs/parts.md)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .catalog import AGGREGATORS, CONTROLLERS, MEMORIES, REGISTRY, Reader, Registration, parse_compressor
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
)  # arguments for parts that need other parts
CAPABILITIES = (
    "Optional features of parts beyond the protocol of their kind. A part declares them; code tests for one with "
    "`has(part, Capability.X)`; `thinwire.testing.check_capabilities(part)` compares declaration and behavior. "
    "Some depend on settings or on the part inside: listed are those of the examples of `thinwire parts`."
)


def compressor_rows() -> list[dict[str, str]]:
    """One row per compressor: text, summary, bits per coordinate and saving for a float32 matrix, contract."""
    return [_row(text, registration) for registration in _registrations("compressor") for text in _texts(registration)]


def _registrations(kind: str) -> list[Registration]:
    REGISTRY.load_all()
    return [registration for registration in REGISTRY.registrations.values() if registration.kind == kind]


def _texts(registration: Registration) -> list[str]:
    """The part with each of its typical settings; without settings if none are registered."""
    return [f"{registration.name}({settings})" for settings in registration.typical or ("",)]


def _row(text: str, registration: Registration) -> dict[str, str]:
    row = {"part": text, "what it does and costs": summary(registration.cls)}
    try:
        part = parse_compressor(text)
    except CompositionError:  # it needs settings, and no `typical` ones are registered
        return row | dict.fromkeys(("bits per coordinate", "saving", "contract"), "–")
    bits = 8 * part.num_bytes(SPEC) / SPEC.numel
    return row | {
        "bits per coordinate": f"{bits:.3g}",
        "saving": f"{32 / bits:.3g}×",
        "contract": contract_text(part),
    }


def summary(part: type[object]) -> str:
    """The first line of a class docstring."""
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
    """One row per part: an example, its kind, and the capabilities of this example."""
    return [
        {"part": text, "kind": kind, "capabilities": labels(capabilities_of(part)) or "–"}
        for kind in PLURALS
        for text, part in map(example, _registrations(kind))
    ]


def example(registration: Registration) -> tuple[str, Any]:
    """A text of this part, and the part, with the first arguments that it accepts; else its name and None."""
    for inside in (*registration.typical, "", *registration.examples, *_INSIDE):
        with suppress(CompositionError, IncompatibleParts):
            return f"{registration.name}({inside})", Reader(f"{registration.name}({inside})").part()
    return registration.name, None


def capability_rows() -> list[dict[str, str]]:
    """One row per capability: its meaning, and the parts that have it."""
    registrations = [registration for kind in PLURALS for registration in _registrations(kind)]
    parts = [(registration.name, capabilities_of(example(registration)[1])) for registration in registrations]
    return [
        {
            "capability": capability.label,
            "a part that has it": capability.about,
            "parts": ", ".join(f"`{name}`" for name, found in parts if capability in found),
        }
        for capability in Capability
    ]


def topology_rows() -> list[dict[str, str]]:
    """One row per topology and typical setting: its neighbors, and its spectral gaps."""
    rows = []
    for registration in _registrations("topology"):
        for at, text in enumerate(_texts(registration)):
            about = summary(registration.cls) if at == 0 else "The same topology with this setting."
            rows.append({"part": text.removesuffix("()"), "neighbors and weights": about, **gaps(text)})
    return rows


def gaps(text: str) -> dict[str, str]:
    """The spectral gap per step for worlds of a few sizes; 1 averages all ranks in one step."""
    try:
        topology = Reader(text).part(("topologies",))
    except CompositionError:  # it needs settings
        return {f"n = {n}": "–" for n in WORLDS}
    return {f"n = {n}": _gap(topology, n) for n in WORLDS}


def _gap(topology: Topology, size: int) -> str:
    try:
        return f"{mixing_rate(topology, size):.3g}"
    except CompositionError:
        return "–"  # not defined for this size


def to_markdown(rows: Sequence[dict[str, str]]) -> str:
    """Return the whole page docs/parts.md."""
    shape = "×".join(map(str, SPEC.shape))
    lines = ["# Parts", "", "Generated by `thinwire parts --markdown`; figures are for one "
             f"{shape} float32 tensor ({SPEC.numel:,} values, 32 bits each).", "", "## Compressors", ""]  # fmt: skip
    lines += _table(rows)
    for title, parts in (("Aggregators", AGGREGATORS), ("Memories", MEMORIES)):
        lines += ["", f"## {title}", ""]
        lines += _table([{"part": name, "what it does and costs": summary(cls)} for name, cls in parts.items()])
    lines += ["", "## Topologies", "", "For `gossip` and `choco`; figures are spectral gaps per step for n ranks.", ""]
    lines += _table(topology_rows())
    lines += [
        "",
        "## Controllers",
        "",
        "`controller=` of `switch` and `adapt`: chooses one option per layer ([how](adaptive.md)).",
        "",
    ]
    lines += _table([{"part": name, "what it chooses": summary(cls)} for name, cls in CONTROLLERS.items()])
    lines += ["", "## Capabilities", "", CAPABILITIES, ""]
    lines += _table(capability_rows(), quoted=False)
    lines += [
        "",
        "δ: E|x − C(x)|² ≤ (1 − δ)|x|². ω: unbiased, with E|x − C(x)|² ≤ ω|x|². Saving: dense bytes / sent bytes.",
    ]
    return "\n".join(lines)


def _table(rows: Sequence[dict[str, str]], quoted: bool = True) -> list[str]:
    """A Markdown table; quoted: the first column is code."""
    cells = [[value.replace("|", "\\|") for value in row.values()] for row in rows]
    cells = [[f"`{first}`", *rest] for first, *rest in cells] if quoted else cells
    return [f"| {' | '.join(line)} |" for line in [list(rows[0]), ["---"] * len(rows[0]), *cells]]
