"""Whether a part does what it declares, and declares what it does.

`observed(part)` runs a part on drawn tensors and tells which capabilities it shows. A capability that cannot be seen on
this part (because it depends on a part inside, or on settings that leave nothing to see) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core import Aggregator, Capability, Compressor, Topology, has
from .aggregator_observations import AGGREGATOR_OBSERVATIONS
from .compressor_observations import COMPRESSOR_OBSERVATIONS
from .other_observations import CONTROLLER_OBSERVATIONS, TOPOLOGY_OBSERVATIONS

Observation = Callable[[Any], bool | None]


def observed(part: Any) -> dict[Capability, bool]:
    """What a part shows, and what it shows that it has not.

    Args:
        part: a compressor, an aggregator, a memory, a topology or a controller.

    Returns:
        For each capability that can be observed on this part, whether it has it.
    """
    found = {capability: _look(part, capability, look) for capability, look in _observations(part).items()}
    return {capability: seen for capability, seen in found.items() if seen is not None}


def _look(part: Any, capability: Capability, look: Observation) -> bool | None:
    """A part that declares a capability and fails where it is used has it not."""
    try:
        return look(part)
    except Exception:
        if not has(part, capability):
            raise
        return False


def contradictions(part: Any) -> list[str]:
    """Where the declaration of a part and what it does differ, one sentence for each capability."""
    name, known = type(part).__name__, _observations(part)
    texts = [
        f"{name} declares {capability.name}, which is none of its kind's"
        for capability in Capability
        if has(part, capability) and capability not in known
    ]
    for capability, seen in observed(part).items():
        if has(part, capability) and not seen:
            texts.append(f"{name} declares {capability.name} and does not do it: {capability.about}")
        elif seen and not has(part, capability):
            texts.append(f"{name} does what {capability.name} says and does not declare it: {capability.about}")
    return texts


def check_capabilities(part: Any) -> None:
    """Raise an AssertionError with every difference between what a part declares and what it does.

    Args:
        part: a compressor, an aggregator, a memory, a topology or a controller, with the settings to be tested.

    Raises:
        AssertionError: it declares a capability that it does not show, or shows one that it does not declare.
    """
    if texts := contradictions(part):
        raise AssertionError("\n".join([f"{part!r}:", *texts]))


def _observations(part: Any) -> Mapping[Capability, Observation]:
    if isinstance(part, Topology):
        return TOPOLOGY_OBSERVATIONS
    if isinstance(part, Aggregator):
        return AGGREGATOR_OBSERVATIONS
    return COMPRESSOR_OBSERVATIONS if isinstance(part, Compressor) else CONTROLLER_OBSERVATIONS
