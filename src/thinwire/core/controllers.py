"""Protocols of per-layer controllers: menus, error and size estimates, observations.

A menu lists the options of a layer. A controller chooses one option per layer; layer -> option is the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

import torch
from torch import Tensor

from .capabilities import Capability, has
from .context import Context, Key, Plan
from .parts import Aggregator, Reduced
from .requests import Program
from .tensors import TensorSpec

S = TypeVar("S")
T = TypeVar("T")


class EstimatesErrors(Protocol):
    """A part that computes the errors of several settings of itself in one pass over a tensor."""

    def estimate_errors(
        self, tensor: Tensor, spec: TensorSpec, options: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None] | Tensor:
        """Return the L2 norm of each option's error; None where the option must be run to know it.

        If all are known, they may be a tensor.

        Args:
            tensor: the tensor that would be compressed.
            spec: its name and form.
            options: parts, some of them of this class with other settings; for all others the answer is None. A menu is
                the same tuple at every decision, so what depends on it alone may be cached by its identity.
            key: random bits, as for `encode`.
            exact: whether estimates (from a sample, from expectations) are not allowed.
        """
        ...


def estimate_compressor_errors(
    part: Any, tensor: Tensor, spec: TensorSpec, options: Sequence[Any], key: Key, exact: bool
) -> Sequence[float | None] | Tensor:
    """`estimate_errors` of an aggregator that loses what its `compressor` loses, and nothing else."""
    if not estimates_errors(part.compressor):
        return [None] * len(options)
    compressors = _find_compressors(SameObject(tuple(options)), type(part))  # type: ignore[arg-type]
    return part.compressor.estimate_errors(tensor, spec, compressors, key, exact)


class SameObject(Generic[T]):
    """A tuple as a key of a cache, compared by identity: comparing a hundred compositions would cost more.

    The cache keeps the tuple, so that no other object gets its identity.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return type(other) is SameObject and self.value is other.value


@lru_cache(maxsize=256)
def _find_compressors(options: SameObject[tuple[Any, ...]], kind: type[Any]) -> tuple[Any, ...]:
    """The compressors of the options of one kind, None for all others."""
    return tuple(option.compressor if type(option) is kind else None for option in options.value)


class ExpectsBytes(Protocol):
    """An aggregator that knows how many bytes it will send before it sees a tensor."""

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        """Return the bytes that one of `size` ranks sends for one tensor, on average."""
        ...


class LayerObservation(NamedTuple):
    """What a controller sees of a layer after its exchange."""

    tensor: Tensor
    reduced: Reduced[Any]
    target: Callable[[], Tensor]  # the tensor plus what its memory had kept; computed when called
    bucket: int = 0  # layers that were exchanged together have the same
    seconds: float | None = None  # since the step's first exchange began, by this rank's clock, if it has one


class Menu(NamedTuple):
    """The options of a layer. `default` is in force until a controller decides; errors are compared with its error."""

    options: tuple[Aggregator[Any], ...]
    default: int = 0


LayerMenus: TypeAlias = tuple[tuple[TensorSpec, Menu], ...]  # layers that have a menu, in order


class HasMenu(Protocol):
    """An aggregator that delegates each layer to one option of its menu: the one that its controller chose.

    A controller passed to the Exchanger replaces this one.
    """

    @property
    def menu(self) -> Menu: ...

    @property
    def controller(self) -> Controller[Any] | None: ...


@runtime_checkable
class Controller(Protocol[S]):
    """Chooses one option per layer; all ranks end with the same plan."""

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, S]:
        """Return the plan of the first step and the state to begin with."""
        ...

    def observe(self, spec: TensorSpec, observation: LayerObservation, state: S, ctx: Context) -> S:
        """Return the state after a layer was exchanged. Called for each layer of each step; sends nothing."""
        ...

    def replan(self, plan: Plan, state: S, ctx: Context) -> Program[tuple[Plan, S]]:
        """Return the plan of this step and the new state; a program, since ranks may have to agree. Once a step."""
        ...


class Reports(Protocol):
    """A controller that reports what it has decided."""

    def report(self, state: Any) -> Mapping[str, Any]:
        """Return plain numbers and texts; "decisions" is how many were taken."""
        ...


class ResizesState(Protocol):
    """A controller that keeps measurements of this world in its state, such as seconds per byte."""

    def on_world_resize(self, state: Any) -> Any:
        """Return the state to continue with in a world of another size."""
        ...


class TakesMenus(Protocol):
    """A controller that needs the menus it chooses from. They become settings of it, not state."""

    def with_menus(self, menus: LayerMenus) -> Controller[Any]:
        """Return the same controller for these layers and their menus."""
        ...


def estimates_errors(part: Any) -> TypeGuard[EstimatesErrors]:
    return has(part, Capability.ESTIMATES_ERRORS)


def expects_bytes(part: Aggregator[Any]) -> TypeGuard[ExpectsBytes]:
    return has(part, Capability.EXPECTS_BYTES)


def has_menu(part: Any) -> TypeGuard[HasMenu]:
    return has(part, Capability.HAS_MENU)


def takes_menus(part: Controller[Any]) -> TypeGuard[TakesMenus]:
    return has(part, Capability.TAKES_MENUS)


def reports(part: Controller[Any]) -> TypeGuard[Reports]:
    return has(part, Capability.REPORTS)


def resizes_state(part: Controller[Any]) -> TypeGuard[ResizesState]:
    return has(part, Capability.RESIZES_STATE)


def plans_to_tensors(plans: Sequence[tuple[int, Plan]], names: Sequence[str]) -> dict[str, Tensor]:
    """Pack plans for a checkpoint: steps (plans,), and options (plans, layers) in the order of these names."""
    rows = [[plan[name] for name in names] for _, plan in plans]
    steps = torch.tensor([step for step, _ in plans], dtype=torch.int64)
    return {"steps": steps, "options": torch.tensor(rows, dtype=torch.int32).view(len(rows), len(names))}


def plans_from_tensors(stored: Mapping[str, Tensor], names: Sequence[str]) -> list[tuple[int, Plan]]:
    """Unpack what `plans_to_tensors` packed."""
    rows = zip(stored["steps"].tolist(), stored["options"].tolist(), strict=True)
    return [(step, dict(zip(names, row, strict=True))) for step, row in rows]
