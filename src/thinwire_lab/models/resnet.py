"""Residual networks (He et al., 2016): ResNet-18 and a slim one for 32 x 32 images, ResNet-18 and -50 for large."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.around = make_shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.around(x))


class Bottleneck(nn.Module):
    """A bottleneck block: 1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut.

    The last norm starts at zero, so that a block starts as its shortcut; otherwise the first gradients of fifty layers
    are forty times as large.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 4
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.norm3.weight)
        self.around = make_shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        out = torch.relu(self.norm2(self.conv2(out)))
        return torch.relu(self.norm3(self.conv3(out)) + self.around(x))


def make_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The identity, or a 1 x 1 convolution if the shape changes."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Blocks of the given widths; each new width halves the image. large: the stem halves it twice instead."""

    def __init__(
        self,
        classes: int,
        first: int,
        widths: Sequence[int],
        block: Callable[[int, int, int], nn.Module] = ResidualBlock,
        large: bool = False,
    ) -> None:
        super().__init__()
        conv = nn.Conv2d(3, first, 7, 2, 3, bias=False) if large else nn.Conv2d(3, first, 3, 1, 1, bias=False)
        pool = [nn.MaxPool2d(3, 2, 1)] if large else []
        self.stem = nn.Sequential(conv, nn.BatchNorm2d(first), nn.ReLU(), *pool)
        pairs = enumerate(zip([first, *widths], widths, strict=False))
        self.blocks = nn.Sequential(*(block(a, b, 1 if a == b or (large and at == 0) else 2) for at, (a, b) in pairs))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


def resnet18(classes: int, large: bool = False) -> ResNet:
    """11.2 M parameters."""
    return ResNet(classes, 64, (64, 64, 128, 128, 256, 256, 512, 512), large=large)


def resnet50(classes: int) -> ResNet:
    """For large images: 25.6 M parameters with 1000 classes. The 3 x 3 convolution has the stride (ResNet v1.5)."""
    return ResNet(classes, 64, (*[256] * 3, *[512] * 4, *[1024] * 6, *[2048] * 3), Bottleneck, large=True)


def slim_resnet(classes: int) -> ResNet:
    """0.3 M parameters: one block for each of three widths, none at full resolution, which would take most time."""
    return ResNet(classes, 16, (32, 64, 128))
