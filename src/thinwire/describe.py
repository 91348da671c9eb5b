"""The table of operators, read off the catalog: what each sends, what it promises, in figures for one tensor."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .catalog import AGGREGATORS, COMPRESSORS, CONTROLLERS, KINDS, MEMORIES, TOPOLOGIES, Reader, parse_compressor
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
_SETTINGS = {
    "topk": "density=0.01",
    "randomk": "density=0.01",
    "square": "density=0.01",
    "impk": "density=0.01",
    "greedy": "density=0.01",
    "stochastic": "density=0.01",
    "threshold": "tau=2.576",
    "st_hosvd": "rank=4",
    "hosvd": "rank=4",
    "tt": "rank=4",
}  # parts that have no default for their main setting
_INSIDE = (
    "topk(density=0.01)",
    "randomk(density=0.01)",
    "topk(density=0.01), ring()",
    "topk(density=0.01), by=lgreco()",
    "rows=((0.5, 0.5), (0.5, 0.5))",
)  # what a part that needs others may be put around


CAPABILITIES = (
    "What parts can do beyond the protocol of their kind. A part declares it, code asks by `has(part, Capability.X)`, "
    "and `thinwire.testing.check_capabilities(part)` compares with what the part does. Some depend on settings or on "
    "the part inside: listed is what the examples of `thinwire operators` have."
)


def operator_rows() -> list[dict[str, str]]:
    """One row a compressor: text, what it is, bits per coordinate and saving for a float32 matrix, contract."""
    return [_row(f"{name}({_SETTINGS.get(name, '')})") for name in COMPRESSORS]


def _row(text: str) -> dict[str, str]:
    part = parse_compressor(text)
    bits = 8 * part.nbytes(SPEC) / SPEC.numel
    return {
        "part": text,
        "what it does and costs": summary(type(part)),
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
    if has(part, Capability.ADDS_ON_WIRE):
        words.append(Capability.ADDS_ON_WIRE.label)
    return ", ".join(words)


def part_rows() -> list[dict[str, str]]:
    """One row a part of the catalog: an example of it, its kind, and the capabilities of this example."""
    return [
        {"part": text, "kind": kind, "capabilities": labels(capabilities_of(part)) or "–"}
        for kind, parts in KINDS.items()
        for text, part in map(example, parts)
    ]


def example(name: str) -> tuple[str, Any]:
    """A text that begins with this part, and the part: with the first settings that it takes. Else its name, None."""
    for inside in (_SETTINGS.get(name, ""), *_INSIDE):
        with suppress(CompositionError, IncompatibleParts):
            return f"{name}({inside})", Reader(f"{name}({inside})").part()
    return name, None


def capability_rows() -> list[dict[str, str]]:
    """One row a capability: what it means, and the parts of the catalog that have it."""
    parts = [(name, capabilities_of(example(name)[1])) for names in KINDS.values() for name in names]
    return [
        {
            "capability": capability.label,
            "a part that has it": capability.about,
            "parts": ", ".join(f"`{name}`" for name, found in parts if capability in found),
        }
        for capability in Capability
    ]


def topology_rows() -> list[dict[str, str]]:
    """One row a topology, and one for each that can take partners in turn: what it is, and how fast it mixes."""
    rows = []
    for name, cls in TOPOLOGIES.items():
        if name == "matrix":  # it has no figures before it is given
            rows.append({"part": name, "who hears whom": summary(cls), **{f"n = {n}": "–" for n in WORLDS}})
            continue
        rows.append({"part": name, "who hears whom": summary(cls), **gaps(cls())})
        if has(cls(), Capability.TAKES_TURNS):
            text = f"{name}(one_peer=true)"
            rows.append({"part": text, "who hears whom": "The same partners in turn, one a step.", **gaps(cls(True))})
    return rows


def gaps(topology: Topology) -> dict[str, str]:
    """The gap per step for worlds of a few sizes: the larger, the sooner all ranks agree; 1 is an average at once."""
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
