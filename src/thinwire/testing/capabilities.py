"""Compare the capabilities that a part declares with those that it shows on random tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core import Aggregator, Capability, Compressor, Topology, has
from .aggregator_observations import AGGREGATOR_OBSERVATIONS
from .compressor_observations import COMPRESSOR_OBSERVATIONS
from .controller_observations import CONTROLLER_OBSERVATIONS
from .topology_observations import TOPOLOGY_OBSERVATIONS

Observation = Callable[[Any], bool | None]


def observe_capabilities(part: Any) -> dict[Capability, bool]:
    """Run a part on random tensors and observe which capabilities it has.

    Args:
        part: a compressor, an aggregator, a memory, a topology or a controller.

    Returns:
        For each capability that can be observed, whether the part has it. A capability is left out if it depends on a
        part inside, or if the settings leave nothing to observe.
    """
    results = {each: _observe(part, each, observe) for each, observe in _observations(part).items()}
    return {capability: result for capability, result in results.items() if result is not None}


def _observe(part: Any, capability: Capability, observe: Observation) -> bool | None:
    """False for a part that declares a capability and raises where it is used."""
    try:
        return observe(part)
    except Exception:
        if not has(part, capability):
            raise
        return False


def find_contradictions(part: Any) -> list[str]:
    """List the differences between the capabilities that a part declares and those that it shows.

    Args:
        part: a compressor, an aggregator, a memory, a topology or a controller.

    Returns:
        One sentence for each capability that differs; an empty list if none does.
    """
    name, known = type(part).__name__, _observations(part)
    texts = [
        f"{name} declares {capability.name}, which parts of its kind cannot have"
        for capability in Capability
        if has(part, capability) and capability not in known
    ]
    for capability, is_shown in observe_capabilities(part).items():
        if has(part, capability) and not is_shown:
            texts.append(f"{name} declares {capability.name} but does not show it: {capability.about}")
        elif is_shown and not has(part, capability):
            texts.append(f"{name} shows {capability.name} but does not declare it: {capability.about}")
    return texts


def check_capabilities(part: Any) -> None:
    """Check that a part declares the capabilities that it shows, and no others.

    Args:
        part: a compressor, an aggregator, a memory, a topology or a controller, with the settings to be tested.

    Raises:
        AssertionError: it declares a capability that it does not show, or shows one that it does not declare.
    """
    if texts := find_contradictions(part):
        raise AssertionError("\n".join([f"{part!r}:", *texts]))


def _observations(part: Any) -> Mapping[Capability, Observation]:
    if isinstance(part, Topology):
        return TOPOLOGY_OBSERVATIONS
    if isinstance(part, Aggregator):
        return AGGREGATOR_OBSERVATIONS
    return COMPRESSOR_OBSERVATIONS if isinstance(part, Compressor) else CONTROLLER_OBSERVATIONS
