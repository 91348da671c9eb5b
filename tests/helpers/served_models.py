"""A small model, its server and its workers in threads of one process, for tests of `thinwire.serve` and `join`."""

import threading

import torch

import thinwire

GOAL = torch.tensor([[1.0, -2.0, 3.0, 0.5]])


def model():
    """All sides begin with zeros; the loss falls to zero at GOAL."""
    made = torch.nn.Linear(4, 1)
    with torch.no_grad():
        made.weight.zero_()
        made.bias.zero_()
    return made


def batches(count, seed=0):
    noise = torch.Generator().manual_seed(seed)
    for _ in range(count):
        inputs = torch.randn(8, 4, generator=noise)
        yield inputs, inputs @ GOAL.T


def loss(made, batch):
    inputs, targets = batch
    return (made(inputs) - targets).square().mean()


def serve(optimizer="sgd(lr=0.05)", made=None, **options):
    return thinwire.serve(made or model(), optimizer, **{"workers": 1, "block": False, **options})


def work(address, count=5, noise=0, name="w", factor=1.0, **options):
    """One worker's whole loop; how many updates were accepted."""
    made = model()
    worker = thinwire.join(made, address, batches(count, noise), name=name, **options)
    for batch in worker:
        (factor * loss(made, batch)).backward()
    return worker.report()["accepted"]


def take_part(address, rounds, name="w", lr=0.05, steps=3, **options):
    """One federated client's whole loop; in how many rounds it was accepted."""
    made = model()
    own = torch.optim.SGD(made.parameters(), lr)
    worker = thinwire.join(made, address, rounds=rounds, name=name, **options)
    for round in worker:
        for batch in batches(steps, seed=round):
            own.zero_grad()
            loss(made, batch).backward()
            own.step()
    return worker.report()["accepted"]


def in_thread(function, *arguments, **options):
    thread = threading.Thread(target=function, args=arguments, kwargs=options, daemon=True)
    thread.start()
    return thread
