"""Language modelling with a GPT: WikiText-2 and WikiText-103 by words, WikiText-2 by bytes, tiny-shakespeare."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from thinwire.core import CompositionError

from ..data import DataSet, ProgressCallback, load
from ..data.texts import (
    SHAKESPEARE,
    WIKITEXT2,
    WIKITEXT103,
    TokenizedText,
    read_shakespeare,
    read_wikitext2,
    read_wikitext2_bytes,
    read_wikitext103,
)
from ..models.gpt import GPT, gpt
from .base import check_settings
from .batches import batch_positions
from .modules import Batch, ModuleLearner, count_parameters, evaluate
from .splits import Split, split_text

_SIZES = {"gpt2": (12, 768, 12)}  # layers, width, heads
_DEFAULT = (6, 384, 6)


@dataclass(frozen=True)
class WikiText2:
    """WikiText-2 by words. Each worker has a contiguous part of the first `tokens` training tokens.

    A batch is `batch` windows of `context` tokens. Perplexity is measured on the first `valid_windows` windows of the
    validation file. size="gpt2": 12 layers of width 768 with 12 heads.
    """

    name: ClassVar[str] = "wikitext2"
    data: ClassVar[DataSet] = WIKITEXT2
    at_once: ClassVar[int] = 16  # windows per batch of evaluation

    layers: int = _DEFAULT[0]
    width: int = _DEFAULT[1]
    heads: int = _DEFAULT[2]
    size: Literal["gpt2"] | None = None
    context: int = 64
    batch: int = 8
    tokens: int | Literal["all"] = 1_000_000
    valid_windows: int = 128
    folder: str | None = None

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if self.size is not None:
            given, wanted = (self.layers, self.width, self.heads), _SIZES[self.size]
            if given not in (_DEFAULT, wanted):
                raise CompositionError(
                    f"{self.name}: size={self.size!r} means layers, width, heads = {wanted}, got {given}"
                )
            for key, value in zip(("layers", "width", "heads"), wanted, strict=True):
                object.__setattr__(self, key, value)
        if self.width % self.heads:
            raise CompositionError(f"{self.name}: width must be a multiple of heads, got {self.width} and {self.heads}")

    @property
    def smoothness(self) -> None:
        return None

    def prepare(self, size: int, split: Split, on_progress: ProgressCallback | None = None) -> None:
        load(self.data, list(self.data.files), self.folder, on_progress)
        split_text(len(self._train()), size, split, self.context + 1)
        self._valid()

    def learner(self, rank: int, size: int, split: Split, seed: int) -> ModuleLearner:
        train = self._train()
        begin, end = split_text(len(train), size, split, self.context + 1)[rank]
        mine = train[begin:end]
        windows = (len(mine) - 1) // self.context

        def batch(step: int) -> Batch:
            return cut_windows(mine, batch_positions(step, self.batch, windows, seed, rank), self.context)

        made = gpt(len(self._text().vocabulary), self.context, self.layers, self.width, self.heads, seed)
        return ModuleLearner(made, batch, self._figures)

    def describe(self) -> dict[str, Any]:
        text, taken = self._text(), len(self._train())
        with torch.device("meta"):
            model = GPT(len(text.vocabulary), self.context, self.layers, self.width, self.heads)
        words = f"{taken:,} of {len(text.train):,} training tokens"
        seen = f"{self._valid() * self.context:,} of {len(text.valid):,} validation tokens"
        return {
            "task": self.name, "model": f"GPT {self.layers} x {self.width}, {self.heads} heads",
            "parameters": count_parameters(model), "vocabulary": len(text.vocabulary), "examples": taken,
            "batch": self.batch, "context": self.context, "data": text.origin,
            "cut": f"{words}, perplexity on the first {seen}; vocabulary of the whole training file",
        }  # fmt: skip

    def _text(self) -> TokenizedText:
        return read_wikitext2(self.folder)

    def _train(self) -> Tensor:
        text = self._text()
        wanted = len(text.train) if self.tokens == "all" else self.tokens
        if wanted > len(text.train):
            raise CompositionError(f'{self.name}: tokens must be at most {len(text.train):,} or "all", got {wanted:,}')
        return text.train[:wanted]

    def _valid(self) -> int:
        """Number of validation windows that are evaluated."""
        windows = (len(self._text().valid) - 1) // self.context
        if windows < 1:
            raise CompositionError(f"{self.name}: context must be shorter than the validation text, got {self.context}")
        return min(self.valid_windows, windows)

    def _figures(self, model: nn.Module) -> dict[str, float]:
        valid, count = self._text().valid, self._valid()

        def batches() -> Iterator[Batch]:
            for at in range(0, count, self.at_once):
                yield cut_windows(valid, torch.arange(at, min(at + self.at_once, count)), self.context)

        loss, accuracy = evaluate(model, batches())
        return {"loss": loss, "accuracy": accuracy, "perplexity": math.exp(min(loss, 700.0))}


@dataclass(frozen=True)
class WikiText2Bytes(WikiText2):
    """WikiText-2 by bytes: a vocabulary of 256, so that small models need no large embedding."""

    name: ClassVar[str] = "wikitext2_bytes"

    context: int = 128

    def _text(self) -> TokenizedText:
        return read_wikitext2_bytes(self.folder)


@dataclass(frozen=True)
class WikiText103(WikiText2):
    """WikiText-103 by words: 103 million tokens, a vocabulary of 267,735."""

    name: ClassVar[str] = "wikitext103"
    data: ClassVar[DataSet] = WIKITEXT103
    at_once: ClassVar[int] = 2

    def _text(self) -> TokenizedText:
        return read_wikitext103(self.folder)


@dataclass(frozen=True)
class Shakespeare(WikiText2):
    """tiny-shakespeare by characters: 90 % for training, 10 % for validation."""

    name: ClassVar[str] = "shakespeare"
    data: ClassVar[DataSet] = SHAKESPEARE

    context: int = 128
    tokens: int | Literal["all"] = "all"

    def _text(self) -> TokenizedText:
        return read_shakespeare(self.folder)


def cut_windows(tokens: Tensor, windows: Tensor, context: int) -> Batch:
    """Inputs and targets of non-overlapping windows of `context` tokens, by window number."""
    places = windows[:, None] * context + torch.arange(context + 1)
    piece = tokens[places].long()
    return piece[:, :-1], piece[:, 1:]
