"""Layer selection by size (TAGC, Polyakov et al., 2025): compress large matrices outside attention, nothing else.

The rule reads names and shapes only; no tensor is observed and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from ..core import Capabilities, Capability, CompositionError, IncompatibleParts, LayerMenus, Plan, TensorSpec
from .base import StaticController


@dataclass(frozen=True)
class BySize(StaticController):
    """The first of two options for matrices of at least `min_numel` elements, the second for all other layers.

    Layers with names that match a pattern of `exclude` (as of file names) get the second option, too.
    switch(topk(density=0.01), dense(), controller=by_size()) compresses large matrices outside attention.
    """

    capabilities: ClassVar[Capabilities] = StaticController.capabilities | frozenset({Capability.TAKES_MENUS})

    min_numel: int = 100_000
    exclude: tuple[str, ...] = ("*attn*", "*attention*")

    def __post_init__(self) -> None:
        if self.min_numel < 1:
            raise CompositionError(f"BySize: min_numel must be at least 1, got {self.min_numel}; 100000 is usual")
        if not all(isinstance(pattern, str) for pattern in self.exclude):
            raise CompositionError(
                f'BySize: exclude takes patterns of layer names, got {self.exclude}; exclude=("*attn*",) is an example'
            )

    def with_menus(self, menus: LayerMenus) -> BySize:
        for spec, menu in menus:
            if len(menu.options) != 2:
                raise IncompatibleParts(
                    f"BySize chooses between two options; the menu of {spec.name} has {len(menu.options)}. "
                    "Use switch(topk(density=0.01), dense(), controller=by_size())"
                )
        return self

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, tuple[()]]:
        return {spec.name: int(not self.is_compressed(spec)) for spec in layers}, ()

    def is_compressed(self, spec: TensorSpec) -> bool:
        """Whether a layer gets the first option."""
        is_excluded = any(fnmatchcase(spec.name, pattern) for pattern in self.exclude)
        return len(spec.shape) >= 2 and spec.numel >= self.min_numel and not is_excluded
