"""A hypothesis strategy for the tensors of `draw`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from .tensors import DTYPES, KINDS, SHAPES, draw


def tensors(
    kinds: Sequence[str] = KINDS,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> st.SearchStrategy[Tensor]:
    """Finite tensors, for `@given(tensors())`.

    Args:
        kinds: distributions, from KINDS.
        shapes: of the tensors.
        dtypes: of the tensors.

    Returns:
        A strategy; failing examples shrink to the first kind, shape and type.
    """
    return st.builds(
        draw, st.sampled_from(kinds), st.sampled_from(shapes), st.sampled_from(dtypes), st.integers(0, 2**31 - 1)
    )
