"""A small convolutional network without batch norms: its only state is the weights."""

from __future__ import annotations

from torch import Tensor, nn


class CNN(nn.Module):
    """Three convolutions, each halving the image of 32 x 32, and two dense layers."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.hidden = nn.Linear(2 * width * 16, 4 * width)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.hidden(self.features(images).flatten(1)).relu())  # type: ignore[no-any-return]
