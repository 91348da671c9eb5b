"""What contract suites run over: texts of all registered parts, made of the examples of their registration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_type_hints

from ..catalog import REGISTRY, Registration, member_types, parse
from ..catalog.kinds import required_settings
from ..core import Aggregator, CompositionError, Compressor, IncompatibleParts, TensorSpec
from ..exchange import Exchanger

INSIDE = "topk(density=0.1)"  # what a part is put around that needs another and has no examples


def compressor_texts() -> list[str]:
    """Every registered compressor with each of its examples."""
    return [text for registration in _registrations("compressor") for text in example_texts(registration)]


def topology_texts() -> list[str]:
    """Every registered topology with each of its examples."""
    return [text for registration in _registrations("topology") for text in example_texts(registration)]


def controller_texts() -> list[str]:
    """Every registered controller with each of its examples, choosing among densities, and the first also among two
    options; menus that it refuses are left out."""
    texts = []
    for registration in _registrations("controller"):
        controllers = example_texts(registration)
        texts += [f"ef(adapt({INSIDE}, controller={text}))" for text in controllers]
        texts += [f"ef(switch({INSIDE}, dense(), controller={text}))" for text in controllers[:1]]
    return [text for text in texts if _takes_menu(text)]


def composition_texts() -> list[str]:
    """Every compressor, alone and under error feedback; every aggregator, the first example also under error feedback;
    every memory."""
    compressors = compressor_texts()
    texts = [*compressors, *(f"ef({text})" for text in compressors)]
    for registration in _registrations("aggregator"):
        examples = example_texts(registration)
        texts += [*examples, *(f"ef({text})" for text in examples[:1] if _takes_feedback(text))]
    return list(dict.fromkeys([*texts, *(text for e in _registrations("memory") for text in example_texts(e))]))


def example_texts(registration: Registration) -> list[str]:
    """A part with each of its examples; without any, as it is, or around a compressor if it needs one."""
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
    """Forget at the end what was registered inside, so that one test does not see the parts of another."""
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
