"""A multilayer perceptron with two hidden ReLU layers."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int, width: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
    )
