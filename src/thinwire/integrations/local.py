"""The handle that `local` gives: rounds between optimizer steps of a plain module, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ..catalog.patterns import Wanted
from ..controller_report import build_controller_report
from ..core import NonFiniteError, Program, ProtocolError, TensorSpec
from ..optimizer_state import AdamMoments, Averaging
from ..sync import Local, Rounds
from ..sync.rounds import Merged
from .agreement import compare_weights, end_together, heal_weights
from .complex_layers import as_real, as_real_spec, like
from .compositions import Compositions, describe_rules, find_fall_backs
from .device_copies import warn_of_copies
from .local_parts import (
    LocalOptions,
    assign_rules,
    averaged_buffers,
    parse_optimizer_state,
    refuse_closure,
    refuse_gossip_with_moments,
    settings_of,
    trained_parameters,
)
from .local_state import LocalState
from .nonfinite import BadSteps
from .opening import check_group, open_or_alone
from .report import Subject, WireReport, repr_of
from .resuming import has_steps, warn_of_empty_memory

COUNT_STEPS = "it leaves out steps, so call wire.before_step() and wire.after_step() around each yourself (hooks=False)"


class LocalWire(LocalState):
    """Carries one model's rounds. Made by `local`, on every rank alike; so are its methods called.

    It counts the optimizer's steps by hooks. With hooks=False call `before_step()` and `after_step()` around each step
    yourself, a step that was left out (GradScaler) included: all ranks must count the same steps.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: Local,
        exchange: Wanted | Mapping[str, Wanted],
        options: LocalOptions,
        group: Any = None,
    ) -> None:
        moments = parse_optimizer_state(options.optimizer_state, settings.payload)
        check_group("local", group)
        self._group = group
        self.parameters = trained_parameters(model, optimizer)
        self.options, self.optimizer, self.step, self.healed = options, optimizer, 0, 0
        self.fresh = True  # no step was made and no state was loaded
        self.buffers = averaged_buffers(model) if options.buffers == "average" else {}
        weights = {name: as_real(p.detach()) if p.is_complex() else p for name, p in self.parameters.items()}
        self.tensors = {**weights, **self.buffers}
        self._forms = [TensorSpec.of(name, p.detach()) for name, p in self.parameters.items()]
        self.layers = [as_real_spec(form) for form in self._forms]
        rules = assign_rules(self._forms, exchange, options.small, group)
        self.averaging: Averaging | None = None
        if moments is not None:
            held = AdamMoments(optimizer, self.parameters)
            self.averaging = Averaging(held, moments, small=options.small, seed=options.seed)
            refuse_gossip_with_moments(rules, options.optimizer_state)
        self.rounds = Rounds(settings, weights, rules, self.buffers, seed=options.seed)
        self.seconds = {"waiting": 0.0}
        self._carried: list[Future[None]] = []
        self._handles: list[Any] = []
        known = settings_of(options, settings, optimizer, self.layers, rules)
        self.driver = open_or_alone("local", known, options.timeout_s, group)
        try:
            self.driver.run(self._begin_alike())
        except BaseException:
            self.driver.close()
            raise
        self.rounds.start_here()
        self._described = {"rounds": str(known["rounds"])}
        if self.averaging is not None:
            self._described["moments"] = options.optimizer_state
        self._fall_backs = find_fall_backs(self._forms, exchange, options.small)
        self._bad_rounds = BadSteps(model, self.layers, "most_bad_rounds", give=COUNT_STEPS if options.hooks else "")
        self._told_of_copies = False
        self._lr: float | None = None  # of the step that is made now, if it is known
        self.began = time.perf_counter()
        self.rounds.exchanger.set_clock(self.driver.clock)
        if options.hooks:
            self._handles.append(optimizer.register_step_pre_hook(self._before_hook))
            self._handles.append(optimizer.register_step_post_hook(lambda *_: self.after_step()))

    def _begin_alike(self) -> Program[None]:
        """Rank 0's weights and buffers for all, as DDP does it; only what differs is sent."""
        names, weights = list(self.tensors), [tensor.detach() for tensor in self.tensors.values()]
        places = yield from compare_weights(names, weights, 0, stop=False)
        yield from heal_weights(names, weights, places, 0)

    # Around a step

    def _before_hook(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.rounds.settings.payload == "gradients":
            refuse_closure(args, kwargs)
        self.before_step()

    @torch.no_grad()
    def before_step(self) -> None:
        """Before the optimizer's step."""
        if self.fresh:
            self.fresh = False
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
        """After it."""
        rounds, step, world = self.rounds, self.step, self.driver.world
        merged: list[Merged] = []
        if any(flight.merge_step <= step for flight in rounds.flights) and not rounds.settings.overlap:
            self._wait()
            merged += rounds.merge(step)
        self.driver.run(rounds.average_if_due(step, world))
        flights = self.driver.run(rounds.depart(step, world, self._lr))
        self._carried += [self.driver.submit(rounds.carry(flight, world)) for flight in flights]
        if flights and rounds.settings.waits:
            self._wait()
            merged += rounds.merge(step)
            self.driver.run(rounds.average_if_due(step, world))
        self._after_merge(merged)
        self.step += 1

    def _average_gradients(self) -> None:
        given = {}
        for name, parameter in self.parameters.items():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            given[name] = as_real(gradient.to_dense() if gradient.layout != torch.strided else gradient)
        with self._timing():
            averages = self.driver.run(self.rounds.average_gradients(given, self.step, self.driver.world, self._lr))
        for name, parameter in self.parameters.items():  # None after a bad step: weights and moments stay as they are
            parameter.grad = like(averages[name], parameter) if name in averages else None
        self._count_bad_rounds()

    def _wait(self) -> None:
        with self._timing():
            carried, self._carried = self._carried, []
            for future in carried:
                future.result()

    @contextmanager
    def _timing(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds["waiting"] += time.perf_counter() - began

    def _after_merge(self, merged: Sequence[Merged]) -> None:
        for one in merged:
            if one.went_back:
                self._forget(self.parameters)  # its moments were made of what is no number
            elif self.options.optimizer_state == "reset":
                self._forget(one.names)
            elif self.averaging is not None and one.good:
                with self._timing():
                    self.driver.run(self.averaging.average(self.driver.world, one.names))
        if merged:
            self._count_bad_rounds()
            self._check_anchors(len(merged))

    def _forget(self, names: Any) -> None:
        for name in names:
            self.optimizer.state.pop(self.parameters[name], None)

    def _count_bad_rounds(self) -> None:
        if not self._told_of_copies:
            self._told_of_copies = True
            warn_of_copies("local", self.layers, self.driver, "round", self._group)
        self._bad_rounds.check(self.step, self.rounds.bad_in_a_row, self.options.most_bad_rounds)

    def _check_anchors(self, merged: int) -> None:
        """What all ranks hold alike after a round, unless they gossip."""
        every, done = self.options.check_every, self.rounds.rounds
        if not every or self.rounds.mixes or done // every == (done - merged) // every:
            return
        names, anchors = list(self.rounds.anchor), list(self.rounds.anchor.values())
        stop = self.options.on_divergence == "stop"
        places = self.driver.run(compare_weights(names, anchors, self.step, stop=stop))
        self.driver.run(heal_weights(names, anchors, places, self.step))
        for name in (names[at] for at in places):
            self.tensors[name].copy_(self.rounds.anchor[name])
        self.healed += len(places)

    # What a user may do between steps

    @torch.no_grad()
    def full_average(self) -> None:
        """Let all ranks have the mean of their weights (and buffers) from now on: for a last evaluation, or saving one.

        Flights go on; training may, too. `averaged()` gives the mean for a while only.
        """
        if not self.driver.run(self.rounds.full_average(self.step, self.driver.world)):
            raise NonFiniteError(
                f"step {self.step}: some rank's weights have a NaN or an infinity; they have no average"
            )

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The mean of all ranks' weights and buffers while it lasts; then every rank's own again, to the last bit."""
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
        """(1/n) sum |w_i - mean w|^2 over the ranks' weights; the same number on all of them."""
        return self.driver.run(self.rounds.consensus(self.step, self.driver.world))

    def report(self) -> WireReport:
        """What was sent and saved, and how long steps stood still, as this rank counted. Prints as a table."""
        self._wait()
        dense = sum(layer.numel * layer.dtype.itemsize for layer in self.layers)
        exchanger, driver = self.rounds.exchanger, self.driver
        adapting = build_controller_report(exchanger, driver.meter, time.perf_counter() - self.began)
        about = Subject(self._compositions, self._state, facts=self._described)
        return WireReport.of(
            driver.meter, driver.world, self.step, dense, self.seconds, exchanger.skipped_steps, self.healed, adapting,
            about,
        )  # fmt: skip

    def __repr__(self) -> str:
        return repr_of(self, self._compositions, self.step, self.driver.world, self._state)

    @property
    def _compositions(self) -> Compositions:
        return describe_rules(
            {layer.name: self.rounds.exchanger.rules[layer.name] for layer in self.layers},
            self._fall_backs,
            [form.name for form in self._forms if form.dtype.is_complex],
        )

    @property
    def _state(self) -> str:
        return "closed" if self.driver.is_closed else ""

    def close(self) -> None:
        """Finish what travels and let the optimizer go; weights stay each rank's own."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.driver.close()

    def __enter__(self) -> LocalWire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._leave()
        finally:
            self.close()

    def _leave(self) -> None:
        """With all others: a rank that still has rounds to make would wait for us, and both are told at once."""
        self._wait()
        try:
            self.driver.run(end_together())
        except ProtocolError as error:
            raise ProtocolError(
                f"local: this rank has made its {self.step} steps and others have more rounds to make; give all ranks "
                f"as many batches. {error}"
            ) from error
