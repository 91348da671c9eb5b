"""A method of an experiment: a composition with its label and settings of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thinwire.core import Aggregator, CompositionError, Compressor, IncompatibleParts, topology_of
from thinwire.importance import ImportanceSolver
from thinwire.optimizer_state import MomentsConfig, parse_moments
from thinwire.sync import Local, parse_sync

from ..tables import ConfigError, build
from .class_paths import composition_text
from .learning_rates import check_learning_rate


@dataclass(frozen=True)
class Method:
    """One composition with a label, and settings that replace those of the experiment.

    Args:
        label: shown in tables and legends.
        composition: for the gradients of every step, or local(...) for local training. In Python it may be a part or
            `Local` settings; it is stored as text, so that the run's folder shows what was run.
        lr: learning rate; None: the optimizer's.
        importance: settings of the ImportanceSolver; None: w = 1.
        moments: composition through which Adam's moments are averaged in each round of local training; None: they stay
            local.

    Raises:
        ConfigError: a setting is wrong, or settings do not fit together.
    """

    label: str
    composition: str | Aggregator[Any] | Compressor | Local
    lr: float | str | None = None
    importance: Mapping[str, Any] | None = None
    moments: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.composition, str):
            object.__setattr__(self, "composition", composition_text(self.composition, f"methods: {self.label}"))
        try:
            sync, moments = self.sync(), self.moments_config()
        except (CompositionError, IncompatibleParts) as error:
            raise ConfigError(f"methods: {self.label}: {error}") from error
        if self.lr is not None:
            check_learning_rate(self.lr, f"methods: {self.label}: lr")
        self.solver()
        if self.importance is not None and sync.payload != "gradients":
            raise ConfigError(
                f"methods: {self.label}: importance: it is solved for gradients at every step, local(...) sends "
                f"{sync.payload}; leave importance out"
            )
        if moments is not None and (sync.payload == "gradients" or topology_of(sync.composition) is not None):
            raise ConfigError(
                f"methods: {self.label}: moments: they are averaged in rounds of all workers; use local(...) without a "
                "gossip topology, or leave moments out"
            )

    def sync(self) -> Local:
        """The settings of local training; payload "gradients" for a plain composition."""
        return parse_sync(str(self.composition))

    @property
    def text(self) -> str:
        """Composition and moments, for tables."""
        return f"{self.composition}" if self.moments is None else f"{self.composition}, moments by {self.moments}"

    def moments_config(self) -> MomentsConfig | None:
        return None if self.moments is None else parse_moments(self.moments)

    def solver(self) -> ImportanceSolver | None:
        """The solver of the importance vector, if this method has one."""
        if self.importance is None:
            return None
        where = f"methods: {self.label}: importance"
        try:
            return build(ImportanceSolver, self.importance, where)
        except CompositionError as error:
            raise ConfigError(f"{where}: {error}") from error
