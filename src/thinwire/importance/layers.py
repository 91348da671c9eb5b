"""The importance w of each layer of a worker, validated when it is set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

from torch import Tensor

from ..core import IncompatibleParts, TensorSpec, all_finite


class LayerImportance(MutableMapping[str, Tensor]):
    """Mapping of layer names to importances w, in the layer's shape and work dtype. A layer without one has w = 1."""

    def __init__(self, layers: Mapping[str, TensorSpec], is_used: bool) -> None:
        self._layers, self._is_used = layers, is_used
        self._w: dict[str, Tensor] = {}

    def __setitem__(self, name: str, w: Tensor) -> None:
        self._w[name] = self.validate(name, w)

    def validate(self, name: str, w: Tensor) -> Tensor:
        """Return a copy of w as it would be stored.

        Args:
            name: of the layer.
            w: finite numbers >= 0, in the layer's shape or flat.

        Raises:
            KeyError: there is no such layer.
            IncompatibleParts: no compressor of the composition uses an importance.
            ValueError: w has another size, a negative number, or one that is not finite.
        """
        spec = self._layers.get(name)
        if spec is None:
            raise KeyError(f"importance: there is no layer {name!r}; the layers are {list(self._layers)}")
        if not self._is_used:
            raise IncompatibleParts(
                "no part of this composition takes an importance; use impk, importance_topk or importance_sampling"
            )
        if w.numel() != spec.numel or tuple(w.shape) not in (spec.shape, (spec.numel,)):
            raise ValueError(
                f"importance of {name}: the shape must be {spec.shape} or ({spec.numel},), got {tuple(w.shape)}"
            )
        w = w.detach().to(spec.device, spec.work_dtype, copy=True).reshape(spec.shape)
        if not all_finite(w) or bool((w < 0).any()):
            raise ValueError(
                f"importance of {name}: numbers must be finite and >= 0, got a least one of {float(w.min())}"
            )
        return w

    def replace_all(self, importance: Mapping[str, Tensor]) -> None:
        """Store these and no others; if one is refused, nothing changes."""
        self._w = {name: self.validate(name, w) for name, w in importance.items()}

    def rebind(self, layers: Mapping[str, TensorSpec], is_used: bool) -> list[str]:
        """Become the importance of another composition, so that holders of this object (Refresher) may keep it.

        Returns:
            Layers that lost their w: those that are gone, or all if the new composition uses none.
        """
        dropped = [name for name in self._w if not is_used or name not in layers]
        self._layers, self._is_used = layers, is_used
        self._w = {name: w for name, w in self._w.items() if name not in dropped}
        return dropped

    @property
    def is_used(self) -> bool:
        """Whether a compressor of the composition takes an importance."""
        return self._is_used

    def __getitem__(self, name: str) -> Tensor:
        return self._w[name]

    def __contains__(self, name: object) -> bool:
        return name in self._w  # called for each layer of each step

    def __delitem__(self, name: str) -> None:
        del self._w[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._w)

    def __len__(self) -> int:
        return len(self._w)

    def __repr__(self) -> str:
        return f"LayerImportance({sorted(self._w)})"
