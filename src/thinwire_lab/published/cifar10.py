"""The CIFAR-10 setup of importance-cifar10 and impk-cifar10: one worker, two sizes."""

from __future__ import annotations

from ..configuration.config import Experiment, Method, OptimizerConfig, RunGroup, TargetMetric, TaskConfig

BATCH = 128


def steps_per_epoch(full: bool) -> int:
    """Return the number of optimizer steps in one pass over the images."""
    return -(-num_images(full) // BATCH)


def build_cifar10_experiment(
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
    """Build an experiment: a slim ResNet on 10,000 images or, with `full`, ResNet-18 on all.

    `about` is the caller's module docstring; its paragraphs after the first line describe the experiment.
    """
    size = {"model": "resnet18" if full else "slim", "images": num_images(full), "batch": BATCH}
    epoch = steps_per_epoch(full)
    return Experiment(
        name=name,
        title=title,
        description=(about or "").partition("\n\n")[2].replace("\n", " "),
        task=TaskConfig("cifar10", size | {"test_images": 10_000 if full else 2_000}),
        methods=methods,
        groups=(RunGroup("one worker", workers=1),),
        optimizer=optimizer,
        epochs=epochs,
        seeds=seeds,
        target=TargetMetric("accuracy", target),
        log_every=epoch if full else epoch // 2,
        checkpoint_every=epoch,
    )


def num_images(full: bool) -> int:
    """Return the number of training images."""
    return 50_000 if full else 10_000
