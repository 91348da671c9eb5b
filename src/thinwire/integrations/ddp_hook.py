"""DDP's communication hook: exchanges the gradients of each bucket by name and writes the averages back.

DDP reads the annotations of a hook, so this module must not import annotations from __future__.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.profiler import record_function

from ..core import AllReduce, Op, Program, World, reduce_labels
from ..core.torch_private import call_after_backward, is_in_backward, sparse_values
from ..drivers.driver import Driver
from ..exchange import Exchanger
from ..kernels.threads import lend_cores
from .complex_layers import bucket_gradients
from .sparse_rows import average_sparse_rows
from .step_times import StepTimes, now

BucketFuture = torch.futures.Future[Tensor]
Buckets = list[tuple[BucketFuture, Tensor]]  # what DDP waits for, and the buffer it gets
StepProgram = Callable[[int, World], Program[None]]


class DDPHook:
    """One backward pass is one step: its buckets are exchanged in order by the driver's thread and completed together.

    No future of DDP's is completed before the last bucket has been exchanged, because only then do all ranks know
    whether the step was good. After a bad step every gradient is NaN on every rank. `backward` raises an error of the
    exchange with its own type, and the step is neither committed nor counted.

    Args:
        choose: Returns the exchanger of a step.
        driver: Runs the programs.
        names: Names of the parameters with exchanged gradients.
        scale: Returns the present loss scale, if there is one.
        used: Returns DDP's map of the parameters that this rank used, if DDP keeps one.
        lr: Returns the present learning rate, if it is known.
        before: Programs that start a step, in this order.
        after_backward: Programs that end a backward pass, when autograd no longer needs the weights.
        after: Called with whether the step was good.
        backward_ended: The buckets of the first step come after backward has ended, as with static_graph.
    """

    def __init__(
        self,
        choose: Callable[[int], Exchanger],
        driver: Driver,
        names: Mapping[Tensor, str],
        scale: Callable[[], float] | None = None,
        used: Callable[[], Tensor | None] | None = None,
        lr: Callable[[], float | None] = lambda: None,
        *,
        before: Sequence[StepProgram] = (),
        after_backward: Sequence[Callable[[int], Program[None] | None]] = (),
        after: Sequence[Callable[[bool], None]] = (),
        backward_ended: bool = False,
    ) -> None:
        self.choose, self.driver, self.names = choose, driver, names
        self.scale, self.used, self.lr = scale, used, lr
        self._has_complex = any(parameter.is_complex() for parameter in names)
        self.before, self.after_backward, self.after = before, after_backward, after
        self.exchanger = choose(0)  # of the open step
        self.step = 0
        self.good = True  # whether the last step was good
        self.idle = False  # this rank has run out of inputs and only takes part in collectives (Join)
        self._backward_ended = backward_ended
        self.times = StepTimes(("in hooks", "encoding and decoding", "sending", "waiting"))
        self._buckets: Buckets = []  # of the open step
        self._queued: list[Future[Any]] = []
        self._ending: Future[None] | None = None  # the last program of the last step
        self._num_parameters = 0  # of the open step so far
        self._sparse_bad = False
        self._factor = 1.0
        self._scaled: dict[str, Tensor] = {}  # gradients without their averages so far

    def hook(self, bucket: GradBucket) -> BucketFuture:
        with record_function("thinwire::hook"):  # a range in the user's own torch.profiler
            return self._take_bucket(bucket)

    def _take_bucket(self, bucket: GradBucket) -> BucketFuture:
        began = now()
        if not self._buckets:
            self.idle = not is_in_backward()
            self._factor, self._scaled = self.scale() if self.scale else 1.0, {}
            self._submit(self._begin(self.lr()))
        future: BucketFuture = torch.futures.Future()
        at, buffer = len(self._buckets), bucket.buffer()
        self._buckets.append((future, buffer))
        names = [self.names[parameter] for parameter in bucket.parameters()]
        if buffer.layout == torch.sparse_coo:
            self._submit(self._exchange_rows(names[0], buffer, self._buckets, at))
        else:
            gradients = bucket_gradients(bucket) if self._has_complex else bucket.gradients()
            self._submit(self._exchange(dict(zip(names, gradients, strict=True))), ahead=True, channel=at)
        self._num_parameters += len(names)
        self.times.add("in hooks", began)
        if self._num_parameters == len(self.names):  # bucket.is_last() is wrong in the first step of a static graph
            self._close()
        return future

    def _begin(self, lr: float | None) -> Program[None]:
        self.exchanger = self.choose(self.step)
        for program in self.before:
            yield from program(self.step, self.driver.world)
        yield from self.exchanger.begin(self.step, self.driver.world, lr)

    def _exchange(self, gradients: Mapping[str, Tensor]) -> Program[None]:
        """Write averages into the bucket; with a loss scale, memories get unscaled gradients."""
        if self._factor == 1.0:
            yield from self.exchanger.exchange(gradients, self.step, self.driver.world, into=gradients)
            return
        unscaled = {name: gradient / self._factor for name, gradient in gradients.items()}
        averages = yield from self.exchanger.exchange(unscaled, self.step, self.driver.world)
        self._scaled |= gradients
        for name, average in averages.items():  # also of earlier buckets, where layers are flattened into one
            self._scaled.pop(name).copy_(average * self._factor)

    def _exchange_rows(self, name: str, rows: Tensor, buckets: Buckets, at: int) -> Program[None]:
        mean, bad = yield from average_sparse_rows(rows, name, self.driver.world, self.step)
        buckets[at] = (buckets[at][0], mean)  # a new tensor: it has the rows of all ranks
        self._sparse_bad |= bad

    def _close(self) -> None:
        """After the last bucket: settle the step and complete the futures; `backward` waits where it can raise errors.

        That is when autograd is done and DDP has noted which parameters were used, but does not wait for futures yet.
        For idle ranks, and in the first step of a static graph, backward has ended already: then it is now.
        """
        buckets, queued = self._buckets, self._queued
        self._buckets, self._queued, self._num_parameters = [], [], 0

        def finish() -> None:
            with record_function("thinwire::wait"):
                finish_step()

        def finish_step() -> None:
            began, step = now(), self.step
            self._ending = done = self.driver.submit(self.times.timed(self._end(buckets, queued)))
            done.add_done_callback(lambda _: complete([*queued, done], buckets))
            with lend_cores():
                done.exception()  # waits until the step is settled or discarded, whatever became of its buckets
            for future in (*queued, done):
                future.result()
            for build in self.after_backward:
                if (program := build(step)) is not None:
                    self.driver.run(program)
            self.times.add("waiting", began)

        if self.idle or self._backward_ended:
            self._backward_ended = False
            finish()
        else:
            call_after_backward(finish)

    def _end(self, buckets: Buckets, queued: Sequence[Future[Any]]) -> Program[None]:
        if any(future.exception() is not None for future in queued):
            self._discard_step()
            return
        if self.used is not None:
            yield from self._keep_memory_of_unused(self.used())
        self.good = self.exchanger.settle(good=not self._sparse_bad)
        self._sparse_bad = False
        if not self.good:
            for _, buffer in buckets:
                (sparse_values(buffer) if buffer.layout == torch.sparse_coo else buffer).fill_(float("nan"))
        for callback in self.after:
            callback(self.good)
        self.step += 1

    def abandon_open_step(self) -> None:
        """Wait for what is under way; discard a step if its backward pass did not reach the last bucket."""
        queued, self._buckets, self._queued, self._num_parameters = self._queued, [], [], 0
        for future in (*queued, *([self._ending] if self._ending else [])):
            future.exception()
        if queued:
            self._discard_step()

    def resume_at(self, step: int) -> None:
        """Set the step counter, after a state was loaded."""
        self.step = step

    def _discard_step(self) -> None:
        self.good, self._sparse_bad = False, False
        self.exchanger.abandon()

    def _keep_memory_of_unused(self, used: Tensor | None) -> Program[None]:
        """DDP drops the gradient of a parameter that no rank used; its memory must keep what would be sent."""
        if used is None:
            return
        used_anywhere = yield AllReduce(used, Op.MAX, reduce_labels("", used, "used parameters"), self.step)
        self.exchanger.discard_pending(
            name for name, flag in zip(self.names.values(), used_anywhere.tolist(), strict=True) if not flag
        )

    def _submit(self, program: Program[None], ahead: bool = False, channel: int = 0) -> None:
        """Queue a program of the open step.

        Where buckets are under way at the same time, each depends on the begin of the step only: whether an earlier one
        has failed by now may differ between ranks, and so would what they send.
        """
        overlaps = self.choose(self.step).is_order_free and self._factor == 1.0
        after = (self._queued[0] if overlaps and ahead else self._queued[-1]) if self._queued else None
        self._queued.append(self.driver.submit(self.times.timed(program), ahead, after, channel if overlaps else 0))


def complete(exchanged: Sequence[Future[None]], buckets: Buckets) -> None:
    """Complete DDP's futures with the averages, or with the first error."""
    error = next((f.exception() for f in exchanged if f.exception() is not None), None)
    for future, buffer in buckets:
        if error is None:
            future.set_result(buffer)
        else:
            future.set_exception(error)  # type: ignore[arg-type]
