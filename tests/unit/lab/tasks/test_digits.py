"""The embedded digits data set, and the tool that made it."""

from __future__ import annotations

import hashlib
import importlib.util
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from thinwire_lab.data import digits, embedded
from thinwire_lab.data.digits import digits_text, read_digits

TOOL = Path(__file__).parents[4] / "tools" / "make_digits.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_digits", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_1797_images_of_64_pixels_from_0_to_1():
    pixels, labels = read_digits()
    assert (pixels.shape, pixels.dtype) == ((1797, 64), np.float32)
    assert (labels.shape, labels.dtype) == ((1797,), np.int64)
    assert set(np.unique(pixels * 16)) == set(range(17))


def test_labels_are_as_often_as_uci_says():
    assert np.bincount(read_digits()[1]).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_first_image_is_the_known_zero():
    pixels, labels = read_digits()
    assert labels[:10].tolist() == list(range(10))
    assert (pixels[0] * 16)[:16].tolist() == [0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0]


def test_the_arrays_have_the_bits_of_scikit_learn_1_9_1():
    """Sums of what load_digits gave there, divided by 16 as float32."""
    pixels, labels = read_digits()
    assert (
        hashlib.sha256(pixels.tobytes()).hexdigest()
        == "9f578524b6cec1fc800cc52dfc87ebe56264983d490aa72a4bd928ba2570ec77"
    )
    assert (
        hashlib.sha256(labels.tobytes()).hexdigest()
        == "a3c91c262eddcf7ba8f0e37507c30284493c9b20412ffe4af30d536401f7ba21"
    )


def test_the_digits_need_no_package_but_numpy():
    code = "import sys\nsys.modules['sklearn'] = None\nfrom thinwire_lab.tasks import make_task\nfrom "
    code += "thinwire_lab.tasks.splits import Split\nmake_task('digits').prepare(2, Split.parse('iid'))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_tool_writes_the_embedded_text_again(tool):
    pixels, labels = read_digits()
    assert tool.check_text(tool.csv_text((pixels * 16).tolist(), labels.tolist())) == digits_text().encode()


def test_the_tool_refuses_text_with_another_hash(tool):
    with pytest.raises(ValueError, match="nothing was written"):
        tool.check_text("0,1\n")


def test_the_tool_names_an_image_that_is_none(tool):
    with pytest.raises(ValueError, match="image 2: expected 64 integers from 0 to 16"):
        tool.csv_text([[0.0] * 64, [0.5] * 64], [0, 1])


@pytest.mark.parametrize(
    ("packed", "said"), [(b"broken", "cannot be decompressed"), (lzma.compress(b"0,1\n"), "sha256")]
)
def test_a_damaged_file_is_an_error(monkeypatch, tmp_path, packed, said):
    (tmp_path / digits.FILE).write_bytes(packed)
    monkeypatch.setattr(embedded, "files", lambda package: tmp_path)
    with pytest.raises(ValueError, match=said):
        digits_text()
