"""Train a small GPT on the bytes of a text with DDP, compressed, or with `--composition none` as plain DDP.

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

# the first pattern that matches a parameter's name counts; vectors are sent dense
COMPOSITION = {"*embed*": "ef(topk(density=0.01))", "*": "ef(powersgd(rank=4))"}


class Block(nn.Module):
    """A transformer block: causal self-attention, then an MLP."""

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
        attended = scaled_dot_product_attention(*parts, is_causal=True)  # (batch, heads, length, width / heads)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A decoder-only transformer that predicts the next byte."""

    def __init__(self, layers=6, width=384, heads=6, context=128):
        super().__init__()
        self.embed, self.embed_position = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        for embedding in (self.embed, self.embed_position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens):
        x = self.embed(tokens) + self.embed_position(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def load_text(path):
    """Return the bytes to train on, and their source."""
    if path:
        return Path(path).read_bytes(), path
    docs = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    if docs:
        return b"\n".join(page.read_bytes() for page in docs), "the pages of docs/ (no --data)"
    return b"the quick brown fox jumps over the lazy dog. " * 2000, "a repeated sentence (no --data)"


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a text file; default: the pages of docs/")
    parser.add_argument("--composition", default=COMPOSITION, help="composition for all layers; none: plain DDP")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--context", type=int, default=128, help="bytes per sequence")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384, help="a multiple of 6")
    return parser.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    text, source = load_text(args.data)
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    if len(tokens) <= args.context:
        raise SystemExit(f"{source}: {len(tokens)} bytes; it must have more than --context {args.context}")

    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(args.layers, args.width, context=args.context))
    handle = None if args.composition == "none" else thinwire.attach(model, args.composition)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    count = sum(p.numel() for p in model.parameters())
    if rank == 0:
        print(f"{len(tokens)} bytes of {source}; {count / 1e6:.1f} M parameters; {args.composition}", flush=True)

    numbers = torch.Generator().manual_seed(1 + rank)  # each rank draws its own sequences

    def draw():
        starts = torch.randint(len(tokens) - args.context, (args.batch, 1), generator=numbers)
        sequences = tokens[starts + torch.arange(args.context + 1)]
        return sequences[:, :-1], sequences[:, 1:]

    train(model, optimizer, draw, args.steps)
    report(model, handle)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
