"""A decoder like GPT-2 (Radford et al., 2019): learned positions, pre-norm, tied embeddings; without dropout."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from .initialization import initialize


class TransformerBlock(nn.Module):
    """Causal self-attention, then an MLP for each position."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries = nn.Linear(width, 3 * width)  # and keys and values
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.queries(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts
        seen = scaled_dot_product_attention(
            queries, keys, values, is_causal=True
        )  # (batch, heads, length, width / heads)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Scores of the next token at every position."""

    def __init__(self, tokens: int, context: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.embed, self.embed_place = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed(tokens) + self.embed_place(places)
        return linear(self.norm(self.blocks(x)), self.embed.weight)


def gpt(tokens: int, context: int, layers: int, width: int, heads: int, seed: int) -> GPT:
    """A GPT with GPT-2's initial deviation: 0.02, divided by sqrt(2 layers) for the outputs of blocks."""

    def deviation(name: str, weights: Tensor) -> float:
        return 0.02 / math.sqrt(2 * layers) if name.endswith(("out.weight", "down.weight")) else 0.02

    return initialize(lambda: GPT(tokens, context, layers, width, heads), seed, deviation)
