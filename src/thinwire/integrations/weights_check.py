"""The periodic comparison of all ranks' weights under DDP, and their resynchronization from rank 0."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ..core import Program
from .comparison import compare_weights, resync_weights
from .ddp_options import DDPOptions
from .unreduced import UnreducedParameters


class WeightsCheck:
    """Compares weights every `check_weights_every` steps; with on_divergence="resync" copies those that differ.

    Weights are compared before the backward pass exchanges gradients and copied after it, because autograd may need
    the old ones until then.
    """

    def __init__(self, model: DistributedDataParallel, parameters: Mapping[Tensor, str], options: DDPOptions) -> None:
        self.parameters = parameters
        self.unreduced = UnreducedParameters(model, parameters)
        self.every, self.stops = options.check_weights_every, options.on_divergence == "stop"
        self.resynced_tensors = 0
        self._compared: tuple[list[str], list[Tensor]] = ([], [])  # names and weights of the last comparison
        self._differing: list[int] = []  # positions in it

    def compare(self, step: int, idle: bool) -> Program[None]:
        """Compare weights if this step is due; idle: this rank has run out of inputs (Join)."""
        if not self.every or step % self.every:
            return
        unfrozen = self.unreduced.find_unfrozen()
        self.unreduced.warn_of(unfrozen)
        self._compared = [*self.parameters.values(), *unfrozen], [*self.parameters, *unfrozen.values()]
        self._differing = yield from compare_weights(
            *self._compared, step, stop=self.stops, idle=idle, unreduced=unfrozen
        )
        yield from self.unreduced.compare_ignored(step)

    def resync(self, step: int) -> Program[None] | None:
        """Copy rank 0's weights where the last comparison found a difference; None if it found none."""
        positions, self._differing = self._differing, []
        self.resynced_tensors += len(positions)
        return resync_weights(*self._compared, positions, step) if positions else None
