"""A plain PyTorch loop that exchanges its gradients with an Exchanger, without DDP; any number of ranks.

torchrun --nproc-per-node 2 examples/torchrun.py
"""

import torch
import torch.distributed as dist
from torch import nn

from thinwire import Exchanger, TensorSpec, TorchDist, parse

STEPS, BATCH = 200, 32


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same initial weights on all ranks
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    layers = [TensorSpec.of(name, parameter) for name, parameter in model.named_parameters()]
    exchanger = Exchanger(layers, parse("ef(topk(density=0.05))"))

    with TorchDist() as driver:
        torch.manual_seed(1 + driver.world.rank)  # each rank has its own data
        for step in range(STEPS):
            inputs = torch.randn(BATCH, 20)
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :3].sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
            averages = driver.run(exchanger.run_step(gradients, step, driver.world))
            for name, parameter in model.named_parameters():
                parameter.grad = averages[name]
            optimizer.step()
            if driver.world.rank == 0 and (step == 0 or step == STEPS - 1):
                print(f"step {step:3}  loss {loss.item():.4f}", flush=True)
        if driver.world.rank == 0:
            dense = STEPS * sum(4 * layer.numel for layer in layers)
            sent = driver.meter.total()
            print(f"payload {sent.payload_bytes:.0f} B of {dense} B dense  wire {sent.sent_bytes:.0f} B", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
