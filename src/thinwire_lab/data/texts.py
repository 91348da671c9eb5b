"""WikiText-2 and WikiText-103 by words, WikiText-2 by bytes, tiny-shakespeare by characters: rows of token numbers."""

from __future__ import annotations

import io
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .datasets import Archive, Checksum, DataError, DataSet, load

_ARCHIVES = "https://s3.amazonaws.com/research.metamind.io/wikitext"
_EXAMPLES = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2"

WIKITEXT2 = DataSet(
    title="WikiText-2 (wikitext-2-v1)",
    folder="wikitext-2",
    files={
        "wiki.train.tokens": Checksum(10_797_148, "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
        "wiki.valid.tokens": Checksum(1_121_681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
    },
    archive=Archive(f"{_ARCHIVES}/wikitext-2-v1.zip"),
    urls={  # the same files under other names; the address of the archive is dead
        "wiki.train.tokens": f"{_EXAMPLES}/train.txt",
        "wiki.valid.tokens": f"{_EXAMPLES}/valid.txt",
    },
)
WIKITEXT103 = DataSet(
    title="WikiText-103 (wikitext-103-v1)",
    folder="wikitext-103",
    files={"wiki.train.tokens": None, "wiki.valid.tokens": None},
    archive=Archive(
        f"{_ARCHIVES}/wikitext-103-v1.zip",
        Checksum(None, "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"),
    ),
    max_file_bytes=1 << 30,  # the training file has about 540 MB
)
SHAKESPEARE = DataSet(
    title="tiny-shakespeare",
    folder="tiny-shakespeare",
    files={"input.txt": Checksum(1_115_394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")},
    urls={"input.txt": "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"},
)


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """Token numbers below `len(vocabulary)`."""

    train: Tensor  # (n,) uint8, int32 or int64
    valid: Tensor
    vocabulary: tuple[str, ...]
    origin: str


@lru_cache(maxsize=2)
def read_wikitext2(folder: str | None = None) -> TokenizedText:
    """WikiText-2 by words. Cached: all workers of a process share one copy."""
    return _read_words(WIKITEXT2, folder)


@lru_cache(maxsize=1)
def read_wikitext103(folder: str | None = None) -> TokenizedText:
    """WikiText-103: 103 million words, 400 MB as int32."""
    return _read_words(WIKITEXT103, folder)


@lru_cache(maxsize=2)
def read_wikitext2_bytes(folder: str | None = None) -> TokenizedText:
    """WikiText-2 by bytes: 10.8 million for training, 1.1 million for validation."""
    loaded = load(WIKITEXT2, list(WIKITEXT2.files), folder)
    train, valid = (
        torch.from_numpy(np.frombuffer(loaded.files[name], np.uint8).copy())
        for name in ("wiki.train.tokens", "wiki.valid.tokens")
    )
    return TokenizedText(train, valid, tuple(map(chr, range(256))), loaded.origin)


def _read_words(data: DataSet, folder: str | None) -> TokenizedText:
    """Words separated by spaces, with <eos> at the end of each line; the vocabulary is that of the training file."""
    loaded = load(data, list(data.files), folder)
    contents = {name: (f"{data.title}: {name}", loaded.files[name]) for name in data.files}
    number: defaultdict[str, int] = defaultdict(None, {"<unk>": 0, "<eos>": 1})
    number.default_factory = number.__len__  # a new word gets the next number
    train = tokenize(*contents["wiki.train.tokens"], number.__getitem__)
    valid = tokenize(*contents["wiki.valid.tokens"], lambda word: number.get(word, 0))
    return TokenizedText(train, valid, tuple(number), loaded.origin)


def tokenize(what: str, content: bytes, number: Callable[[str], int]) -> Tensor:
    """Token numbers (n,) of a text as int32; read line by line, to save memory."""
    numbers = array("i")
    for line in _lines(what, content):
        numbers.extend(map(number, line.split()))
        numbers.append(number("<eos>"))
    return torch.frombuffer(numbers, dtype=torch.int32) if numbers else torch.zeros(0, dtype=torch.int32)


@lru_cache(maxsize=2)
def read_shakespeare(folder: str | None = None) -> TokenizedText:
    """tiny-shakespeare by characters: the first 90 % for training, the last 10 % for validation."""
    loaded = load(SHAKESPEARE, ["input.txt"], folder)
    content = np.frombuffer(loaded.files["input.txt"], np.uint8)
    if content.max() > 127:
        raise DataError(f"{SHAKESPEARE.title}: input.txt is not plain ASCII; download it again")
    letters, numbers = np.unique(content, return_inverse=True)
    tokens = torch.from_numpy(numbers.astype(np.int64))
    cut = len(tokens) * 9 // 10
    return TokenizedText(tokens[:cut], tokens[cut:], tuple(map(chr, letters)), loaded.origin)


def _lines(what: str, content: bytes) -> Iterator[str]:
    for at, line in enumerate(io.BytesIO(content), start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{what} is not UTF-8 (line {at}: {error}); download it again") from error
