"""The handle that `local` returns: synchronization rounds between optimizer steps of a plain module."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ..catalog.patterns import CompositionSpec
from ..controller_report import build_controller_report
from ..core import ClosedOnExit, NonFiniteError, Program, ProtocolError, TensorSpec
from ..kernels.threads import lend_cores
from ..sync import Local, LocalRounds
from ..sync.pending_rounds import MergeResult
from .comparison import announce_end, compare_weights, resync_weights
from .complex_layers import as_real, as_real_spec, restore_complex
from .compositions import Compositions, describe_compositions, find_fallbacks
from .connections import check_group, connect_or_single
from .device_copies import warn_of_copies
from .local_options import (
    LocalOptions,
    assign_rules,
    averaged_buffers,
    build_averaging,
    compared_settings,
    dense_gradients,
    parse_optimizer_state,
    refuse_closure,
    trained_parameters,
)
from .local_state import LocalStateMethods
from .metrics import MetricsMethods
from .nonfinite import NonFiniteMonitor
from .report import ReportContext, TrafficReport, describe_handle
from .resume_warning import has_steps, warn_of_empty_memory

COUNT_STEPS = "it skips steps, so call handle.before_step() and handle.after_step() around each step (hooks=False)"


class LocalHandle(MetricsMethods, LocalStateMethods, ClosedOnExit):
    """Runs the synchronization rounds of one model. `local` makes it; all ranks call its methods alike.

    Hooks of the optimizer count its steps. With hooks=False call `before_step()` and `after_step()` around each step,
    also around one that a GradScaler skips: all ranks must count the same steps. Use it as a context around the loop.

    Attributes:
        step: Number of steps made.
        resynced_tensors: Number of tensors that were copied from rank 0 because they differed between ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: Local,
        composition: CompositionSpec | Mapping[str, CompositionSpec],
        options: LocalOptions,
        group: Any = None,
    ) -> None:
        moments = parse_optimizer_state(options.optimizer_state, settings.payload)
        check_group("local", group)
        self._group = group
        self.parameters = trained_parameters(model, optimizer)
        self.options, self.optimizer, self.step, self.resynced_tensors = options, optimizer, 0, 0
        self.is_fresh = True  # no step was made and no state was loaded
        self.buffers = averaged_buffers(model) if options.buffers == "average" else {}
        weights = {name: as_real(p.detach()) if p.is_complex() else p for name, p in self.parameters.items()}
        self.tensors = {**weights, **self.buffers}
        self._forms = [TensorSpec.of(name, p.detach()) for name, p in self.parameters.items()]
        self.layers = [as_real_spec(form) for form in self._forms]
        rules = assign_rules(self._forms, composition, options.dense_below, group)
        self.averaging = (
            None if moments is None else build_averaging(moments, optimizer, self.parameters, rules, options)
        )
        self.rounds = LocalRounds(settings, weights, rules, self.buffers, seed=options.seed)
        self.seconds = {"waiting": 0.0}
        self._carried: list[Future[None]] = []
        self._handles: list[Any] = []
        settings_text = compared_settings(options, settings, optimizer, self.layers, rules)
        self.driver = connect_or_single("local", settings_text, options.timeout_s, group)
        try:
            self.driver.run(self._start_equal())
        except BaseException:
            self.driver.close()
            raise
        self.rounds.reset_anchors()
        self._described = {"rounds": str(settings_text["rounds"])}
        if self.averaging is not None:
            self._described["moments"] = options.optimizer_state
        self._fallbacks = find_fallbacks(self._forms, composition, options.dense_below)
        self._bad_rounds = NonFiniteMonitor(
            model, self.layers, "max_bad_rounds", scaler_remedy=COUNT_STEPS if options.hooks else ""
        )
        self._has_warned_of_copies = False
        self._lr: float | None = None  # of the step that is made now, if it is known
        self.began = time.perf_counter()
        self.rounds.exchanger.set_clock(self.driver.clock)
        if options.hooks:
            self._handles.append(optimizer.register_step_pre_hook(self._before_hook))
            self._handles.append(optimizer.register_step_post_hook(lambda *_: self.after_step()))

    def _start_equal(self) -> Program[None]:
        """Give all ranks rank 0's weights and buffers, as DDP does; only tensors that differ are sent."""
        names, weights = list(self.tensors), [tensor.detach() for tensor in self.tensors.values()]
        places = yield from compare_weights(names, weights, 0, stop=False)
        yield from resync_weights(names, weights, places, 0)

    # Around a step

    def _before_hook(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.rounds.settings.payload == "gradients":
            refuse_closure(args, kwargs)
        self.before_step()

    @torch.no_grad()
    def before_step(self) -> None:
        """Do what a step needs before the optimizer's update; hooks call it unless hooks=False."""
        if self.is_fresh:
            self.is_fresh = False
            if has_steps(self.optimizer, self.parameters.values()):
                warn_of_empty_memory("local")
        rates = [float(group["lr"]) for group in self.optimizer.param_groups if "lr" in group]
        self._lr = max(rates, default=None)
        if self.rounds.settings.payload == "gradients":
            self._average_gradients()
        elif self.rounds.settings.overlap:
            self._wait()
            self._after_merge(self.rounds.before_step(self.step))

    @torch.no_grad()
    def after_step(self) -> None:
        """Count a step and run the rounds that are due after it; hooks call it unless hooks=False."""
        rounds, step, world = self.rounds, self.step, self.driver.world
        merged: list[MergeResult] = []
        if any(pending.merge_step <= step for pending in rounds.pending) and not rounds.settings.overlap:
            self._wait()
            merged += rounds.merge(step)
        self.driver.run(rounds.full_average_if_due(step, world))
        started = self.driver.run(rounds.start_rounds(step, world, self._lr))
        self._carried += [self.driver.submit(rounds.exchange_round(pending, world)) for pending in started]
        if started and rounds.settings.is_blocking:
            self._wait()
            merged += rounds.merge(step)
            self.driver.run(rounds.full_average_if_due(step, world))
        self._after_merge(merged)
        self.step += 1

    def _average_gradients(self) -> None:
        gradients = dense_gradients(self.parameters)
        with self._timing():
            averages = self.driver.run(self.rounds.average_gradients(gradients, self.step, self.driver.world, self._lr))
        for name, parameter in self.parameters.items():  # None after a bad step: weights and moments stay as they are
            parameter.grad = restore_complex(averages[name], parameter) if name in averages else None
        self._count_bad_rounds()

    def _wait(self) -> None:
        with self._timing(), lend_cores():
            carried, self._carried = self._carried, []
            for future in carried:
                future.result()

    @contextmanager
    def _timing(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds["waiting"] += time.perf_counter() - began

    def _after_merge(self, merged: Sequence[MergeResult]) -> None:
        for one in merged:
            if one.rolled_back:
                self._drop_optimizer_state(self.parameters)  # its moments were computed from NaN or infinities
            elif self.options.optimizer_state == "reset":
                self._drop_optimizer_state(one.names)
            elif self.averaging is not None and one.good:
                with self._timing():
                    self.driver.run(self.averaging.average(self.driver.world, one.names))
        if merged:
            self._count_bad_rounds()
            self._check_anchors(len(merged))

    def _drop_optimizer_state(self, names: Any) -> None:
        for name in names:
            self.optimizer.state.pop(self.parameters[name], None)

    def _count_bad_rounds(self) -> None:
        if not self._has_warned_of_copies:
            self._has_warned_of_copies = True
            warn_of_copies("local", self.layers, self.driver, "round", self._group)
        self._bad_rounds.check(self.step, self.rounds.bad_in_a_row, self.options.max_bad_rounds)

    def _check_anchors(self, merged: int) -> None:
        """Compare the anchors, which are equal on all ranks after a round, unless they gossip."""
        every, done = self.options.check_weights_every, self.rounds.num_rounds
        if not every or self.rounds.is_gossip or done // every == (done - merged) // every:
            return
        names, anchors = list(self.rounds.anchor), list(self.rounds.anchor.values())
        stop = self.options.on_divergence == "stop"
        places = self.driver.run(compare_weights(names, anchors, self.step, stop=stop))
        self.driver.run(resync_weights(names, anchors, places, self.step))
        for name in (names[at] for at in places):
            self.tensors[name].copy_(self.rounds.anchor[name])
        self.resynced_tensors += len(places)

    # Between steps, for users

    @torch.no_grad()
    def full_average(self) -> None:
        """Replace all ranks' weights (and buffers) by their dense mean, for evaluation or for saving one model.

        Training may continue after it. `averaged()` does it temporarily.

        Raises:
            NonFiniteError: Some rank's weights have a NaN or an infinity.
        """
        if not self.driver.run(self.rounds.full_average(self.step, self.driver.world)):
            raise NonFiniteError(
                f"step {self.step}: some rank's weights have a NaN or an infinity, so they cannot be averaged"
            )

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Context with the mean of all ranks' weights and buffers; its end restores each rank's own, bit for bit."""
        own = {name: tensor.detach().clone() for name, tensor in self.tensors.items()}
        anchors = {name: anchor.clone() for name, anchor in self.rounds.anchor.items()}
        self.full_average()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in self.tensors.items():
                    tensor.copy_(own[name])
                for name, anchor in anchors.items():
                    self.rounds.anchor[name] = anchor

    def consensus(self) -> float:
        """Return the consensus distance (1/n) sum_i |w_i - mean w|^2 of the ranks' weights; the same on all ranks."""
        return self.driver.run(self.rounds.consensus(self.step, self.driver.world))

    def report(self) -> TrafficReport:
        """Return bytes sent, saving and waiting times so far, as counted on this rank; prints as a table."""
        self._wait()
        dense = sum(layer.numel * layer.dtype.itemsize for layer in self.layers)
        exchanger, driver = self.rounds.exchanger, self.driver
        adapting = build_controller_report(exchanger, driver.meter, time.perf_counter() - self.began)
        context = ReportContext(self._compositions, self._state, facts=self._described)
        return TrafficReport.of(
            driver.meter, driver.world, self.step, dense, self.seconds, exchanger.skipped_steps,
            self.resynced_tensors, adapting, context,
        )  # fmt: skip

    def __repr__(self) -> str:
        return describe_handle(self, self._compositions, self.step, self.driver.world, self._state)

    @property
    def _compositions(self) -> Compositions:
        return describe_compositions(
            {layer.name: self.rounds.exchanger.aggregators[layer.name] for layer in self.layers},
            self._fallbacks,
            [form.name for form in self._forms if form.dtype.is_complex],
        )

    @property
    def _state(self) -> str:
        return "closed" if self.driver.is_closed else ""

    def close(self) -> None:
        """Complete the rounds that are under way, remove the optimizer's hooks and close the connections.

        Each rank keeps its own weights; call `full_average()` before it for equal ones. A second call does nothing.
        """
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.driver.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._announce_end()
        finally:
            self.close()

    def _announce_end(self) -> None:
        """Tell all ranks that this one has finished: a rank with further rounds then fails at once."""
        self._wait()
        try:
            self.driver.run(announce_end())
        except ProtocolError as error:
            raise ProtocolError(
                f"local: this rank has finished after {self.step} steps, and other ranks have further rounds; give all "
                f"ranks the same number of batches. {error}"
            ) from error
