"""A minimal DDP script with compressed gradients.

torchrun --nproc-per-node 2 examples/ddp_minimal.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)))
handle = thinwire.attach(model, "ef(topk(density=0.05))")  # compress from the first backward pass on
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
numbers = torch.Generator().manual_seed(1 + dist.get_rank())  # each rank has its own data
for step in range(100):
    inputs = torch.randn(32, 20, generator=numbers)
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :3].sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and step in (0, 99):
        print(f"step {step:2}  loss {loss.item():.4f}", flush=True)
if dist.get_rank() == 0:
    print(handle.report(), flush=True)
dist.destroy_process_group()
