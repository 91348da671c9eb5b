"""Another machine, nearly: a Python process whose libraries compute with other instructions than ours."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

import thinwire
from thinwire.wire import as_bytes

OTHER = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(bytes(as_bytes(tensor.contiguous().flatten()).tolist())).hexdigest()


def ordinary_product() -> str:
    """Of float32 matrices by torch: its bits tell machines apart."""
    generator = torch.Generator().manual_seed(5)
    left, right = torch.randn(60, 300, generator=generator), torch.randn(300, 60, generator=generator)
    return digest(left @ right)


def run_elsewhere(code: str, *arguments: str) -> list[str]:
    """The lines that this code prints there. It finds the tests' own modules."""
    tests, src = Path(__file__).parents[1], Path(thinwire.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | OTHER | {"PYTHONPATH": f"{tests}{os.pathsep}{src}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
