"""layerwise-adaptive: L-GreCo (Alimohammadi et al., 2024) and other controllers against one setting for all layers.

A slim ResNet on CIFAR-100 and a GPT on WikiText-2 by words, four workers each. For each family (Top-k 5 %, QSGD 4 bits,
PowerSGD 4, sketches of Top-k 5 %): the same setting for all layers, and L-GreCo's plan with that setting as default,
renewed every 60 steps; then other controllers, all with Top-k 5 % as default (the published Table 4 compares them on
PowerSGD), and mixtures with several families in the menu. Vectors and layers of fewer than 1,024 numbers are sent
dense. On CIFAR-100 also other defaults, for a curve. Step times are those of DDP on 1 to 4 processes, with links of 100
Mbit/s. By default 10,000 images and 600,000 words, 300 steps; --published-size: ResNet-18 on all images, GPT-2 small on
the experiment text.
"""

from __future__ import annotations

from typing import Any

from thinwire.catalog import DENSE_BELOW

from ...configuration.config import Experiment, Method, OptimizerConfig, RunGroup, TargetMetric, TaskConfig
from ...configuration.run_plan import Job, RunPlan
from ...data import is_available, search_folders
from ...data.datasets import describe_folders
from ...data.folders import find_images
from ...data.texts import WIKITEXT103
from ...running.build_jobs import build_run_plan
from ...tasks import make_task
from ...tasks.splits import Split
from ...testbed.network import can_build_network
from ..sensitivity import build_sensitivity_jobs
from .step_times import METHODS
from .tables import FAMILIES, MIXTURES, WITHOUT_MEMORY, summarize

WORKERS, THIN_LINK, TIMED_STEPS = 4, "100mbit", 40
OTHER_DENSITIES = (0.01, 0.02, 0.1)
SEEDS = (1, 2, 3)
MAX_LAYERS = 10
CANDIDATES = ("topk(density=0.005)", "topk(density=0.05)", "qsgd(bits=2)", "qsgd(bits=4)", "powersgd(rank=1)")


def build_methods(every: int) -> tuple[Method, ...]:
    """Build all methods; controllers renew their plans every `every` steps."""
    window = (
        f"every={every}, start={every // 2}, observed='target'"  # with error feedback, as the authors' program does
    )
    lgreco = f"lgreco({window})"
    accordion = f"accordion(every={every})"

    def adapt(parts: str, controller: str = lgreco) -> str:
        return f"adapt({parts}, controller={controller})"

    made = [Method("dense", "dense()")]
    for family, part in FAMILIES.items():
        memory = "{}" if family in WITHOUT_MEMORY else "ef({})"
        made += [Method(family, memory.format(part)), Method(f"L-GreCo {family}", memory.format(adapt(part)))]
    made += [Method(label, f"ef({adapt(', '.join(parts))})") for label, parts in MIXTURES.items()]
    topk = FAMILIES["TopK"]
    made += [
        Method("Accordion", f"ef({adapt(topk, accordion)})"),
        Method("L-GreCo + Accordion", f"ef({adapt(topk, lgreco.replace(')', f', defaults_from={accordion})'))})"),
        Method("k-means", f"ef({adapt(topk, f'kmeans({window})')})"),
        Method("global TopK", f"ef(flatten({topk}))"),
        Method("hard threshold", "ef(threshold(count=10000))"),
        Method("by size", f"ef(switch({topk}, dense(), controller=by_size(min_numel=10000)))"),
        Method("falling density", f"ef(scheduled({topk}, start=0.25, end=0.01, steps={4 * every}))"),
    ]
    for density in OTHER_DENSITIES:
        part = f"topk(density={density})"
        made += [Method(f"TopK {density:.0%}", f"ef({part})")]
        made += [Method(f"L-GreCo TopK {density:.0%}", f"ef({adapt(part)})")]
    return tuple(made)


IMAGENET: dict[str, Any] = {"name": "image_folder", "set": "imagenet", "model": "resnet50", "test_images": 10_000}
WORDS: dict[str, Any] = {"name": "wikitext103", "size": "gpt2", "context": 256, "tokens": "all", "batch": 4}


def build_large_groups(labels: tuple[str, ...], adamw: dict[str, Any], data: str | None) -> tuple[list[RunGroup], str]:
    """Groups that --published-size adds if their data are there, and a text on what was left out."""
    images = RunGroup("ImageNet folders", WORKERS, methods=labels, task=IMAGENET, optimizer={"lr": 0.05})
    text = RunGroup("WikiText-103", WORKERS, methods=labels, task=WORDS, optimizer=adamw)
    there = {"imagenet": find_images("imagenet", data) is not None, "wikitext-103": is_available(WIKITEXT103, data)}
    lacking = [name for name, found in there.items() if not found]
    left_out = (
        f" Left out: {' and '.join(lacking)}, not found in {describe_folders(search_folders(data))}." if lacking else ""
    )
    added = "With ResNet-50 on image folders and GPT-2 small on WikiText-103 where these are there."
    groups = [group for group, found in zip((images, text), there.values(), strict=True) if found]
    return groups, f"{added}{left_out}"


def build_experiment(full: bool = False, data: str | None = None) -> Experiment:
    """Build the experiment; `data` is where --published-size looks for the two large data sets."""
    images = {
        "model": "resnet18" if full else "slim",
        "images": 50_000 if full else 10_000,
        "batch": 32 if full else 16,
    }
    images |= {"test_images": 10_000 if full else 2_000}
    text: dict[str, Any] = {"name": "wikitext2", "batch": 16 if full else 4}
    text |= (
        {"size": "gpt2", "context": 256, "tokens": "all"}
        if full
        else {"layers": 2, "width": 64, "heads": 4, "context": 32, "tokens": 600_000}
    )
    steps = 20_000 if full else 300
    made = build_methods(steps // 5)
    compared = tuple(m.label for m in made if not any(m.label.endswith(f"{d:.0%}") for d in OTHER_DENSITIES))
    curve = ("dense", "TopK", "L-GreCo TopK", *(m.label for m in made if m.label not in compared))
    adamw = {"name": "adamw", "lr": 2e-3, "weight_decay": 0.01, "momentum": 0.0}
    large, large_text = build_large_groups(compared, adamw, data) if full else ([], "")
    return Experiment(
        name="layerwise-adaptive",
        title="layerwise-adaptive: per-layer controllers against one setting",
        description=(__doc__ or "").partition("\n\n")[2].replace("\n", " ") + large_text,
        task=TaskConfig("cifar100", images),
        methods=made,
        groups=(
            RunGroup("CIFAR-100", WORKERS, methods=compared),
            RunGroup("WikiText-2", WORKERS, methods=compared, task=text, optimizer=adamw),
            RunGroup("CIFAR-100, other defaults", WORKERS, methods=curve[3:]),
            *large,  # last, so that the keys of the other jobs do not change
        ),
        optimizer=OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=1e-4, schedule="cosine", warmup_steps=steps // 10),
        steps=steps,
        seeds=SEEDS,
        target=TargetMetric("accuracy", 0.2),
        log_every=steps // 10,
        checkpoint_every=steps // 4,
        bucket_mb=0.25 if not full else 25.0,
        dense_below=DENSE_BELOW,
    )


def build_plan(full: bool = False, data: str | None = None, seeds: tuple[int, ...] = ()) -> RunPlan:
    """Build the plan. Thin links need root; without it step times are those of the loopback device."""
    experiment = build_experiment(full, data).with_seeds(seeds or SEEDS)
    more = [
        *build_step_jobs(experiment, data),
        build_overlap_job(experiment, data),
        *build_loss_jobs(experiment, data),
    ]
    return build_run_plan(experiment, data, summarize, more)


def build_step_jobs(experiment: Experiment, data: str | None) -> list[Job]:
    """Build the jobs of step times under weak scaling: every worker has its own batch."""
    task = {"name": experiment.task.name, "settings": {**experiment.task.settings, "batch": 32}}
    argument = {"task": task, "data": data, "steps": TIMED_STEPS, "methods": METHODS, "dense_below": DENSE_BELOW}
    return [
        Job(
            key=f"steps-{workers}", function=f"{__package__}.step_times:measure_step_times", argument=argument,
            ranks=workers,
            title=f"step times, {workers} workers", link=THIN_LINK if workers > 1 and can_build_network() else "none",
            gather=f"{__package__}.step_times:merge_ranks",
        )
        for workers in (1, 2, 3, 4)
    ]  # fmt: skip


def build_overlap_job(experiment: Experiment, data: str | None) -> Job:
    """Build the job that compares layerwise and global Top-k."""
    task = {"name": experiment.task.name, "settings": dict(experiment.task.settings)}
    argument = {"task": task, "data": data, "steps": 200}
    return Job(
        "overlap", f"{__package__}.topk_overlap:measure_overlap", argument, "coordinates of layerwise and global Top-k"
    )


def build_loss_jobs(experiment: Experiment, data: str | None) -> list[Job]:
    """Build the jobs that compress one layer alone: some layers from first to last, several compressors."""
    name, settings = experiment.task.name, dict(experiment.task.settings)
    learner = make_task(name, settings, data).learner(0, 1, Split.parse("iid"), 1)
    large = [layer for layer, p in learner.parameters.items() if p.dim() > 1 and p.numel() >= DENSE_BELOW]
    chosen = large[:: -(-len(large) // MAX_LAYERS)]
    task = {"name": name, "settings": settings}
    return build_sensitivity_jobs(task, CANDIDATES, chosen, OptimizerConfig(lr=0.05, momentum=0.9), steps=30, data=data)
