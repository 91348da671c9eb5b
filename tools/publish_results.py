"""Put a run's tables and some of its pictures into docs/results: `python tools/publish_results.py FOLDER PICTURE ...`.

A PICTURE is the end of a name in FOLDER/figures, as `thinwire report FOLDER --figures` writes them: "accuracy-step"
takes group-1-one-worker-accuracy-step.svg.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from thinwire.experiments.report import write_figures, write_markdown

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def publish(folder: Path, endings: list[str]) -> Path:
    result = json.loads((folder / "result.json").read_text())
    RESULTS.mkdir(exist_ok=True)
    page = RESULTS / f"{result['name']}.md"
    pictures = []
    with tempfile.TemporaryDirectory() as drawn:
        files = [file for file in write_figures(result, Path(drawn)) if file.suffix == ".svg"]
        for ending in endings:
            found = [file for file in files if file.stem.endswith(ending)]
            if not found:
                raise SystemExit(
                    f"{folder}: no picture ends with {ending!r}; there are {[file.stem for file in files]}"
                )
            for file in found:
                place = RESULTS / f"{result['name']}-{file.stem}.svg"
                place.write_text(file.read_text())
                pictures.append(place)
    result["command"] = result["command"].partition(" --data ")[0]  # a folder of one machine tells nobody anything
    write_markdown(result, page, pictures)
    return page


if __name__ == "__main__":
    print(publish(Path(sys.argv[1]), sys.argv[2:]))
