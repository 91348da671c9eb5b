"""Make the embedded mushrooms data set from the `Mushroom` data frame of Debian's package r-cran-cba.

Only this script needs rdata:

    apt-get download r-cran-cba && dpkg -x r-cran-cba_*.deb cba
    pip install rdata
    python tools/make_mushrooms.py cba/usr/lib/R/site-library/cba/data/Mushroom.rda
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path

OUTPUT = Path(__file__).parents[1] / "src" / "thinwire_lab" / "data" / "mushrooms.libsvm.xz"
SHA256 = "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538"  # of the text, before compression

LABELS = {"poisonous": 1, "edible": 2}

# Attribute -> its values, in the order of the 112 columns. Names and words are the frame's own ("ibrous" included);
# stalk-root is left out, because 2,480 rows lack it.
COLUMNS = {
    "cap-shape": "conical bell flat knobbed sunken convex",
    "cap-surface": "scaly smooth grooves fibrous",
    "cap-color": "cinnamon buff red gray brown pink green purple white yellow",
    "bruises?": "bruises no",
    "odor": "almond creosote foul musty anise none pungent spicy fishy",
    "gill-attachment": "attached free",
    "gill-spacing": "close crowded",
    "gill-size": "broad narrow",
    "gill-color": "buff red gray chocolate black orange brown pink green purple white yellow",
    "stalk-shape": "enlarging tapering",
    "stalk-surface-above-ring": "scaly smooth silky ibrous",
    "stalk-surface-below-ring": "scaly smooth silky ibrous",
    "stalk-color-above-ring": "cinnamon buff red gray orange brown pink white yellow",
    "stalk-color-below-ring": "cinnamon buff red gray orange brown pink white yellow",
    "veil-type": "partial",
    "veil-color": "yellow orange white brown",
    "ring-number": "two one none",
    "ring-type": "pendant none evanescent large flaring",
    "spore-print-color": "buff chocolate black orange brown green purple white yellow",
    "population": "abundant clustered numerous scattered several solitary",
    "habitat": "woods grasses meadows leaves paths urban waste",
}


def column_indices() -> dict[tuple[str, str], int]:
    """(attribute, value) -> its 1-based column, 1 to 112."""
    pairs = [(attribute, value) for attribute, values in COLUMNS.items() for value in values.split()]
    return {pair: index for index, pair in enumerate(pairs, start=1)}


def libsvm_text(rows: Iterable[Mapping[str, str]]) -> str:
    """One LIBSVM line per row: the label, then `index:1` for the value of every attribute, each followed by a space."""
    index_of = column_indices()
    lines = []
    for number, row in enumerate(rows, start=1):
        try:
            ones = [index_of[attribute, row[attribute]] for attribute in COLUMNS]
            label = LABELS[row["class"]]
        except KeyError as missing:
            raise ValueError(
                f"row {number}: {missing} is not in our table; the frame must have the attributes and values of COLUMNS"
            ) from missing
        lines.append(f"{label} " + "".join(f"{index}:1 " for index in ones) + "\n")
    return "".join(lines)


def read_frame(path: Path) -> list[dict[str, str]]:
    """The rows of the `Mushroom` frame, in its order."""
    try:
        import rdata  # here, so that the table can be used without it
    except ImportError as error:
        raise ValueError(f"{error}; `pip install rdata` gives the reader of R's files") from error

    frames = rdata.read_rda(path)
    if "Mushroom" not in frames:
        raise ValueError(f"{path} holds {sorted(frames)}; the file Mushroom.rda of r-cran-cba holds 'Mushroom'")
    frame = frames["Mushroom"]
    columns = {str(name): frame[name].astype(str).tolist() for name in frame.columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def check_text(text: str) -> bytes:
    """The text as bytes; ValueError unless it is the data set of the published results."""
    data = text.encode("ascii")
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise ValueError(
            f"the text made has sha256 {found}, expected {SHA256}; nothing was written. Take Mushroom.rda from "
            "r-cran-cba 0.2-23; if its frame is unchanged, compare COLUMNS with the committed data set"
        )
    return data


def main() -> None:
    """Read Mushroom.rda, check the text made from it, write the compressed file."""
    parser = argparse.ArgumentParser(description="Make the embedded mushrooms data set.")
    parser.add_argument("rda", type=Path, help="path of Mushroom.rda from Debian's package r-cran-cba")
    arguments = parser.parse_args()
    try:
        data = check_text(libsvm_text(read_frame(arguments.rda)))
    except (OSError, ValueError) as error:
        parser.exit(1, f"make_mushrooms: {error}\n")
    packed = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    OUTPUT.write_bytes(packed)
    print(f"{OUTPUT.name}: {len(data)} B of text in {len(packed)} B, sha256 of the text {SHA256}")


if __name__ == "__main__":
    main()
