"""Words of derive_key make the random bits: each is a constant that never changes."""

import ast
import re
from pathlib import Path

import thinwire

SRC = Path(thinwire.__file__).parents[1]
CONSTANT = re.compile(r"^\w+ = (.+?)  # .*\bfrozen: ", re.M)

# Renaming a constant is free; changing a value here changes every published number.
FROZEN = [
    '"augment"', '"basis"', '"bench indices"', '"bench kernels"', '"bench low rank"', '"bench sketch"', '"bloom"',
    '"calibrate"', '"clusters"', '"down"', '"federated"', '"frames"', '"hostile"', '"index"', '"init"', '"initial"',
    '"law"', '"luck"', '"moving"', '"observed"', '"order"', '"prices"', '"refused"', '"repeat"', '"residual"', '"rows"',
    '"sample"', '"second hop"', '"seconds"', '"sketch"', '"spoil"', '"support"', '"unbiased"', '"values"', '"verify"',
    '"where"', '"whole"', '"worker"', '("digits", "test")',
]  # fmt: skip


def test_words_of_keys_are_frozen():
    words = {word for path in SRC.rglob("*.py") for word in CONSTANT.findall(path.read_text())}
    assert sorted(words) == FROZEN


def test_no_key_is_derived_from_a_literal_word():
    literals = []
    for path in sorted(SRC.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "derive_key":
                words = [each.value for each in call.args if isinstance(each, ast.Constant)]
                literals += [f"{path.relative_to(SRC)}:{call.lineno}: {word!r}" for word in words if type(word) is str]
    assert not literals
