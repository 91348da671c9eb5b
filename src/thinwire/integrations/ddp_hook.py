"""DDP's communication hook: it names a bucket's gradients, has them exchanged, and writes the averages back.

DDP reads the annotations of a hook, so this module must not import annotations from __future__.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket

from ..core import AllReduce, Op, Program, World, reduce_labels
from ..core.torch_private import call_after_backward, is_in_backward, sparse_values
from ..drivers.driver import Driver
from ..exchange import Exchanger
from .complex_layers import bucket_gradients
from .sparse_rows import sparse_mean
from .times import Times, now

Answer = torch.futures.Future[Tensor]
Answers = list[tuple[Answer, Tensor]]  # and what they are answered with
Extra = Callable[[int, World], Program[None]]


class DDPHook:
    """One backward pass is one step: its buckets are exchanged in order by the driver's thread and released together.

    Nothing of DDP's is answered before the last bucket has been exchanged, because only then do all ranks know whether
    the step was good. If it was not, every gradient becomes NaN on every rank. An error of the exchange is raised by
    `backward` itself, with its own type; buckets behind it are not sent, and the step commits nothing and is not
    counted.

    Args:
        choose: the exchanger of a step.
        driver: carries the programs.
        names: of the parameters whose gradients are exchanged.
        scale: the present loss scale, if there is one.
        unused: a map of the parameters that this rank used, if DDP keeps one.
        lr: the present learning rate, if it is known.
        before: programs that start a step, in this order.
        at_rest: programs that end a backward pass: weights are not in use then.
        after: called with whether the step was good.
        backward_ended: the buckets of the first step come when backward has ended, as with static_graph.
    """

    def __init__(
        self,
        choose: Callable[[int], Exchanger],
        driver: Driver,
        names: Mapping[Tensor, str],
        scale: Callable[[], float] | None = None,
        unused: Callable[[], Tensor | None] | None = None,
        lr: Callable[[], float | None] = lambda: None,
        *,
        before: Sequence[Extra] = (),
        at_rest: Sequence[Callable[[int], Program[None] | None]] = (),
        after: Sequence[Callable[[bool], None]] = (),
        backward_ended: bool = False,
    ) -> None:
        self.choose, self.driver, self.names = choose, driver, names
        self.scale, self.unused, self.lr = scale, unused, lr
        self._has_complex = any(parameter.is_complex() for parameter in names)
        self.before, self.at_rest, self.after = before, at_rest, after
        self.exchanger = choose(0)  # of the step that is open
        self.step = 0
        self.good = True  # whether the last step was
        self.idle = False  # whether this rank has run out of inputs and just plays along (Join)
        self._backward_ended = backward_ended
        self.times = Times(("in hooks", "encoding and decoding", "sending", "waiting"))
        self._answers: Answers = []  # of the step that is open
        self._queued: list[Future[Any]] = []
        self._ending: Future[None] | None = None  # the last program of the last step
        self._seen = 0  # parameters of that step so far
        self._sparse_bad = False
        self._factor = 1.0
        self._scaled: dict[str, Tensor] = {}  # gradients that wait for their averages

    def hook(self, bucket: GradBucket) -> Answer:
        began = now()
        if not self._answers:
            self.idle = not is_in_backward()
            self._factor, self._scaled = self.scale() if self.scale else 1.0, {}
            self._submit(self._begin(self.lr()))
        answer: Answer = torch.futures.Future()
        at, buffer = len(self._answers), bucket.buffer()
        self._answers.append((answer, buffer))
        names = [self.names[parameter] for parameter in bucket.parameters()]
        if buffer.layout == torch.sparse_coo:
            self._submit(self._exchange_rows(names[0], buffer, self._answers, at))
        else:
            gradients = bucket_gradients(bucket) if self._has_complex else bucket.gradients()
            self._submit(self._exchange(dict(zip(names, gradients, strict=True))), ahead=True)
        self._seen += len(names)
        self.times.add("in hooks", began)
        if self._seen == len(self.names):  # bucket.is_last() is wrong in the first step of a static graph
            self._close()
        return answer

    def _begin(self, lr: float | None) -> Program[None]:
        self.exchanger = self.choose(self.step)
        for extra in self.before:
            yield from extra(self.step, self.driver.world)
        yield from self.exchanger.begin(self.step, self.driver.world, lr)

    def _exchange(self, gradients: Mapping[str, Tensor]) -> Program[None]:
        """Averages are written into the bucket; with a loss scale, memories see gradients without it."""
        if self._factor == 1.0:
            yield from self.exchanger.exchange(gradients, self.step, self.driver.world, into=gradients)
            return
        given = {name: gradient / self._factor for name, gradient in gradients.items()}
        averages = yield from self.exchanger.exchange(given, self.step, self.driver.world)
        self._scaled |= gradients
        for name, average in averages.items():  # of earlier buckets, too, where layers are exchanged as one
            self._scaled.pop(name).copy_(average * self._factor)

    def _exchange_rows(self, name: str, rows: Tensor, answers: Answers, at: int) -> Program[None]:
        mean, bad = yield from sparse_mean(rows, name, self.driver.world, self.step)
        answers[at] = (answers[at][0], mean)  # rows of all ranks, so not those of the bucket
        self._sparse_bad |= bad

    def _close(self) -> None:
        """After the last bucket: settle, release, and let `backward` wait for it where it can raise our errors.

        That is when autograd is done and DDP has noted which parameters were used, but has not asked for answers yet.
        It is now for idle ranks, and in the first step of a static graph, which DDP makes when backward has ended.
        """
        answers, queued = self._answers, self._queued
        self._answers, self._queued, self._seen = [], [], 0

        def finish() -> None:
            began, step = now(), self.step
            self._ending = done = self.driver.submit(self.times.timed(self._end(answers, queued[-1])))
            done.add_done_callback(lambda _: release([*queued, done], answers))
            for future in (*queued, done):
                future.result()
            for make in self.at_rest:
                if (program := make(step)) is not None:
                    self.driver.run(program)
            self.times.add("waiting", began)

        if self.idle or self._backward_ended:
            self._backward_ended = False
            finish()
        else:
            call_after_backward(finish)

    def _end(self, answers: Answers, last: Future[Any]) -> Program[None]:
        if last.exception() is not None:  # of that bucket or of one before it
            self._forget_step()
            return
        if self.unused is not None:
            yield from self._keep_memory_of_unused(self.unused())
        self.good = self.exchanger.settle(good=not self._sparse_bad)
        self._sparse_bad = False
        if not self.good:
            for _, buffer in answers:
                (sparse_values(buffer) if buffer.layout == torch.sparse_coo else buffer).fill_(float("nan"))
        for tell in self.after:
            tell(self.good)
        self.step += 1

    def abandon_open_step(self) -> None:
        """Wait until nothing is under way; forget a step whose backward pass did not reach its last bucket."""
        queued, self._answers, self._queued, self._seen = self._queued, [], [], 0
        for future in (*queued, *([self._ending] if self._ending else [])):
            future.exception()
        if queued:
            self._forget_step()

    def resume_at(self, step: int) -> None:
        """Go on counting here, after a state was loaded."""
        self.step = step

    def _forget_step(self) -> None:
        self.good, self._sparse_bad = False, False
        self.exchanger.abandon()

    def _keep_memory_of_unused(self, used: Tensor | None) -> Program[None]:
        """DDP drops the gradient of a parameter that no rank used; what its memory would send there must not go."""
        if used is None:
            return
        anywhere = yield AllReduce(used, Op.MAX, reduce_labels("", used, "used parameters"), self.step)
        self.exchanger.discard_pending(
            name for name, flag in zip(self.names.values(), anywhere.tolist(), strict=True) if not flag
        )

    def _submit(self, program: Program[None], ahead: bool = False) -> None:
        after = self._queued[-1] if self._queued else None
        self._queued.append(self.driver.submit(self.times.timed(program), ahead, after))


def release(exchanged: Sequence[Future[None]], answers: Answers) -> None:
    """Answer DDP: with the averages, or with the first error."""
    error = next((f.exception() for f in exchanged if f.exception() is not None), None)
    for answer, buffer in answers:
        if error is None:
            answer.set_result(buffer)
        else:
            answer.set_exception(error)  # type: ignore[arg-type]
