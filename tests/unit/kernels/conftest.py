"""Builds of the C kernels, and which cases each of them runs."""

import os

import pytest

from thinwire.kernels import native

SIZES = 6  # of the tensors that the fixture `numbers` draws, for each kind
DENSITIES = 3  # of selections from a batch, for each kind


@pytest.fixture(params=native.runnable_builds())
def library(request):
    """Every build of the C kernels that this processor runs; none skips."""
    return native.load(request.param)


def pytest_collection_modifyitems(config, items):
    """The full product of kinds, sizes and widths for the first build; for others a covering array: each pair once.

    A kernel's text is the same for all builds, the instructions differ. What goes wrong in one build alone depends on a
    size with a width, a kind with a size or a kind with a width (ends of vectors, overflows), and each of these pairs is
    in the array: kind + size + width ≡ 0 (mod 6). Selections from a batch have each kind and each density: kind +
    density ≡ 0 (mod 3).
    """
    kept, dropped = [], []
    for item in items:
        (kept if is_covered(item) else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def is_covered(item):
    indices = getattr(getattr(item, "callspec", None), "indices", {})
    if os.environ.get("THINWIRE_SANITIZED"):  # addresses do not depend on the numbers
        return indices.get("numbers", 0) // SIZES == indices.get("kind", 0) == 0
    if indices.get("library", 0) == 0:
        return True
    if {"kind", "density"} <= indices.keys():
        return (indices["kind"] + indices["density"]) % DENSITIES == 0
    if not {"numbers", "bits"} <= indices.keys():
        return True
    kind, size = divmod(indices["numbers"], SIZES)
    return (kind + size + indices["bits"]) % SIZES == 0
