"""A small GPT on the bytes of a text with DDP: through thinwire, or with `--composition none` as plain DDP.

torchrun --nproc-per-node 2 examples/ddp_gpt.py --data FILE
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from loop import report, train
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import thinwire

# the first pattern that matches a parameter's name counts; vectors travel dense
COMPOSITION = {"*embed*": "ef(topk(density=0.01))", "*": "ef(powersgd(rank=4))"}


class Block(nn.Module):
    """Attention to what came before, then a small network for each place."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries = nn.Linear(width, 3 * width)  # and keys and values
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.queries(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(*parts, is_causal=True)  # (batch, heads, length, width / heads)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, layers=6, width=384, heads=6, context=128):
        super().__init__()
        self.embed, self.embed_place = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        for embedding in (self.embed, self.embed_place):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens):
        x = self.embed(tokens) + self.embed_place(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def text_of(path):
    """The bytes to learn and where they are from."""
    if path:
        return Path(path).read_bytes(), path
    docs = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    if docs:
        return b"\n".join(page.read_bytes() for page in docs), "the pages of docs/, as --data is not given"
    return b"the quick brown fox jumps over the lazy dog. " * 2000, "one sentence again and again: --data gives a text"


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a text file; default: the pages of docs/")
    parser.add_argument("--composition", default=COMPOSITION, help="for all layers, or none: plain DDP")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="pieces of text a rank and step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--context", type=int, default=128, help="bytes of a piece")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384, help="a multiple of 6")
    return parser.parse_args()


def main():
    wanted = options()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    text, source = text_of(wanted.data)
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    if len(tokens) <= wanted.context:
        raise SystemExit(f"{source}: {len(tokens)} bytes; more than --context {wanted.context} are needed")

    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(wanted.layers, wanted.width, context=wanted.context))
    handle = None if wanted.composition == "none" else thinwire.attach(model, wanted.composition)
    optimizer = torch.optim.AdamW(model.parameters(), lr=wanted.lr)
    count = sum(p.numel() for p in model.parameters())
    if rank == 0:
        print(f"{len(tokens)} bytes of {source}; {count / 1e6:.1f} M parameters; {wanted.composition}", flush=True)

    numbers = torch.Generator().manual_seed(1 + rank)  # every rank draws its own pieces

    def draw():
        starts = torch.randint(len(tokens) - wanted.context, (wanted.batch, 1), generator=numbers)
        piece = tokens[starts + torch.arange(wanted.context + 1)]
        return piece[:, :-1], piece[:, 1:]

    train(model, optimizer, draw, wanted.steps)
    report(model, handle)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
