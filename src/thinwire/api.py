"""What a user imports: two lines in a DDP script."""

from __future__ import annotations

from collections.abc import Mapping

from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from .integrations.rules import SMALL, Wanted
from .integrations.slot import Slot
from .integrations.wire import Wire, WireOptions


def attach(
    model: DistributedDataParallel,
    composition: Wanted | Mapping[str, Wanted],
    *,
    scaler: GradScaler | None = None,
    warmup_steps: int = 0,
    small: int = SMALL,
    seed: int = 0,
    check_every: int = 100,
    on_divergence: str = "stop",
    most_bad_steps: int = 10,
    timeout_s: float = 60.0,
) -> Wire:
    """Let a DDP model's gradients travel through a composition, from its next backward pass on.

    composition: a text such as "ef(topk(density=0.01))", a part, or a mapping of name patterns to those; the first
    pattern that matches counts. Biases, norms and layers of fewer than `small` elements travel dense, in one message.
    scaler: your GradScaler, so that memories hold gradients without its factor. warmup_steps: so many steps are dense.
    check_every: steps between comparisons of all ranks' weights; on_divergence="heal" copies rank 0's instead of
    stopping. most_bad_steps: after so many non-finite steps in a row, `backward` raises. All ranks call this alike.
    """
    options = WireOptions(scaler, warmup_steps, small, seed, check_every, on_divergence, most_bad_steps, timeout_s)
    slot = Slot.of(model)
    wire = Wire(model, composition, options, lambda: slot.hold(None))
    slot.hold(wire)
    return wire
