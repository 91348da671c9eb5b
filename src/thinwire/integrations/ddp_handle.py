"""The handle that `attach` returns: it exchanges the gradients of one DDP model and reports the traffic."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from .. import __version__
from ..aggregators import Dense
from ..catalog import part_text
from ..catalog.patterns import CompositionSpec, assign_composition
from ..controller_report import build_controller_report
from ..core import (
    Aggregator,
    ClosedError,
    ClosedOnExit,
    Program,
    TensorSpec,
    World,
    flatten_state,
    require_keys,
)
from ..core.torch_private import awaits_first_static_step, used_map_of
from ..exchange import Exchanger
from .comparison import compare_settings
from .complex_layers import as_real_spec
from .compositions import Compositions, describe_compositions, find_fallbacks
from .connections import connect
from .ddp_hook import DDPHook
from .ddp_options import DDPOptions
from .device_copies import warn_of_copies
from .handle_memory import describe_memory
from .metrics import MetricsMethods
from .nonfinite import NonFiniteMonitor
from .report import ReportContext, TrafficReport, describe_handle
from .soundness import check_soundness, refuse_gossip
from .state_gather import build_state
from .state_loading import LoadTarget, load_rank_state, log
from .step_times import now
from .unreduced import find_reduced_parameters
from .weights_check import WeightsCheck

REPLACED = "was detached by a second attach to its model"
DDP_SETTINGS = ("bucket_bytes_cap", "find_unused_parameters", "static_graph")  # all ranks need the same, too
GIVE_SCALER = "pass it to thinwire.attach(model, ..., scaler=scaler)"


class DDPHandle(MetricsMethods, ClosedOnExit):
    """Exchanges the gradients of one DDP model. `attach` makes it.

    All ranks call its methods alike, between two steps. In a `with` block it is closed at the end.

    Attributes:
        exchanger: The exchanger of the composition, with its memory.
        dense_exchanger: The exchanger of steps that are averaged dense: warmup steps, and steps while paused.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        composition: CompositionSpec | Mapping[str, CompositionSpec],
        options: DDPOptions,
    ) -> None:
        self.options, self.group = options, model.process_group
        self.detached = ""  # the reason, once it is detached
        self.leave_slot: Callable[[], None] = lambda: None  # removes it from its model
        self.parameters = find_reduced_parameters(model)
        self._weights_check = WeightsCheck(model, self.parameters, options)
        self._ddp = {name: getattr(model, name) for name in DDP_SETTINGS}
        self._ddp |= {"ignores parameters": True} if self._weights_check.unreduced.ignored else {}
        self._forms = [TensorSpec(name, tuple(p.shape), p.dtype, p.device) for p, name in self.parameters.items()]
        self.layers = [as_real_spec(form) for form in self._forms]
        self.exchanger = self._build_exchanger(composition, "attach")
        self._fallbacks = find_fallbacks(self._forms, composition, options.dense_below)
        self.dense_exchanger = Exchanger(self.layers, Dense())
        self.driver = connect("attach", self._settings(self.exchanger.aggregators), options.timeout_s, self.group)
        self.consecutive_bad_steps = 0
        self.is_fresh = True  # no step was made and no state was loaded
        self.attached_at = now()
        self.warmup_until, self.paused = options.warmup_steps, False
        scale = options.scaler.get_scale if options.scaler is not None and options.scaler.is_enabled() else None
        # in a static graph an unused parameter never has a gradient, so there is nothing of it to lose
        used = used_map_of(model) if model.find_unused_parameters and not model.static_graph else None
        self._bad_steps = NonFiniteMonitor(model, self.layers, "max_bad_steps", options.scaler, GIVE_SCALER)
        self._has_warned_of_copies = False
        self._lr: float | None = None  # of the optimizer's last step; passed to the next exchange
        self.hook = DDPHook(
            self._choose_exchanger, self.driver, self.parameters, scale, used, lambda: self._lr,
            before=[self._check_weights], after_backward=[self._weights_check.resync],
            after=[self._warn_of_copies, self._count_bad_steps],
            backward_ended=awaits_first_static_step(model),
        )  # fmt: skip

    def _build_exchanger(self, composition: CompositionSpec | Mapping[str, CompositionSpec], caller: str) -> Exchanger:
        """Check what one rank can check alone; nothing is sent."""
        rules = assign_composition(self._forms, composition, self.options.dense_below, caller)
        refuse_gossip(rules, caller)
        check_soundness(caller, self.layers, rules, self.group)
        exchanger = Exchanger(self.layers, rules, seed=self.options.seed)
        exchanger.set_clock(now)
        return exchanger

    def _settings(self, rules: Mapping[str, Aggregator[Any]]) -> dict[str, Any]:
        """The settings that ranks compare, in this order: causes before their consequences."""
        options = {k: v for k, v in vars(self.options).items() if isinstance(v, int | float | str)}
        return {
            "thinwire": __version__,
            "setting": options | {"scaler": self.options.scaler is not None},
            "DDP": self._ddp,
            "parameters in order": [layer.name for layer in self.layers],
            "parameter": {layer.name: f"{list(layer.shape)} {layer.dtype}" for layer in self.layers},
            "composition": {name: part_text(rule) for name, rule in rules.items()},
        }

    # Around a step

    def _choose_exchanger(self, step: int) -> Exchanger:
        dense = self.paused or step < self.warmup_until
        return self.dense_exchanger if dense else self.exchanger

    def note_learning_rate(self, lr: float) -> None:
        """Store the optimizer's learning rate for controllers; called before each optimizer step."""
        self._lr = lr

    def _check_weights(self, step: int, world: World) -> Program[None]:
        yield from self._weights_check.compare(step, self.hook.idle)

    @property
    def resynced_tensors(self) -> int:
        """Number of tensors that were copied from rank 0 because they differed between ranks."""
        return self._weights_check.resynced_tensors

    def _count_bad_steps(self, good: bool) -> None:
        self.consecutive_bad_steps = 0 if good else self.consecutive_bad_steps + 1
        if not good:
            self._bad_steps.check(self.hook.step, self.consecutive_bad_steps, self.options.max_bad_steps)

    def _warn_of_copies(self, good: bool) -> None:
        if not self._has_warned_of_copies:
            self._has_warned_of_copies = True
            warn_of_copies("attach", self.layers, self.driver, "step", self.group)

    # Between steps, for users

    def pause(self) -> None:
        """Average gradients dense from the next step on; residuals are kept.

        Raises:
            ClosedError: The handle is detached.
        """
        self._check_attached("pause")
        self.paused = True

    def resume(self) -> None:
        """Compress again after `pause()`.

        Raises:
            ClosedError: The handle is detached.
        """
        self._check_attached("resume")
        self.paused = False

    def detach(self) -> None:
        """Return the model to DDP's own averaging from the next step on, drop the residuals, close the connections.

        The model keeps training as plain DDP; `attach` compresses again. A second call does nothing. Warns if a newer
        handle has replaced this one: the model then stays with the newer handle.
        """
        if self.detached == REPLACED:
            warnings.warn(f"detach: this handle {REPLACED}; the model stays with the newer handle", stacklevel=2)
        self.close()

    def close(self) -> None:
        """Do the same as `detach()`, but without a warning; called at the end of a `with` block."""
        if not self.detached:
            self.leave_slot()

    def _check_attached(self, method: str) -> None:
        if self.detached:
            raise ClosedError(
                f"{method}: this handle {self.detached}, and its connections are closed; use the handle of the last "
                "attach, or attach again"
            )

    def set_composition(self, composition: CompositionSpec | Mapping[str, CompositionSpec]) -> list[str]:
        """Use another composition from the next step on, with the memory of the present one.

        Residuals are converted to the form and place that the new composition needs; velocities are kept between dgc,
        estimates between ef21, importance where the new composition takes one in the same mapping. A controller
        continues if its menus are unchanged; else it starts again, with an empty history of plans.

        Args:
            composition: As for `attach`.

        Returns:
            What the new composition has no place for, one text each; these are dropped, and logged as warnings.

        Raises:
            ClosedError: The handle is detached.
            CompositionError: The composition is not valid; the present one stays.
            ConfigMismatch: Ranks passed different compositions; the present one stays.
        """
        self._check_attached("set_composition")
        exchanger = self._build_exchanger(composition, "set_composition")
        self.driver.run(compare_settings(self._settings(exchanger.aggregators)))
        dropped = exchanger.take_over(self.exchanger, self.hook.step, self.driver.world)
        self.exchanger = exchanger
        self._fallbacks = find_fallbacks(self._forms, composition, self.options.dense_below)
        for text in dropped:
            log.warning("set_composition: %s", text)
        return dropped

    def report(self) -> TrafficReport:
        """Return bytes sent, saving and times of the steps so far, as counted on this rank; prints as a table."""
        dense = sum(layer.numel * layer.dtype.itemsize for layer in self.layers)
        hook, driver = self.hook, self.driver
        adapting = build_controller_report(self.exchanger, driver.meter, now() - self.attached_at)
        context = ReportContext(self._compositions, self._state)
        return TrafficReport.of(
            driver.meter, driver.world, hook.step, dense, hook.times.sums, self._skipped, self.resynced_tensors,
            adapting, context,
        )  # fmt: skip

    def __repr__(self) -> str:
        return describe_handle(self, self._compositions, self.hook.step, self.driver.world, self._state)

    @property
    def _compositions(self) -> Compositions:
        complex_names = [form.name for form in self._forms if form.dtype.is_complex]
        return describe_compositions(self.exchanger.aggregators, self._fallbacks, complex_names)

    @property
    def _state(self) -> str:
        if self.driver.is_closed:
            return "detached"
        return "paused" if self.paused else "warming up" if self.hook.step < self.warmup_until else ""

    @property
    def _skipped(self) -> int:
        return self.exchanger.skipped_steps + self.dense_exchanger.skipped_steps

    # State

    @property
    def has_memory(self) -> bool:
        """Whether the composition keeps anything from step to step."""
        return any(map(flatten_state, self.exchanger.states.values()))

    def state_dict(self, gather: bool = False) -> dict[str, Any]:
        """Return the memory of this rank, the step and the composition's text, to be stored beside model and optimizer.

        Each rank saves its own. Tensors are those in use, which later steps replace and do not change.

        Args:
            gather: Collect the states of all ranks on each rank, so that one file is enough and any number of ranks
                can resume; call it on all ranks. It takes the memory of all ranks' states.

        Raises:
            ClosedError: The handle is detached.
        """
        self._check_attached("state_dict")
        self.hook.abandon_open_step()
        mine = self.exchanger.state_dict() | {"step": self.hook.step, "paused": self.paused}
        mine |= {} if self._lr is None else {"lr": self._lr}
        memory = describe_memory(self.exchanger)
        return build_state(mine, {memory.kind: memory.texts}, self.driver, gather)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> list[str]:
        """Continue from a stored state; call it after `attach`, on all ranks. An error is raised on all ranks.

        With another number of ranks than stored, each rank starts with the mean of all residuals.

        Args:
            state: What `state_dict()` returned: on the same rank, or with gather on any.
            strict: With False, take over what fits from a state of another composition, as `set_composition` does, and
                let a rank without a stored memory start with an empty one.

        Returns:
            What was dropped, one text each, also logged; always empty with strict.

        Raises:
            ClosedError: The handle is detached.
            ConfigMismatch: The state is of another composition (only with strict), or ranks passed different states.
            CheckpointError: The memory of a rank is missing (only with strict), or a tensor has another shape.
        """
        self._check_attached("load_state_dict")
        target = LoadTarget([describe_memory(self.exchanger)], self.exchanger.merge_states, self._install_state)
        return load_rank_state(state, self.driver, target, strict)

    def _install_state(self, mine: Mapping[str, Any]) -> None:
        require_keys(mine, ("step", "paused"), "the handle of attach")
        self.exchanger.load_state_dict(mine)
        self.hook.resume_at(int(mine["step"]))
        self.paused, self.is_fresh, self._lr = bool(mine["paused"]), False, None
