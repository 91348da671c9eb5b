"""The w of a worker's layers, checked as they are set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

from torch import Tensor

from ..core import IncompatibleParts, TensorSpec, all_finite


class LayerImportance(MutableMapping[str, Tensor]):
    """w by layer name, in the layer's shape and the type of its memory. A layer without one has w = 1."""

    def __init__(self, layers: Mapping[str, TensorSpec], wanted: bool) -> None:
        self._layers, self._wanted = layers, wanted
        self._w: dict[str, Tensor] = {}

    def __setitem__(self, name: str, w: Tensor) -> None:
        self._w[name] = self.checked(name, w)

    def checked(self, name: str, w: Tensor) -> Tensor:
        """A copy as it would be kept; what cannot be an importance of this layer is refused."""
        spec = self._layers.get(name)
        if spec is None:
            raise KeyError(f"importance: no layer is called {name!r}; there are {list(self._layers)}")
        if not self._wanted:
            raise IncompatibleParts(
                "no part of this composition takes an importance; use impk, importance_topk or importance_sampling"
            )
        if w.numel() != spec.numel or tuple(w.shape) not in (spec.shape, (spec.numel,)):
            raise ValueError(f"importance of {name}: {spec.shape} or ({spec.numel},) is needed, got {tuple(w.shape)}")
        w = w.detach().to(spec.device, spec.work_dtype, copy=True).reshape(spec.shape)
        if not all_finite(w) or bool((w < 0).any()):
            raise ValueError(f"importance of {name}: finite numbers >= 0 are needed, got {float(w.min())} at least")
        return w

    def replace_all(self, importance: Mapping[str, Tensor]) -> None:
        """These and no others; if one is refused, nothing changes."""
        self._w = {name: self.checked(name, w) for name, w in importance.items()}

    def serve(self, layers: Mapping[str, TensorSpec], wanted: bool) -> list[str]:
        """Go on as the importance of another composition of these layers, for all holders of this object (Refresher).

        Gives the layers whose w is dropped, which are all if the composition takes none.
        """
        dropped = [name for name in self._w if not wanted or name not in layers]
        self._layers, self._wanted = layers, wanted
        self._w = {name: w for name, w in self._w.items() if name not in dropped}
        return dropped

    @property
    def wanted(self) -> bool:
        return self._wanted

    def __getitem__(self, name: str) -> Tensor:
        return self._w[name]

    def __contains__(self, name: object) -> bool:
        return name in self._w  # asked for each layer of each step

    def __delitem__(self, name: str) -> None:
        del self._w[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._w)

    def __len__(self) -> int:
        return len(self._w)

    def __repr__(self) -> str:
        return f"LayerImportance({sorted(self._w)})"
