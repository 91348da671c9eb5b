"""Replicas stay equal to the last bit when one rank's libraries compute with other instructions than the other's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.cases import COMPOSITION_TEXTS
from helpers.pool import PATIENCE
from thinwire import parse
from thinwire.core import Capability, has, topology_of
from thinwire.drivers.processes import loopback_device
from thinwire.kernels.native import runnable_builds

HERE = {
    "GLOO_SOCKET_IFNAME": loopback_device(),
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH")))),
}
THERE = HERE | {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
WITHOUT_C = HERE | {"THINWIRE_KERNELS": "reference"}
FACTORISED = ("powersgd", "svd", "projection", "tensor_train", "cp(", "sketch", "union", "impk", "qsgd", "sign")


def test_every_family_agrees_with_a_rank_that_has_another_kernel_path(tmp_path):
    texts = [text for text in COMPOSITION_TEXTS if any(name in text for name in FACTORISED)]
    texts = [text for text in texts if topology_of(parse(text)) is None]  # in a gossip ranks differ anyway
    here, there = run_ranks(tmp_path, texts, (HERE, THERE))
    assert here.pop("product") != there.pop("product"), "both ranks multiply alike here, so this test shows nothing"
    assert len(here) == len(texts) and here == there


@pytest.mark.skipif(not runnable_builds(), reason="no C kernels were built here")
def test_everything_that_batches_layers_agrees_with_a_rank_without_c(tmp_path):
    texts = [text for text in COMPOSITION_TEXTS if has(parse(text), Capability.BATCHES_LAYERS)]
    here, there = run_ranks(tmp_path, texts, (HERE, WITHOUT_C))
    assert len(here) == len(texts) + 1 and here == there


def run_ranks(tmp_path, texts, environments):
    """The digests of two ranks, each in an environment of its own."""
    orders = [
        {
            "rank": rank,
            "size": 2,
            "folder": str(tmp_path),
            "job": "helpers.jobs:digests",
            "argument": {"texts": texts, "steps": 3},
        }
        for rank in range(2)
    ]
    files = [tmp_path / f"order{rank}.json" for rank in range(2)]
    for file, order in zip(files, orders, strict=True):
        file.write_text(json.dumps(order))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "thinwire.drivers.processes", str(file)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        for file, environment in zip(files, environments, strict=True)
    ]
    outputs = [rank.communicate(timeout=100 * PATIENCE)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return [json.loads(output.partition("result ")[2].splitlines()[0]) for output in outputs]
