"""DiLoCo: each rank trains a plain module with AdamW, and the ranks synchronize every 16 steps.

torchrun --nproc-per-node 2 examples/local.py
"""

import torch
import torch.distributed as dist
from torch import nn

import thinwire

dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
numbers = torch.Generator().manual_seed(1 + rank)  # each rank has its own data
with thinwire.local(
    model, optimizer, sync_every=16, composition="ef(uniform(bits=4))", outer_optimizer="nesterov(lr=0.7)"
) as handle:
    for step in range(160):
        inputs = torch.randn(32, 20, generator=numbers)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :3].sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # every 16th is followed by a round
        if rank == 0 and step in (0, 159):
            print(f"step {step:3}  loss {loss.item():.4f}", flush=True)
    handle.full_average()  # all ranks have the same weights now
    if rank == 0:
        print(handle.report(), flush=True)
dist.destroy_process_group()
