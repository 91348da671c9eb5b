"""What `pip install thinwire` alone can do: the packages of all extras are made unimportable, in children, too."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import thinwire
from thinwire.cli.extras import PACKAGES
from thinwire.cli.main import parser
from thinwire.cli.plain_tables import draw_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BLOCKED = ("rich", "jinja2", "tomli", "pytest", "resvg_py", "PIL", "tensorboard", "hypothesis")
BLOCKER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """For processes that find no extra: Python runs sitecustomize.py when it starts."""
    folder = tmp_path_factory.mktemp("blocker")
    (folder / "sitecustomize.py").write_text(BLOCKER)
    places = [str(folder), str(Path(thinwire.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def start(environment, *arguments):
    return subprocess.Popen(
        [sys.executable, *arguments], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process):
    out, errors = process.communicate(timeout=100)
    return process.returncode, out, errors


def test_help_and_operators_need_no_extra(environment):
    code, out, errors = finish(start(environment, "-m", "thinwire", "--help"))
    assert code == 0 and "commands:" in out, errors
    code, out, errors = finish(start(environment, "-m", "thinwire", "parts"))
    assert code == 0 and "topk(density=0.01)" in out, errors


def test_doctor_needs_no_extra_and_names_what_the_laboratory_lacks(environment, tmp_path):
    code, out, errors = finish(start(environment, "-m", "thinwire", "doctor", "--json", str(tmp_path / "doctor.json")))
    assert code == 0 and "rich, jinja2" in out and "pip install 'thinwire[lab]'" in out, errors
    assert json.loads((tmp_path / "doctor.json").read_text())["well"]


def test_serve_and_join_need_no_extra(environment):
    program, common = ("-m", "thinwire"), ("digits", "--composition", "ef(topk(density=0.05))")
    processes = [start(environment, *program, "serve", *common, "--workers", "1", "--max-lead", "2")]
    try:
        told = ""
        while not (found := re.search(r"listening on (\S+)", told)):
            told = processes[0].stderr.readline()
            assert told, processes[0].communicate()
        processes.append(start(environment, *program, "join", *common, found[1], "--steps", "5"))
        served, joined = map(finish, processes)
    finally:
        for process in processes:
            process.kill()
    assert served[0] == joined[0] == 0, (served, joined)
    assert json.loads(joined[1])["accepted"] == 5 == json.loads(served[1])["updates"]


REFUSED = {
    "run": ["run", "demo"],
    "resume": ["resume", "no-folder"],
    "show": ["show", "no-folder"],
    "compare": ["compare", "no-folder", "no-folder"],
    "report": ["report", "no-folder"],
    "bench": ["bench", "kernels"],
    "testbed": ["testbed", "run", "--", "true"],
    "verify-wire": ["verify-wire", "dense()"],
}


def test_commands_of_the_laboratory_say_in_one_line_what_to_install(environment, tmp_path):
    code = (
        "import os, sys\n"
        "from thinwire.cli.main import main\n"
        f"os.chdir({str(tmp_path)!r})\n"
        f"codes = [main(words) for words in {list(REFUSED.values())}]\n"
        "print(codes, [m for m in sys.modules if m.startswith(('thinwire.exp', 'thinwire.ben', 'thinwire.tes'))])"
    )
    _, out, errors = finish(start(environment, "-c", code))
    assert out == f"{[2] * len(REFUSED)} []\n", errors
    lines = errors.splitlines()
    assert len(lines) == len(REFUSED)
    for name, line in zip(REFUSED, lines, strict=True):
        assert line.startswith(f"thinwire: {name} needs packages that are not installed (rich, jinja2")
        assert line.endswith("pip install 'thinwire[lab]'")
    assert not list(tmp_path.iterdir())


def test_reading_a_command_line_loads_neither_the_laboratory_nor_torch():
    words = [*REFUSED.values(), ["bench", "ddp", "--rate", "1gbit"], ["testbed", "check", "--workers", "3"], ["doctor"]]
    words += [["serve", "digits"], ["join", "digits", "127.0.0.1:1"], ["parts"], ["list"]]
    code = (
        "import sys\nfrom thinwire.cli.main import parser\n"
        f"for words in {words}:\n    parser().parse_args(words)\n"
        "found = [m for m in sys.modules if m.startswith('thinwire.') and not m.startswith(('thinwire.cli', 'thinwire.renamed'))]\n"
        "print(found, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[] False\n", done.stderr
    commands = next(action.choices for action in parser()._actions if action.choices)
    assert set(commands) == {line[0] for line in words}, "a new command is tried here, too"


def test_the_extra_lab_is_what_commands_look_for():
    file = Path(thinwire.__file__).parents[2] / "pyproject.toml"
    project = tomllib.loads(file.read_text())["project"]

    def names(requirements):
        return {re.match(r"\w+", text)[0] for text in requirements}

    assert names(project["dependencies"]) == {"torch", "numpy", "safetensors"}
    assert names(project["optional-dependencies"]["lab"]) == {*PACKAGES, "tomli"}
    assert any("lab" in text for text in project["optional-dependencies"]["dev"])


@pytest.mark.parametrize("width", (20, 40, 80, 200))
def test_plain_tables_keep_every_word_and_the_width(width):
    rows = [("a", "some words that are wrapped where there is no room", "1×"), ("", "short", "")]
    lines = list(draw_table(("part", "what it does", "saving"), rows, width))
    assert all(len(line) <= max(width, 34) for line in lines)
    drawn = " ".join(lines).split()
    assert all(word in "".join(drawn) for row in rows for cell in row for word in cell.split())
    assert len(lines) == 4 or width < 80
