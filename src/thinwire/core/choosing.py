"""Who chooses what a layer is given: menus, what they are priced by, and the protocol of those who choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

import torch
from torch import Tensor

from .capabilities import Capability, has
from .context import Context, Key, Plan
from .parts import Aggregator, Reduced
from .requests import Program
from .tensors import TensorSpec

S = TypeVar("S")


class PricedAlong(Protocol):
    """A part that can tell with one look at a tensor what several settings of it would lose."""

    def errors_along(
        self, tensor: Tensor, spec: TensorSpec, entries: Sequence[Any], key: Key, exact: bool
    ) -> Sequence[float | None]:
        """The L2 norm of what each entry would lose; None where it must be tried out. exact: no estimates."""
        ...


def compressor_errors_along(
    part: Any, tensor: Tensor, spec: TensorSpec, entries: Sequence[Any], key: Key, exact: bool
) -> Sequence[float | None]:
    """`errors_along` of an aggregator that loses what its `compressor` loses, and nothing else."""
    if not estimates_errors(part.compressor):
        return [None] * len(entries)
    same = [entry.compressor if type(entry) is type(part) else None for entry in entries]
    return part.compressor.errors_along(tensor, spec, same, key, exact)


class ExpectsBytes(Protocol):
    """An aggregator that knows what it will send."""

    def expected_bytes(self, spec: TensorSpec, size: int) -> float:
        """By one of `size` ranks for one tensor: for plans."""
        ...


class Seen(NamedTuple):
    """What a controller may look at after a layer was exchanged."""

    tensor: Tensor
    reduced: Reduced[Any]
    target: Callable[[], Tensor]  # the tensor with what its memory had kept; computed for those who ask
    bucket: int = 0  # layers that were exchanged together have the same
    seconds: float | None = None  # since the step's first exchange began, by this rank's clock, if it has one


class Menu(NamedTuple):
    """What a layer may be given; the reference is what it gets while nobody has chosen."""

    entries: tuple[Aggregator[Any], ...]
    reference: int = 0


Choices: TypeAlias = tuple[tuple[TensorSpec, Menu], ...]  # layers that have a menu, in order


class OffersMenu(Protocol):
    """An aggregator that hands each layer to the entry of its menu which `by` chose, or somebody told the Exchanger."""

    @property
    def offers(self) -> Menu: ...

    @property
    def by(self) -> Controller[Any] | None: ...


@runtime_checkable
class Controller(Protocol[S]):
    """Picks one menu entry per layer; all ranks end with the same plan."""

    def init(self, layers: Sequence[TensorSpec]) -> tuple[Plan, S]: ...

    def observe(self, spec: TensorSpec, seen: Seen, state: S, ctx: Context) -> S: ...

    def replan(self, plan: Plan, state: S, ctx: Context) -> Program[tuple[Plan, S]]: ...


class Explains(Protocol):
    """A controller that can say what it has done, in plain numbers and words."""

    def explained(self, state: Any) -> Mapping[str, Any]:
        """decisions: how many it took; and what else there is to know."""
        ...


class MeasuresWorld(Protocol):
    """A controller whose memory holds what it measured of this world."""

    def elsewhere(self, state: Any) -> Any:
        """The memory to go on with in a world of another size."""
        ...


class TakesMenus(Protocol):
    """A controller that wants to know what it chooses from. Settings again, not memory."""

    def given(self, choices: Choices) -> Controller[Any]:
        """The same controller for these layers and their menus; others are not its business."""
        ...


def estimates_errors(part: Any) -> TypeGuard[PricedAlong]:
    return has(part, Capability.ESTIMATES_ERRORS)


def expects_bytes(part: Aggregator[Any]) -> TypeGuard[ExpectsBytes]:
    return has(part, Capability.EXPECTS_BYTES)


def offers_menu(part: Any) -> TypeGuard[OffersMenu]:
    return has(part, Capability.OFFERS_MENU)


def takes_menus(part: Controller[Any]) -> TypeGuard[TakesMenus]:
    return has(part, Capability.TAKES_MENUS)


def explains(part: Controller[Any]) -> TypeGuard[Explains]:
    return has(part, Capability.EXPLAINS)


def measures_world(part: Controller[Any]) -> TypeGuard[MeasuresWorld]:
    return has(part, Capability.MEASURES_WORLD)


def plans_to_tensors(plans: Sequence[tuple[int, Plan]], names: Sequence[str]) -> dict[str, Tensor]:
    """Steps, and a row of entries for each, in the order of these names."""
    rows = [[plan[name] for name in names] for _, plan in plans]
    steps = torch.tensor([step for step, _ in plans], dtype=torch.int64)
    return {"steps": steps, "entries": torch.tensor(rows, dtype=torch.int32).view(len(rows), len(names))}


def plans_of_tensors(stored: Mapping[str, Tensor], names: Sequence[str]) -> list[tuple[int, Plan]]:
    """What `plans_to_tensors` was given."""
    entries = zip(stored["steps"].tolist(), stored["entries"].tolist(), strict=True)
    return [(step, dict(zip(names, row, strict=True))) for step, row in entries]
