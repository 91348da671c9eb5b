"""`thinwire run`: run an experiment, show its tables, leave a folder of it all. `thinwire resume`: go on with it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .extras import needs_laboratory
from .figures import add_json
from .parsers import SubParsers

if TYPE_CHECKING:
    from thinwire_lab.configuration.run_plan import RunPlan
    from thinwire_lab.measuring.folder import RunFolder


def add_to(commands: SubParsers) -> None:
    words = "a name that `thinwire list` prints, FILE.toml, FILE.py:FUNCTION, or the config.json of a run"
    words_of_run = "Run an experiment, show its tables, leave a folder of it all."
    parser = commands.add_parser("run", help="run an experiment and write its report", description=words_of_run)
    parser.add_argument("what", metavar="EXPERIMENT", help=words)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where it goes (default: runs/NAME, NAME-2, ...)")
    parser.add_argument("--data", metavar="FOLDER", help="where data sets are (default: $THINWIRE_DATA, or a cache)")
    parser.add_argument("--full", action="store_true", help="the published size, where that is larger")
    parser.add_argument("--seeds", type=_seeds, default=(), metavar="1,2,3", help="instead of the config's own")
    some = "only these: labels, or what precedes a label's colon (e7 --methods 1 4)"
    parser.add_argument("--methods", nargs="+", default=[], metavar="LABEL", help=some)
    parser.add_argument("--groups", nargs="+", default=[], metavar="TEXT", help="only groups with TEXT in their titles")
    _add_common(parser)
    parser.set_defaults(command=run)
    words_of_resume = "Go on with a run that was stopped, where it stopped; the result is that of one that was not."
    parser = commands.add_parser("resume", help="go on with a run that was stopped", description=words_of_resume)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of a run")
    _add_common(parser)
    parser.set_defaults(command=resume)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=int, metavar="N", help="at most so many side by side (default: all cores)")
    add_json(parser, "the tables' figures")
    parser.add_argument("--tensorboard", type=Path, metavar="FOLDER", help="write the curves there, for TensorBoard")


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"whole numbers with commas between are needed, got {text!r}") from None


@needs_laboratory("run")
def run(options: argparse.Namespace) -> int:
    from thinwire_lab.configuration.selection import Selection
    from thinwire_lab.measuring.folder import RunFolder
    from thinwire_lab.sources import load_run_plan

    some = Selection(tuple(options.methods), tuple(options.groups))
    plan, config = load_run_plan(options.what, options.full, options.data, options.seeds, some)
    words = ["thinwire run", options.what, *(["--full"] if options.full else [])]
    words += ["--seeds", ",".join(map(str, options.seeds))] if options.seeds else []
    words += [*some.words, *(["--data", options.data] if options.data else [])]
    command = " ".join(words)
    folder = RunFolder.create(options.out or Path("runs") / plan.name, config, command)
    return _finish(plan, folder, options)


@needs_laboratory("resume")
def resume(options: argparse.Namespace) -> int:
    from thinwire_lab.measuring.folder import RunFolder
    from thinwire_lab.sources import load_run_plan

    folder = RunFolder.open(options.folder)
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
            result = run_jobs(plan, folder, view, options.processes)
    except BaseException:
        print(f"Stopped. What is done is kept; go on with: thinwire resume {folder.path}", flush=True)
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
