"""Every example runs as its README says, and prints what makes sense."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def run(*arguments):
    """What an example prints; if it fails, its own error text."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], env=ENVIRONMENT, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def numbers(line):
    return [float(number) for number in re.findall(r"\b\d[\d.]*(?:e-?\d+)?\b", line)]


def test_topk_with_feedback_solves_the_toy_problem_with_a_fraction_of_the_bytes():
    lines = run(EXAMPLES / "lockstep.py").splitlines()
    (dense,) = [line for line in lines if line.startswith("dense()")]
    (sparse,) = [line for line in lines if line.startswith("ef(topk")]
    dense_payload, dense_wire, dense_error = numbers(dense)
    _, sparse_payload, sparse_wire, sparse_error = numbers(sparse)  # the first is the density
    assert dense_error < 1e-3 and sparse_error < 1e-3
    assert sparse_payload < dense_payload / 10
    assert sparse_wire < dense_wire / 5  # a gather sends to 3 others, an all-reduce 1.5 times the tensor
    assert sparse_wire > sparse_payload


def test_a_plain_loop_learns_under_torchrun_and_sends_little():
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    first, last, sent = run(*launcher, EXAMPLES / "torchrun.py").splitlines()
    assert numbers(last)[1] < 0.1 * numbers(first)[1]
    payload, dense, wire = numbers(sent)
    assert 0 < payload < dense / 10
    assert payload < wire < 1.2 * payload  # to one other rank: the payload once, and headers


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_is_in_the_readme(script):
    assert f"({script})" in (EXAMPLES / "README.md").read_text()
