"""Baseline: the block-wise 8-bit optimizer states of bitsandbytes, where it is installed and runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .capture import Pairs
from .measurement import compute_errors, now


def measure_bitsandbytes(host: Pairs, steps: int) -> dict[str, Any]:
    """Return the errors and times of bitsandbytes' 8 bits on one host's moments, or a note why there are none."""
    try:
        from bitsandbytes import functional  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return {
            "note": "bitsandbytes is not installed here, so its 8-bit states are left out (pip install bitsandbytes)."
        }
    try:
        maps = [functional.create_dynamic_map(signed=signed) for signed in (True, False)]
        began = now()
        coded = {name: [_quantize(functional, pair[row], maps[row]) for row in (0, 1)] for name, pair in host.items()}
        encoded = now()
        found = {
            name: torch.stack(
                [functional.dequantize_blockwise(*rows[row]).view(host[name][row].shape) for row in (0, 1)]
            )
            for name, rows in coded.items()
        }
        decoded = now()
    except Exception as error:  # of any kind: the library is optional and only a baseline
        return {"note": f"bitsandbytes is installed, but its 8 bits do not run here: {str(error).splitlines()[0]}"}
    figures = {"encode_s": encoded - began, "aggregate_s": decoded - encoded, **compute_errors(found, host, steps)}
    return {"note": "bitsandbytes, 8 bits by blocks, one host:", "figures": figures}


def _quantize(functional: Any, tensor: Tensor, code: Tensor) -> Any:
    return functional.quantize_blockwise(tensor.flatten().contiguous(), code=code)
