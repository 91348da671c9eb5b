"""The handle that `attach` gives: what a model's gradients go through, and what that costs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from .. import __version__
from ..aggregators import Dense
from ..catalog import part_text
from ..catalog.patterns import Wanted, assigned
from ..controller_report import build_controller_report
from ..core import (
    Aggregator,
    ClosedError,
    CompositionError,
    IncompatibleParts,
    Program,
    TensorSpec,
    World,
    flatten_state,
    require_keys,
    topology_of,
)
from ..core.torch_private import awaits_first_static_step, count_reduced_parameters, parameters_of, used_map_of
from ..exchange import Exchanger
from .agreement import agree_on, compare_weights, heal_weights
from .complex_layers import as_real_spec
from .compositions import Compositions, describe_rules, find_fall_backs
from .ddp import DDPHook
from .device_copies import warn_of_copies
from .gathering import state_of_all
from .loading import load_own, log, memory_of
from .nonfinite import BadSteps
from .opening import open_agreed
from .report import Subject, WireReport, repr_of
from .soundness import check_soundness
from .times import now
from .unreduced import UnreducedParameters
from .wire_options import WireOptions

REPLACED = "was detached by a second attach to its model"
DDP_SETTINGS = ("bucket_bytes_cap", "find_unused_parameters", "static_graph")  # all ranks need the same, too
GIVE_SCALER = "give it to thinwire.attach(model, ..., scaler=scaler)"


class Wire:
    """Carries one DDP model's gradients. Made by `attach`, on every rank alike; so are its methods called."""

    def __init__(
        self,
        model: DistributedDataParallel,
        wanted: Wanted | Mapping[str, Wanted],
        options: WireOptions,
    ) -> None:
        self.options, self.group = options, model.process_group
        self.detached = ""  # by what, once it is
        self.let_go: Callable[[], None] = lambda: None  # takes it off its model
        self.parameters = reduced_parameters(model)
        self._unreduced = UnreducedParameters(model, self.parameters)
        self._ddp = {name: getattr(model, name) for name in DDP_SETTINGS}
        self._ddp |= {"ignores parameters": True} if self._unreduced.ignored else {}
        self._forms = [TensorSpec(name, tuple(p.shape), p.dtype, p.device) for p, name in self.parameters.items()]
        self.layers = [as_real_spec(form) for form in self._forms]
        self.compressed = self._assemble(wanted, "attach")
        self.plain = Exchanger(self.layers, Dense())
        self.driver = open_agreed("attach", self._facts(self.compressed.rules), options.timeout_s, self.group)
        self.healed = self.bad_in_a_row = 0
        self.fresh = True  # no step was made and no state was loaded
        self.attached_at = now()
        self.warmup_until, self.paused = options.warmup_steps, False
        scale = options.scaler.get_scale if options.scaler is not None and options.scaler.is_enabled() else None
        # in a static graph an unused parameter never has a gradient, so there is nothing of it to lose
        used = used_map_of(model) if model.find_unused_parameters and not model.static_graph else None
        self._compared: tuple[list[str], list[Tensor]] = ([], [])  # by the last check
        self._drifted: list[int] = []  # places in it of weights that differ between ranks, to be healed
        self._bad_steps = BadSteps(model, self.layers, "most_bad_steps", options.scaler, GIVE_SCALER)
        self._told_of_copies = False
        self._lr: float | None = None  # of the optimizer's last step; goes with the next exchange
        self.hook = DDPHook(
            self._choose_exchanger, self.driver, self.parameters, scale, used, lambda: self._lr,
            before=[self._check_weights], at_rest=[self._heal_weights],
            after=[self._warn_of_copies, self._count_bad_steps],
            backward_ended=awaits_first_static_step(model),
        )  # fmt: skip

    def _assemble(self, wanted: Wanted | Mapping[str, Wanted], caller: str) -> Exchanger:
        """What one rank can check alone: nothing is sent."""
        rules = assigned(self._forms, wanted, self.options.small, caller)
        refuse_gossip(rules, caller)
        check_soundness(caller, self.layers, rules, self.group)
        exchanger = Exchanger(self.layers, rules, seed=self.options.seed)
        exchanger.set_clock(now)
        self._fall_backs = find_fall_backs(self._forms, wanted, self.options.small)
        return exchanger

    def _exchanger(self, wanted: Wanted | Mapping[str, Wanted]) -> Exchanger:
        exchanger = self._assemble(wanted, "change")
        self.driver.run(agree_on(self._facts(exchanger.rules)))
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
            "composition": {name: part_text(rule) for name, rule in rules.items()},
        }

    # What happens around a step

    def _choose_exchanger(self, step: int) -> Exchanger:
        dense = self.paused or step < self.warmup_until
        return self.plain if dense else self.compressed

    def note_learning_rate(self, lr: float) -> None:
        """For controllers: the optimizer that holds these parameters is about to make a step with it."""
        self._lr = lr

    def _check_weights(self, step: int, world: World) -> Program[None]:
        every = self.options.check_every
        if every and step % every == 0:
            unfrozen, stop = self._unreduced.unfrozen(), self.options.on_divergence == "stop"
            self._unreduced.warn_of(unfrozen)
            names, weights = self._compared = (
                [*self.parameters.values(), *unfrozen],
                [*self.parameters, *unfrozen.values()],
            )
            self._drifted = yield from compare_weights(
                names, weights, step, stop=stop, idle=self.hook.idle, unreduced=unfrozen
            )
            yield from self._unreduced.compare_ignored(step)

    def _heal_weights(self, step: int) -> Program[None] | None:
        places, self._drifted = self._drifted, []
        self.healed += len(places)
        return heal_weights(*self._compared, places, step) if places else None

    def _count_bad_steps(self, good: bool) -> None:
        self.bad_in_a_row = 0 if good else self.bad_in_a_row + 1
        if not good:
            self._bad_steps.check(self.hook.step, self.bad_in_a_row, self.options.most_bad_steps)

    def _warn_of_copies(self, good: bool) -> None:
        if not self._told_of_copies:
            self._told_of_copies = True
            warn_of_copies("attach", self.layers, self.driver, "step", self.group)

    # What a user may do between steps

    def pause(self) -> None:
        """Average densely from the next step on; residuals wait."""
        self._check_attached("pause")
        self.paused = True

    def resume(self) -> None:
        self._check_attached("resume")
        self.paused = False

    def detach(self) -> None:
        """Average as DDP does from the next step on; attach again to compress again. Once detached, it does nothing."""
        if self.detached == REPLACED:
            warnings.warn(f"detach: this handle {REPLACED}; the model stays with the newer handle", stacklevel=2)
        elif not self.detached:
            self.let_go()

    def _check_attached(self, method: str) -> None:
        if self.detached:
            raise ClosedError(
                f"{method}: this handle {self.detached}, and has no connections any more; use the handle of the last "
                "attach, or attach again"
            )

    def change(self, wanted: Wanted | Mapping[str, Wanted]) -> list[str]:
        """Another composition from the next step on, with the memory of the present one.

        Residuals go over whatever their form and wherever they are kept, velocities between dgc, estimates between
        ef21; importance stays where the new composition takes one, in the same mapping. A controller goes on if
        nothing changed for it; else it begins anew, and so does the history of plans.

        Returns:
            What the new composition has no place for and is dropped, one text each; they are logged as warnings, too.
        """
        self._check_attached("change")
        before, after = self.compressed, self._exchanger(wanted)
        dropped = after.take_over(before, self.hook.step, self.driver.world)
        self.compressed = after
        for text in dropped:
            log.warning("change: %s", text)
        return dropped

    def report(self) -> WireReport:
        """What was sent and saved, and where the time went, as this rank counted. Prints as a table."""
        dense = sum(layer.numel * layer.dtype.itemsize for layer in self.layers)
        hook, driver = self.hook, self.driver
        adapting = build_controller_report(self.compressed, driver.meter, now() - self.attached_at)
        about = Subject(self._compositions, self._state)
        return WireReport.of(
            driver.meter, driver.world, hook.step, dense, hook.times.sums, self._skipped, self.healed, adapting, about
        )

    def __repr__(self) -> str:
        return repr_of(self, self._compositions, self.hook.step, self.driver.world, self._state)

    @property
    def _compositions(self) -> Compositions:
        complex_names = [form.name for form in self._forms if form.dtype.is_complex]
        return describe_rules(self.compressed.rules, self._fall_backs, complex_names)

    @property
    def _state(self) -> str:
        if self.driver.is_closed:
            return "detached"
        return "paused" if self.paused else "warming up" if self.hook.step < self.warmup_until else ""

    @property
    def _skipped(self) -> int:
        return self.compressed.skipped_steps + self.plain.skipped_steps

    # State

    @property
    def remembers(self) -> bool:
        """Whether the composition keeps anything from step to step."""
        return any(map(flatten_state, self.compressed.memory.values()))

    def state_dict(self, gather: bool = True) -> dict[str, Any]:
        """Tensors, numbers and the composition's text, of all ranks; gather=False: this rank's alone, silently."""
        self._check_attached("state_dict")
        self.hook.abandon_open_step()
        mine = self.compressed.state_dict() | {"step": self.hook.step, "paused": self.paused}
        mine |= {} if self._lr is None else {"lr": self._lr}
        memory = memory_of(self.compressed)
        return state_of_all(mine, {memory.kind: memory.texts}, self.driver, gather)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> list[str]:
        """Continue where `state_dict` was taken; with another number of ranks, with the mean of all residuals.

        Args:
            state: what `state_dict` gave.
            strict: False takes over what fits of a state of another composition, as `change` does.

        Returns:
            What was dropped, one text each; with strict there is nothing.

        Raises:
            ConfigMismatch: strict, and the state is of another composition; or ranks were given different states.
            CheckpointError: the state lacks something, or a tensor has another shape.
        """
        self._check_attached("load_state_dict")
        mine, dropped = load_own(state, self.driver, self.compressed.merged, [memory_of(self.compressed)], strict)
        require_keys(mine, ("step", "paused"), "the handle of attach")
        self.compressed.load_state_dict(mine)
        self.hook.resume_at(int(mine["step"]))
        self.paused, self.fresh, self._lr = bool(mine["paused"]), False, None
        return dropped


def reduced_parameters(model: DistributedDataParallel) -> dict[Tensor, str]:
    """The parameters whose gradients DDP exchanges, with their names: those that are neither ignored nor frozen."""
    known = {id(parameter) for parameter in parameters_of(model) if parameter.requires_grad}
    named: dict[Tensor, str] = {p: name for name, p in model.module.named_parameters() if id(p) in known}
    wrapped = count_reduced_parameters(model)
    if len(named) != wrapped:
        raise CompositionError(
            f"attach: DDP was made for {wrapped} parameters, and {len(named)} want gradients now; freeze and unfreeze "
            "before you wrap the model, or wrap it again"
        )
    return named


def refuse_gossip(rules: Mapping[str, Aggregator[Any]], caller: str = "attach") -> None:
    """DDP takes all replicas to be equal."""
    for name, rule in rules.items():
        if (topology := topology_of(rule)) is not None:
            raise IncompatibleParts(
                f"{caller}: {name}: {part_text(rule)} gives each rank a mixture of its own over {part_text(topology)}, "
                "and DDP needs equal replicas; use thinwire.local(model, optimizer, exchange=...) around the module"
            )
