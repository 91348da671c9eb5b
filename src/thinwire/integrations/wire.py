"""The handle that `attach` gives: what a model's gradients go through, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from .. import __version__
from ..aggregators import Dense
from ..catalog import SMALL, to_text
from ..core import Aggregator, CompositionError, IncompatibleParts, NonFiniteError, Program, TensorSpec, World, mixes
from ..drivers.torch_dist import TorchDist
from ..exchange import Exchanger
from .adapting import adapting_of
from .agreement import agree_on, compare_weights, heal_weights
from .ddp import DDPHook
from .gathering import agreed_state, state_of_all
from .report import WireReport
from .rules import Wanted, assigned
from .times import now

ON_DIVERGENCE = ("stop", "heal")
DDP_SETTINGS = ("bucket_bytes_cap", "find_unused_parameters", "static_graph")  # all ranks need the same, too


@dataclass(frozen=True)
class WireOptions:
    """What `attach` takes beside the composition."""

    scaler: GradScaler | None = None
    warmup_steps: int = 0
    small: int = SMALL
    seed: int = 0
    check_every: int = 100
    on_divergence: str = "stop"
    most_bad_steps: int = 10
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("warmup_steps", "small", "check_every"):
            if getattr(self, name) < 0:
                raise CompositionError(f"attach: {name} must not be negative, got {getattr(self, name)}; 0 means never")
        if self.on_divergence not in ON_DIVERGENCE:
            raise CompositionError(
                f"attach: on_divergence must be one of {', '.join(ON_DIVERGENCE)}, got {self.on_divergence!r}"
            )


class Wire:
    """Carries one DDP model's gradients. Made by `attach`, on every rank alike; so are its methods called."""

    def __init__(
        self,
        model: DistributedDataParallel,
        wanted: Wanted | Mapping[str, Wanted],
        options: WireOptions,
        let_go: Callable[[], None],
    ) -> None:
        self.options, self._let_go = options, let_go
        self.parameters = reduced_parameters(model)
        self._ddp = {name: getattr(model, name) for name in DDP_SETTINGS}
        self.layers = [TensorSpec(name, tuple(p.shape), p.dtype, p.device) for p, name in self.parameters.items()]
        self.driver = TorchDist(model.process_group, timeout_s=options.timeout_s)
        self.healed = self.bad_in_a_row = 0
        self.attached_at = now()
        self.warmup_until, self.paused = options.warmup_steps, False
        self.compressed = self._exchanger(wanted)
        self.plain = Exchanger(self.layers, Dense())
        scale = options.scaler.get_scale if options.scaler is not None and options.scaler.is_enabled() else None
        # in a static graph an unused parameter never has a gradient, so there is nothing of it to lose
        used = model.reducer._get_local_used_map if model.find_unused_parameters and not model.static_graph else _no_map
        self.hook = DDPHook(self.plain, self.driver, self.parameters, scale, used)
        self.hook.backward_ended = model.static_graph and not model._static_graph_delay_allreduce_enqueued
        self._drifted: list[int] = []  # places of weights that differ between ranks, to be healed
        self.hook.before += [self._choose_exchanger, self._check_weights]
        self.hook.at_rest += [self._heal_weights]
        self.hook.after += [self._count_bad_steps]

    def _exchanger(self, wanted: Wanted | Mapping[str, Wanted]) -> Exchanger:
        rules = assigned(self.layers, wanted, self.options.small)
        refuse_gossip(rules)
        self.driver.run(agree_on(self._facts(rules)))
        exchanger = Exchanger(self.layers, rules, seed=self.options.seed)
        exchanger.clock = now
        return exchanger

    def _facts(self, rules: Mapping[str, Aggregator[Any]]) -> dict[str, Any]:
        """In the order in which they are compared: causes before what follows from them."""
        options = {k: v for k, v in vars(self.options).items() if isinstance(v, int | float | str)}
        return {
            "thinwire": __version__,
            "setting": options | {"scaler": self.options.scaler is not None},
            "DDP": self._ddp,
            "parameters in order": [layer.name for layer in self.layers],
            "parameter": {layer.name: f"{list(layer.shape)} {layer.dtype}" for layer in self.layers},
            "composition": {name: to_text(rule) for name, rule in rules.items()},
        }

    # What happens around a step

    def _choose_exchanger(self, step: int, world: World) -> Program[None]:
        dense = self.paused or step < self.warmup_until
        self.hook.exchanger = self.plain if dense else self.compressed
        return
        yield

    def _check_weights(self, step: int, world: World) -> Program[None]:
        every = self.options.check_every
        if every and step % every == 0:
            stop = self.options.on_divergence == "stop"
            names, weights = list(self.parameters.values()), list(self.parameters)
            self._drifted = yield from compare_weights(names, weights, step, stop=stop, idle=self.hook.idle)

    def _heal_weights(self, step: int, world: World) -> Program[None]:
        places, self._drifted = self._drifted, []
        yield from heal_weights(list(self.parameters.values()), list(self.parameters), places, step)
        self.healed += len(places)

    def _count_bad_steps(self, good: bool) -> None:
        self.bad_in_a_row = 0 if good else self.bad_in_a_row + 1
        most = self.options.most_bad_steps
        if most and self.bad_in_a_row >= most:
            raise NonFiniteError(
                f"step {self.hook.step}: {most} steps in a row had a NaN or an infinity on some rank; the log of that "
                "rank names the parameters. Lower the learning rate, clip gradients, or raise most_bad_steps"
            )

    # What a user may do between steps

    def pause(self) -> None:
        """Average densely from the next step on; residuals wait."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def detach(self) -> None:
        """Average as DDP does from the next step on; attach again to compress again."""
        self._let_go()

    def change(self, wanted: Wanted | Mapping[str, Wanted]) -> None:
        """Another composition from the next step on; residuals that both compositions keep are taken over.

        The history of plans begins anew: its entries are those of one composition's menus.
        """
        before, after = self.compressed, self._exchanger(wanted)
        before.settle()
        for name, state in after.memory.items():
            old = before.memory[name]
            if hasattr(state, "residual") and hasattr(old, "residual") and type(state.residual) is type(old.residual):
                after.memory[name] = state._replace(residual=old.residual)
        after.skipped_steps, after.adapting_s, after.lr = before.skipped_steps, before.adapting_s, before.lr
        self.compressed = after

    def report(self) -> WireReport:
        """What was sent and saved, and where the time went, as this rank counted. Prints as a table."""
        dense = sum(layer.numel * layer.dtype.itemsize for layer in self.layers)
        hook, driver = self.hook, self.driver
        adapting = adapting_of(self.compressed, driver.meter, now() - self.attached_at)
        times = hook.times.sums
        return WireReport.of(driver.meter, driver.world, hook.step, dense, times, self._skipped, self.healed, adapting)

    @property
    def _skipped(self) -> int:
        return self.compressed.skipped_steps + self.plain.skipped_steps

    # State

    def state_dict(self, gather: bool = True) -> dict[str, Any]:
        """Plain tensors and numbers by parameter name, of all ranks; gather=False: this rank's alone, silently."""
        self.hook.abandon_open_step()
        mine = self.compressed.state_dict() | {"step": self.hook.step, "paused": self.paused}
        return state_of_all(mine, self.driver, gather)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; if the world has another size, with the mean of all residuals."""
        mine = agreed_state(state, self.driver, self.compressed)
        self.hook.step, self.paused = int(mine["step"]), bool(mine["paused"])
        self.compressed.load_state_dict(mine)


def reduced_parameters(model: DistributedDataParallel) -> dict[Tensor, str]:
    """The parameters whose gradients DDP exchanges, with their names: those that are neither ignored nor frozen."""
    known = {id(parameter) for parameter in model._module_parameters if parameter.requires_grad}
    named: dict[Tensor, str] = {p: name for name, p in model.module.named_parameters() if id(p) in known}
    wrapped = model._get_ddp_logging_data()["num_parameter_tensors"]  # type: ignore[no-untyped-call]
    if len(named) != wrapped:
        raise CompositionError(
            f"attach: DDP was made for {wrapped} parameters, and {len(named)} want gradients now; freeze and unfreeze "
            "before you wrap the model, or wrap it again"
        )
    return named


def _no_map() -> None:
    return None


def refuse_gossip(rules: Mapping[str, Aggregator[Any]]) -> None:
    """DDP takes all replicas to be equal."""
    for name, rule in rules.items():
        if (topology := mixes(rule)) is not None:
            raise IncompatibleParts(
                f"attach: {name}: {to_text(rule)} gives each rank a mixture of its own over {to_text(topology)}, and "
                "DDP needs equal replicas; use thinwire.local(model, optimizer, exchange=...) around the plain module"
            )
