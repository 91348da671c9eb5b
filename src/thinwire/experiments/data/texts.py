"""WikiText-2 by words and tiny-shakespeare by characters: one long row of token numbers each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .where import Archive, DataError, DataSet, Pin, load

_EXAMPLES = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2"

WIKITEXT2 = DataSet(
    title="WikiText-2 (wikitext-2-v1)",
    folder="wikitext-2",
    files={
        "wiki.train.tokens": Pin(10_797_148, "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
        "wiki.valid.tokens": Pin(1_121_681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
    },
    archive=Archive("https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip"),
    urls={  # the same files under other names; the archive's own address answers no more
        "wiki.train.tokens": f"{_EXAMPLES}/train.txt",
        "wiki.valid.tokens": f"{_EXAMPLES}/valid.txt",
    },
)
SHAKESPEARE = DataSet(
    title="tiny-shakespeare",
    folder="tiny-shakespeare",
    files={"input.txt": Pin(1_115_394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")},
    urls={"input.txt": "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"},
)


@dataclass(frozen=True, eq=False)
class Text:
    """Token numbers below `len(vocabulary)`."""

    train: Tensor  # (n,) int64
    valid: Tensor
    vocabulary: tuple[str, ...]
    origin: str


@lru_cache(maxsize=2)
def read_wikitext2(folder: str | None = None) -> Text:
    """Words between spaces and <eos> at each line's end; the vocabulary is every word of the training file."""
    loaded = load(WIKITEXT2, list(WIKITEXT2.files), folder)
    train, valid = (_words(name, content) for name, content in loaded.files.items())
    number = {word: at for at, word in enumerate(dict.fromkeys(["<unk>", "<eos>", *train]))}
    unknown = number["<unk>"]
    return Text(
        torch.tensor([number[word] for word in train]),
        torch.tensor([number.get(word, unknown) for word in valid]),
        tuple(number),
        loaded.origin,
    )


@lru_cache(maxsize=2)
def read_shakespeare(folder: str | None = None) -> Text:
    """Characters; the first 90 % for training, the last 10 % for validation, as is usual."""
    loaded = load(SHAKESPEARE, ["input.txt"], folder)
    content = np.frombuffer(loaded.files["input.txt"], np.uint8)
    if content.max() > 127:
        raise DataError(f"{SHAKESPEARE.title}: input.txt is not plain ASCII; get it anew")
    letters, numbers = np.unique(content, return_inverse=True)
    tokens = torch.from_numpy(numbers.astype(np.int64))
    cut = len(tokens) * 9 // 10
    return Text(tokens[:cut], tokens[cut:], tuple(map(chr, letters)), loaded.origin)


def _words(name: str, content: bytes) -> list[str]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{WIKITEXT2.title}: {name} is not UTF-8 ({error}); get it anew") from error
    lines = text.removesuffix("\n").split("\n")
    return [word for line in lines for word in (*line.split(), "<eos>")]
