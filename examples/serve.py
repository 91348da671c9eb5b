"""A parameter server for your own model, and two workers in their own processes.

python examples/serve.py

On several machines: start workers with `python examples/serve.py HOST:PORT SHARE`, give the server an address
"0.0.0.0:PORT", and set THINWIRE_SECRET on all of them.
"""

import subprocess
import sys

import torch
from torch import nn

import thinwire

SETTINGS = {"composition": "ef(topk(density=0.05))", "task": "sums"}  # the same on both sides


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))


def draw(share, steps=150):
    numbers = torch.Generator().manual_seed(share)  # each worker has its own data
    for _ in range(steps):
        inputs = torch.randn(32, 20, generator=numbers)
        yield inputs, inputs[:, :3].sum(1, keepdim=True)


def serve():
    model = make_model()
    ((inputs, targets),) = draw(9, 1)
    with thinwire.serve(model, "sgd(lr=0.1, momentum=0.5)", workers=2, max_lead=4, block=False, **SETTINGS) as server:
        print(f"loss {nn.functional.mse_loss(model(inputs), targets).item():.4f}", flush=True)
        workers = [subprocess.Popen([sys.executable, __file__, server.address, str(share)]) for share in (0, 1)]
        while not server.wait(0.2):
            if any(worker.poll() for worker in workers):
                raise SystemExit("a worker failed")
    print(f"loss {nn.functional.mse_loss(model(inputs), targets).item():.4f}  {server.report()}", flush=True)


def work(address, share):
    model = make_model()
    for inputs, targets in thinwire.join(model, address, draw(int(share)), name=f"worker-{share}", **SETTINGS):
        nn.functional.mse_loss(model(inputs), targets).backward()


if __name__ == "__main__":
    work(*sys.argv[1:]) if len(sys.argv) > 1 else serve()
