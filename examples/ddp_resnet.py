"""Train a ResNet-18 on CIFAR-10 with DDP, compressed, or with `--composition none` as plain DDP.

torchrun --nproc-per-node 2 examples/ddp_resnet.py --data FOLDER
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from loop import report, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire


class Block(nn.Module):
    """A residual block: two convolutions and a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for images of 32 x 32: the first convolution keeps their size."""

    def __init__(self, classes=10, width=64):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width * 2 ** (at // 2) for at in range(8)]  # two blocks of each width
        self.blocks = nn.Sequential(
            *(
                Block(before, after, stride=1 if before == after else 2)
                for before, after in zip([width, *widths], widths, strict=False)
            )
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def load_cifar10(folder):
    """Read images (N, 3, 32, 32) as bytes and labels from the binary version; the Python version is pickled."""
    files = sorted([*folder.glob("data_batch_*.bin"), *folder.glob("cifar-10-batches-bin/data_batch_*.bin")])
    if not files:
        raise SystemExit(
            f"{folder}: no data_batch_*.bin here or in cifar-10-batches-bin; download the binary version of CIFAR-10"
        )
    rows = torch.cat([torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in files])
    rows = rows.view(-1, 1 + 3 * 32 * 32)
    return rows[:, 1:].view(-1, 3, 32, 32), rows[:, 0].long()


def make_synthetic(count=2000):
    """Make ten images of noise, and noisy samples of each."""
    numbers = torch.Generator().manual_seed(0)
    prototypes = torch.randint(0, 128, (10, 3, 32, 32), generator=numbers)
    labels = torch.randint(0, 10, (count,), generator=numbers)
    noise = torch.randint(0, 128, (count, 3, 32, 32), generator=numbers)
    return (prototypes[labels] + noise).to(torch.uint8), labels


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", default=os.environ.get("THINWIRE_DATA"), help="folder of the binary version of CIFAR-10"
    )
    parser.add_argument("--synthetic", action="store_true", help="generated images instead of CIFAR-10")
    parser.add_argument(
        "--composition", default="ef(topk(density=0.01))", help="composition for all layers; none: plain DDP"
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--width", type=int, default=64, help="channels of the first block")
    return parser.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if args.synthetic or not args.data:
        images, labels = make_synthetic()
        source = "generated images" + ("" if args.synthetic else " (neither --data nor THINWIRE_DATA is set)")
    else:
        images, labels = load_cifar10(Path(args.data))
        source = f"CIFAR-10 of {args.data}"

    torch.manual_seed(0)
    model = DistributedDataParallel(ResNet18(width=args.width))
    handle = None if args.composition == "none" else thinwire.attach(model, args.composition)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    count = sum(p.numel() for p in model.parameters())
    if rank == 0:
        print(f"{len(images)} images, {source}; {count / 1e6:.1f} M parameters; {args.composition}", flush=True)

    numbers = torch.Generator().manual_seed(1 + rank)  # each rank draws its own batches

    def draw():
        batch = torch.randint(len(images), (args.batch,), generator=numbers)
        return images[batch] / 128 - 1, labels[batch]

    train(model, optimizer, draw, args.steps)
    report(model, handle)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
