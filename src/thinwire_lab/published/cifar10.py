"""CIFAR-10 at two sizes, one worker: what E2 and E3 share."""

from __future__ import annotations

from ..configuration.config import Experiment, Method, OptimizerConfig, RunGroup, TargetMetric, TaskConfig

BATCH = 128


def steps_of_an_epoch(full: bool) -> int:
    return -(-_images(full) // BATCH)


def on_cifar10(
    name: str,
    title: str,
    about: str | None,
    methods: tuple[Method, ...],
    optimizer: OptimizerConfig,
    epochs: int,
    target: float,
    full: bool,
    seeds: tuple[int, ...] = Experiment.seeds,
) -> Experiment:
    """A slim ResNet on 10,000 images or, if full, ResNet-18 on all. `about` is the caller's own description."""
    size = {"model": "resnet18" if full else "slim", "images": _images(full), "batch": BATCH}
    epoch = steps_of_an_epoch(full)
    return Experiment(
        name=name,
        title=title,
        about=(about or "").partition("\n\n")[2].replace("\n", " "),
        task=TaskConfig("cifar10", size | {"test_images": 10_000 if full else 2_000}),
        methods=methods,
        groups=(RunGroup("one worker", workers=1),),
        optimizer=optimizer,
        epochs=epochs,
        seeds=seeds,
        target=TargetMetric("accuracy", target),
        record_every=epoch if full else epoch // 2,
        checkpoint_every=epoch,
    )


def _images(full: bool) -> int:
    return 50_000 if full else 10_000
