"""A small DDP model, its data and its training loop, for jobs of worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 (its usual name)

from helpers.jobs import digest
from thinwire import TorchDist
from thinwire.catalog.patterns import CompositionSpec

EF_TOPK = "ef(topk(density=0.05))"
Composition = CompositionSpec | Mapping[str, CompositionSpec]


class Net(nn.Module):
    """Three layers that may be used or not, frozen or not, shared or not."""

    def __init__(self, width: int = 40, dtype: torch.dtype = torch.float32, shared: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(32, width, dtype=dtype)
        self.second = nn.Linear(width, width, dtype=dtype)
        self.third = self.second if shared else nn.Linear(width, width, dtype=dtype)
        self.last = nn.Linear(width, 4, dtype=dtype)

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.second(x))
        if not skip:
            x = torch.tanh(self.third(x))
        output: Tensor = self.last(x)
        return output


def data(step: int, rank: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 32, generator=generator)
    return x.to(dtype), x[:, :4].argmax(1)


def ddp_of(driver: TorchDist, net: nn.Module | None = None, **options: Any) -> DDP:
    torch.manual_seed(7)
    return DDP(net or Net(), process_group=driver.group, **options)


def weights(model: DDP) -> str:
    return digest({name: p.detach() for name, p in model.module.named_parameters()})


def train(
    model: DDP,
    driver: TorchDist,
    steps: int,
    start: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    forward: Callable[..., Any] | None = None,
    **forward_options: Any,
) -> list[float]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    dtype = next(model.parameters()).dtype
    losses = []
    for step in range(start, start + steps):
        x, y = data(step, driver.world.rank, dtype)
        optimizer.zero_grad()
        output = model(x, **forward_options) if forward is None else forward(x, **forward_options)
        loss = nn.functional.cross_entropy(output.float(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
