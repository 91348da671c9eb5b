"""Make the embedded digits data set from scikit-learn's copy of the UCI test set.

Only this script needs scikit-learn:

    pip install scikit-learn
    python tools/make_digits.py
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path

OUTPUT = Path(__file__).parents[1] / "src" / "thinwire_lab" / "data" / "digits.csv.xz"
SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"  # of the text, before compression


def csv_text(images: Iterable[Sequence[float]], labels: Iterable[int]) -> str:
    """One line for each image: its 64 pixels, 0 to 16, row by row, then its label."""
    lines = []
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True), start=1):
        if len(pixels) != 64 or any(pixel not in range(17) for pixel in pixels):
            raise ValueError(f"image {number}: expected 64 integers from 0 to 16, got {list(pixels)}")
        if label not in range(10):
            raise ValueError(f"image {number}: expected a label from 0 to 9, got {label}")
        lines.append(",".join(str(int(value)) for value in (*pixels, label)) + "\n")
    return "".join(lines)


def read_source() -> tuple[list[list[float]], list[int]]:
    """Images and labels in scikit-learn's order."""
    try:
        from sklearn.datasets import load_digits  # here, so that the text can be made without it
    except ImportError as error:
        raise ValueError(f"{error}; `pip install scikit-learn` gives the source of the digits") from error
    images, labels = load_digits(return_X_y=True)
    return images.tolist(), labels.tolist()


def check_text(text: str) -> bytes:
    """The text as bytes; ValueError unless it is the data set of the published results."""
    data = text.encode("ascii")
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise ValueError(
            f"the text made has sha256 {found}, expected {SHA256}; nothing was written. Take scikit-learn 1.9.1, and "
            "compare its load_digits() with the committed data set"
        )
    return data


def main() -> None:
    """Read scikit-learn's digits, check the text made from them, write the compressed file."""
    argparse.ArgumentParser(description="Make the embedded digits data set.").parse_args()
    try:
        data = check_text(csv_text(*read_source()))
    except ValueError as error:
        raise SystemExit(f"make_digits: {error}") from error
    packed = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    OUTPUT.write_bytes(packed)
    print(f"{OUTPUT.name}: {len(data)} B of text in {len(packed)} B, sha256 of the text {SHA256}")


if __name__ == "__main__":
    main()
