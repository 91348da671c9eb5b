"""The training loop and the report of ddp_resnet.py and ddp_gpt.py."""

import statistics
import time

import torch.distributed as dist
from torch.nn.functional import cross_entropy


def train(model, optimizer, draw, steps):
    """Train on batches of `draw()`: inputs and classes. The last dimension of the model's outputs is the class."""
    losses, seconds = [], []
    for step in range(steps):
        began = time.perf_counter()
        inputs, classes = draw()
        loss = cross_entropy(model(inputs).flatten(0, -2), classes.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step:4}  loss {losses[-1]:.3f}", flush=True)
    if dist.get_rank() == 0 and losses:
        last, median = losses[-10:], statistics.median(seconds)
        print(f"loss {sum(last) / len(last):.3f} (mean of {len(last)})  step {median:.3f} s (median)", flush=True)


def report(model, handle):
    """Print the traffic on rank 0."""
    if dist.get_rank() == 0:
        workers = dist.get_world_size()
        dense = 4 * sum(p.numel() for p in model.parameters()) * 2 * (workers - 1) / workers  # a ring all-reduce
        print(handle.report() if handle else f"plain DDP sends {dense / 1e6:.3g} MB a step (by formula)", flush=True)
