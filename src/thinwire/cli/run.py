"""`thinwire run`: run an experiment, print its tables, store everything in a folder. `thinwire resume`: continue it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .extras import requires_lab
from .json_output import add_json_option
from .parsers import SubParsers

if TYPE_CHECKING:
    from thinwire_lab.configuration.run_plan import RunPlan
    from thinwire_lab.measuring.folder import RunFolder


def add_to(commands: SubParsers) -> None:
    text = "Run an experiment, print its tables and store everything in a folder."
    parser = commands.add_parser("run", help="run an experiment and write its report", description=text)
    parser.add_argument(
        "experiment", metavar="EXPERIMENT",
        help="a name or code that `thinwire list` prints, FILE.toml, FILE.py:FUNCTION, or the config.json of a run",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder of the run (default: runs/NAME, or runs/NAME-2, ...)"
    )
    parser.add_argument(
        "--data", metavar="FOLDER", help="folder of the data sets (default: $THINWIRE_DATA, then the cache)"
    )
    parser.add_argument(
        "--published-size", action="store_true",
        help="run a named experiment at its published size (default: a size for two cores)",
    )  # fmt: skip
    parser.add_argument(
        "--seeds",
        type=_parse_seeds,
        default=(),
        metavar="1,2,3",
        help="seeds to run (default: those of the experiment)",
    )
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="LABEL",
        help="run only these methods; LABEL is the whole label or its part before a colon, as in "
        "local-sgd-gossip --methods 1 4 (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--groups", nargs="+", default=[], metavar="TEXT",
        help="run only the groups with TEXT in their titles (default: all)",
    )  # fmt: skip
    _add_common(parser)
    parser.set_defaults(command=run)
    text = "Continue a run that was stopped. The result equals that of an uninterrupted run."
    parser = commands.add_parser("resume", help="continue a run that was stopped", description=text)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the run")
    _add_common(parser)
    parser.set_defaults(command=resume)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs", type=int, metavar="N",
        help="largest number of jobs that run in parallel (default: the number of cores, at most 4)",
    )  # fmt: skip
    add_json_option(parser, "the numbers of the tables")
    parser.add_argument("--tensorboard", type=Path, metavar="FOLDER", help="also write the curves for TensorBoard")


def _parse_seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers separated by commas, such as 1,2,3, got {text!r}"
        ) from None


@requires_lab("run")
def run(options: argparse.Namespace) -> int:
    from thinwire_lab.configuration.selection import Selection
    from thinwire_lab.measuring.folder import RunFolder
    from thinwire_lab.sources import load_run_plan

    selection = Selection(tuple(options.methods), tuple(options.groups))
    plan, config = load_run_plan(options.experiment, options.published_size, options.data, options.seeds, selection)
    words = ["thinwire run", options.experiment, *(["--published-size"] if options.published_size else [])]
    words += ["--seeds", ",".join(map(str, options.seeds))] if options.seeds else []
    words += [*selection.to_arguments(), *(["--data", options.data] if options.data else [])]
    folder = RunFolder.create(options.out or Path("runs") / plan.name, config, " ".join(words))
    return _finish(plan, folder, options)


@requires_lab("resume")
def resume(options: argparse.Namespace) -> int:
    from thinwire_lab.measuring.folder import RunFolder
    from thinwire_lab.sources import load_run_plan

    folder = RunFolder.open(options.folder)
    folder.check_format()
    plan, _ = load_run_plan(str(folder.path / "config.json"))
    return _finish(plan, folder, options)


def _finish(plan: RunPlan, folder: RunFolder, options: argparse.Namespace) -> int:
    from thinwire_lab.reporting import write_report
    from thinwire_lab.reporting.live import LiveView
    from thinwire_lab.reporting.terminal import print_result, write_tables_json
    from thinwire_lab.running.run_jobs import run_jobs

    if options.tensorboard:
        from thinwire_lab.reporting.tensorboard import require_tensorboard

        require_tensorboard()
    try:
        with LiveView() as view:
            result = run_jobs(plan, folder, view, options.jobs)
    except BaseException:
        print(
            f"Stopped. Finished jobs and checkpoints are stored; continue with: thinwire resume {folder.path}",
            flush=True,
        )
        raise
    write_report(result, folder.path / "report.html")
    print_result(result)
    if options.tensorboard:
        from thinwire_lab.reporting.tensorboard import write_scalars

        write_scalars(result, options.tensorboard)
    if options.json:
        write_tables_json(result, options.json)
    print(f"Folder: {folder.path}\nReport: {folder.path / 'report.html'}  (open it in a browser)")
    return 0 if all(check["holds"] for check in result["checks"]) else 1
