"""Write a run's page, some of its pictures and its compact results file into docs/results.

    python tools/publish_results.py runs/local-sgd-gossip accuracy-step accuracy-wire-bytes
    python tools/publish_results.py docs/results/local-sgd-gossip.json.xz

The first argument is the folder of a run, or a compact results file, from which its page is written again. The others
are ends of names in FOLDER/figures, as `thinwire report FOLDER --figures` writes them: "accuracy-step" takes
group-1-one-worker-accuracy-step.svg. Without any, a page that is written again keeps the pictures it has.

docs/results/NAME.json.xz holds what the page is made of: tables, checks, and of each run its curve, last and best
figures, bytes and times. Verdicts are computed from these runs by the experiment's `summarize`, so that they can be
computed again; what only the report draws (layers, histograms, plans, traces) stays in the folder.
"""

from __future__ import annotations

import inspect
import json
import lzma
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thinwire_lab.measuring.result_format import upgrade_result
from thinwire_lab.published import ALIASES, import_experiment
from thinwire_lab.reporting import write_figures, write_markdown

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MAX_BYTES = 200_000
HEAD = (
    "name", "title", "description", "command", "versions", "machine", "started", "task", "target", "checks", "tables",
    "figures", "modelled",
)  # fmt: skip
RUN = (
    "group", "workers", "driver", "link", "split", "label", "composition", "seed", "steps", "curve", "final", "best",
    "bytes_by_rank", "dense_layers", "steps_to_target", "skipped_steps", "times", "origin",
)  # fmt: skip


def compact(result: Mapping[str, Any]) -> dict[str, Any]:
    """What pages and verdicts need of a result, without the paths of one machine."""
    kept = {key: result[key] for key in HEAD if key in result}
    kept["command"] = str(kept.get("command", "")).partition(" --data ")[0]
    runs = [{key: run[key] for key in RUN if key in run} for run in result.get("runs", [])]
    return kept | ({"runs": runs} if runs else {})


def with_verdicts(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result with the title, description and tables that the experiment's present code makes of its runs.

    Where `summarize` needs more than the runs, the result is returned as it is stored.
    """
    module = import_experiment(result["name"])
    summarize = getattr(module, "summarize", None)
    if summarize is None or list(inspect.signature(summarize).parameters) != ["runs"] or not result.get("runs"):
        return dict(result)
    experiment = module.build_experiment()
    return {**result, "title": experiment.title, "description": experiment.description, **summarize(result["runs"])}


def read(source: Path) -> dict[str, Any]:
    """Return the result of a run's folder or of a compact file, with the experiment's present name."""
    if source.is_dir():
        return with_present_name(upgrade_result(json.loads((source / "result.json").read_text())))
    return with_present_name(upgrade_result(json.loads(lzma.decompress(source.read_bytes()))))


def with_present_name(result: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the code of an experiment ("e7"), which older results have, in its name, command and file names."""
    old = str(result["name"])
    new = ALIASES.get(old, old)
    command = str(result.get("command", "")).replace(f"thinwire run {old}", f"thinwire run {new}")
    pictures = [new + file.removeprefix(old) for file in result.get("pictures", [])]
    return {**result, "name": new, "command": command} | ({"pictures": pictures} if pictures else {})


def publish(source: Path, endings: Sequence[str] = (), into: Path = RESULTS) -> Path:
    result = with_verdicts(compact(loaded := read(source)))
    name, into = result["name"], into.resolve()
    into.mkdir(exist_ok=True)
    drawn = _draw(loaded | result, endings, into)
    pictures = drawn or [into / file for file in loaded.get("pictures", [])]
    result["pictures"] = [picture.name for picture in pictures]
    packed = lzma.compress(json.dumps(result, separators=(",", ":")).encode(), preset=9)
    if len(packed) > MAX_BYTES:
        raise SystemExit(f"{source}: {len(packed):,} bytes of results, at most {MAX_BYTES:,} are kept; thin its curves")
    (into / f"{name}.json.xz").write_bytes(packed)
    page = into / f"{name}.md"
    write_markdown(_marked(result), page, pictures)
    return page


def _marked(result: Mapping[str, Any]) -> dict[str, Any]:
    """Runs with an `origin`, which were not made by this command, have a † behind their labels; `about` explains it."""
    runs = [run | ({"label": f"{run['label']} †"} if "origin" in run else {}) for run in result.get("runs", [])]
    origins = list(dict.fromkeys(run["origin"] for run in runs if "origin" in run))
    if not origins:
        return dict(result)
    return {**result, "runs": runs, "description": f"{result.get('description', '').strip()} † {'; '.join(origins)}."}


def _draw(result: Mapping[str, Any], endings: Sequence[str], into: Path) -> list[Path]:
    pictures = []
    drawable = [run for run in result.get("runs", []) if run["curve"] or run["driver"] == "processes"]
    result = {**result, **({"runs": drawable} if drawable else {})}  # no legend of curves that are not there
    with tempfile.TemporaryDirectory() as drawn:
        files = [file for file in write_figures(result, Path(drawn)) if file.suffix == ".svg"]
        for ending in endings:
            found = [file for file in files if file.stem.endswith(ending)]
            if not found:
                names = [file.stem for file in files]
                raise SystemExit(f"{result['name']}: no picture ends with {ending!r}; there are {names}")
            for file in found:
                place = into / f"{result['name']}-{file.stem}.svg"
                place.write_text(file.read_text())
                pictures.append(place)
    return pictures


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    print(publish(Path(sys.argv[1]), sys.argv[2:]))
