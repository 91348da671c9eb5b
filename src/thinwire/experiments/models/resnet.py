"""Residual networks for images of 32 x 32: ResNet-18, and a slim one that two cores can train."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.around: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.around(x))


class ResNet(nn.Module):
    """Blocks of these widths; each new width halves the image."""

    def __init__(self, classes: int, first: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, first, 3, 1, 1, bias=False), nn.BatchNorm2d(first), nn.ReLU())
        pairs = zip([first, *widths], widths, strict=False)
        self.blocks = nn.Sequential(*(Block(a, b, stride=1 if a == b else 2) for a, b in pairs))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


def resnet18(classes: int) -> ResNet:
    """11.2 M parameters."""
    return ResNet(classes, 64, (64, 64, 128, 128, 256, 256, 512, 512))


def slim_resnet(classes: int) -> ResNet:
    """0.3 M parameters: one block for each of three widths, none on the whole image, where most time would go."""
    return ResNet(classes, 16, (32, 64, 128))
