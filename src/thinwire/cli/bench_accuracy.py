"""`thinwire bench accuracy`: train until a target on a slow link, with plain DDP, torch's hooks and thinwire."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .extras import requires_lab
from .json_output import add_json_option
from .parsers import SubParsers, check_network, int_at_least
from .progress import throttled_print

if TYPE_CHECKING:
    from thinwire_lab.bench.accuracy import AccuracyTask
    from thinwire_lab.measuring.folder import RunFolder

TASKS = ("cifar10", "wikitext2")  # those of thinwire_lab.bench.accuracy, which parsers do not load
METHODS = ("plain", "fp16", "torch-powersgd", "topk", "powersgd", "qsgd", "topk-5")
DEFAULT_METHODS = METHODS[:-1]


def add_to(benches: SubParsers) -> None:
    text = (
        "Train a slim ResNet on CIFAR-10 and a small GPT on the bytes of WikiText-2, two workers on a slow link: time "
        "and bytes to a target, final quality. Needs root. A finished run in the folder is not repeated."
    )
    parser = benches.add_parser("accuracy", help="time and bytes to a target on a slow link", description=text)
    parser.add_argument(
        "--task", choices=TASKS, action="append", help="cifar10 or wikitext2; may be repeated (default: both)"
    )
    parser.add_argument(
        "--method", choices=METHODS, action="append",
        help=f"{', '.join(METHODS[:-1])} or {METHODS[-1]}; may be repeated (default: all but topk-5)",
    )  # fmt: skip
    parser.add_argument(
        "--seed",
        type=int_at_least(0),
        action="append",
        metavar="N",
        help="seed of weights and batches; may be repeated (default: 1, 2 and 3)",
    )
    parser.add_argument(
        "--minutes", type=float, default=240.0, metavar="M", help="start no run after M minutes (default: 240)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/accuracy"), metavar="FOLDER",
        help="folder of runs and report (default: runs/accuracy)",
    )  # fmt: skip
    parser.add_argument("--data", metavar="FOLDER", help="folder of the data (default: $THINWIRE_DATA, then the cache)")
    parser.add_argument("--show", action="store_true", help="run nothing; write the report of the runs in the folder")
    _add_task_options(parser)
    add_json_option(parser, "the numbers of the tables")
    parser.set_defaults(command=run)


def _add_task_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int_at_least(1), metavar="N", help="steps of a run (default: the task's)")
    parser.add_argument("--rate", metavar="RATE", help="rate of the links, such as 100mbit (default: the task's)")
    parser.add_argument("--lr", type=float, metavar="LR", help="learning rate; needs one --task (default: the task's)")
    parser.add_argument(
        "--target", type=float, metavar="X",
        help="target accuracy (0 to 1) or perplexity; needs one --task (default: the task's)",
    )  # fmt: skip
    parser.add_argument(
        "--setting", action="append", default=[], metavar="KEY=VALUE",
        help="setting of the task, such as model=resnet18 or batch=64; needs one --task; may be repeated",
    )  # fmt: skip


@requires_lab("bench")
def run(options: argparse.Namespace) -> int:
    from thinwire_lab.bench import accuracy_report
    from thinwire_lab.bench.accuracy import open_folder
    from thinwire_lab.measuring.folder import RunFolder
    from thinwire_lab.reporting.terminal import print_result, write_tables_json

    tasks = _choose_tasks(options)
    complete = True
    if options.show:
        folder = RunFolder.open(options.folder)
    else:
        folder = open_folder(options.folder, "thinwire bench accuracy")
        complete = _perform_runs(folder, tasks, options)
    result = accuracy_report.build_result(folder, {} if options.target is None else {options.task[0]: options.target})
    print_result(result)
    print(result["description"])
    page, figures = accuracy_report.store_report(folder, result)
    print(f"Report: {page}; {len(figures)} figures in {folder.path / 'figures'}")
    if options.json is not None:
        write_tables_json(result, options.json)
    return 0 if complete else 1


def _perform_runs(folder: RunFolder, tasks: dict[str, AccuracyTask], options: argparse.Namespace) -> bool:
    """Perform what the folder lacks; returns whether no run failed and no task was skipped."""
    from thinwire_lab.bench import accuracy

    ready = _find_prepared(tasks, options.data)
    chosen = accuracy.list_runs(ready, options.method or DEFAULT_METHODS, options.seed or accuracy.SEEDS)
    missing = [each for each in chosen if not accuracy.is_finished(folder, each, tasks[each.task])]
    print(f"{len(chosen) - len(missing)} of {len(chosen)} runs are finished", flush=True)
    deadline, failed = time.monotonic() + 60 * options.minutes, 0
    for at, each in enumerate(missing):
        if time.monotonic() >= deadline:
            print(f"{options.minutes:g} minutes are over; {len(missing) - at} runs are left for the next call")
            break
        done = accuracy.perform(folder, each, tasks[each.task], options.data, throttled_print(5.0))
        failed += "error" in done
        state = f"failed: {done['error']}" if "error" in done else "finished"
        print(f"{each.key}: {state} after {done['machine_s']:.0f} s", flush=True)
    return not failed and len(ready) == len(tasks)


def _find_prepared(tasks: dict[str, AccuracyTask], data: str | None) -> list[str]:
    """Names of the tasks whose data are there; the others are named with what is missing."""
    from thinwire_lab.bench.accuracy import prepare
    from thinwire_lab.data import DataError

    ready, missing = [], []
    for name, task in tasks.items():
        try:
            prepare(task, data)
            ready.append(name)
        except DataError as error:
            missing.append(f"{name} is skipped: {error}")
    if not ready:
        raise DataError("\n".join(missing))
    print(*missing, sep="\n", end="\n" * bool(missing))
    return ready


def _choose_tasks(options: argparse.Namespace) -> dict[str, AccuracyTask]:
    """The chosen tasks with the changes of the options."""
    from dataclasses import replace

    from thinwire_lab.bench.accuracy import TASKS as PROTOCOLS

    from ..core import CompositionError

    names = list(dict.fromkeys(options.task or TASKS))
    if len(names) > 1 and (options.target is not None or options.lr is not None or options.setting):
        raise CompositionError("bench accuracy: --target, --lr and --setting need one --task, got none or both")
    check_network(*[options.rate] if options.rate else [])
    settings = dict(map(_parse_setting, options.setting))
    changed = {key: getattr(options, key) for key in ("steps", "rate", "target") if getattr(options, key) is not None}
    chosen = {}
    for name in names:
        task = PROTOCOLS[name]
        optimizer = task.optimizer if options.lr is None else replace(task.optimizer, lr=options.lr)
        chosen[name] = replace(task, **changed, optimizer=optimizer, settings={**task.settings, **settings})
    return chosen


def _parse_setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE; a value that is no JSON is a text."""
    from ..core import CompositionError

    key, sign, value = text.partition("=")
    if not sign or not key:
        raise CompositionError(f"bench accuracy: --setting must be KEY=VALUE such as batch=64, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
