"""Texts of all registered parts with the examples of their registration: the cases of contract suites."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_type_hints

from ..catalog import REGISTRY, Registration, member_types, parse
from ..catalog.kinds import required_settings
from ..core import Aggregator, CompositionError, Compressor, IncompatibleParts, TensorSpec
from ..exchange import Exchanger

INSIDE = "topk(density=0.1)"  # argument of a part that needs another part and has no examples


def compressor_texts() -> list[str]:
    """Return the texts of all registered compressors, with each of their examples."""
    return [text for registration in _registrations("compressor") for text in example_texts(registration)]


def topology_texts() -> list[str]:
    """Return the texts of all registered topologies, with each of their examples."""
    return [text for registration in _registrations("topology") for text in example_texts(registration)]


def controller_texts() -> list[str]:
    """Return compositions with each registered controller and each of its examples.

    The menu has densities; with the first example also two options. Menus that a controller refuses are left out.
    """
    texts = []
    for registration in _registrations("controller"):
        controllers = example_texts(registration)
        texts += [f"ef(adapt({INSIDE}, controller={text}))" for text in controllers]
        texts += [f"ef(switch({INSIDE}, dense(), controller={text}))" for text in controllers[:1]]
    return [text for text in texts if _takes_menu(text)]


def composition_texts() -> list[str]:
    """Return the texts of all compositions that contract suites run over.

    These are all compressors, alone and under error feedback; all aggregators, the first example also under error
    feedback; and all memories.
    """
    compressors = compressor_texts()
    texts = [*compressors, *(f"ef({text})" for text in compressors)]
    for registration in _registrations("aggregator"):
        examples = example_texts(registration)
        texts += [*examples, *(f"ef({text})" for text in examples[:1] if _takes_feedback(text))]
    return list(dict.fromkeys([*texts, *(text for e in _registrations("memory") for text in example_texts(e))]))


def example_texts(registration: Registration) -> list[str]:
    """Return the texts of a part with each of its examples; without examples, as it is or around INSIDE.

    Raises:
        CompositionError: the part needs settings and has no examples.
    """
    if registration.examples:
        return [f"{registration.name}({settings})" for settings in registration.examples]
    needed = required_settings(registration.cls)
    if not needed:
        return [f"{registration.name}()"]
    inside = set(member_types(get_type_hints(registration.cls)[needed[0].name])) & {Compressor, Aggregator}
    if len(needed) == 1 and inside:
        return [f"{registration.name}({INSIDE})"]
    raise CompositionError(
        f"{registration.name} needs its {needed[0].name} and has no examples; give some: "
        f"register({registration.name!r}, {registration.cls.__name__}, examples=[...])"
    )


@contextmanager
def keep_registry() -> Iterator[None]:
    """Context manager that removes, at its end, the parts that were registered inside it."""
    registrations = list(REGISTRY.registrations.values())
    try:
        yield
    finally:
        REGISTRY.restore(registrations)


def _registrations(kind: str) -> list[Registration]:
    REGISTRY.load_all()
    return [registration for registration in REGISTRY.registrations.values() if registration.kind == kind]


def _takes_menu(text: str) -> bool:
    try:
        Exchanger([TensorSpec("layer", (8, 6))], parse(text))
    except IncompatibleParts:
        return False
    return True


def _takes_feedback(text: str) -> bool:
    try:
        parse(f"ef({text})")
    except IncompatibleParts:
        return False
    return True
