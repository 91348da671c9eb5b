"""Compare two compositions without a network: 4 workers in one process.

python examples/lockstep.py
"""

import torch

from thinwire import Exchanger, Meter, TensorSpec, World, lockstep, parse

WORKERS, UNKNOWNS, ROWS, STEPS, STEP_SIZE = 4, 200, 100, 300, 0.3

generator = torch.Generator().manual_seed(0)
truth = torch.randn(UNKNOWNS, generator=generator)
shards = [torch.randn(ROWS, UNKNOWNS, generator=generator) for _ in range(WORKERS)]  # each worker has its own rows


def train(exchanger, rows, world):
    """Least squares on one worker: a program that yields its requests."""
    x = torch.zeros(UNKNOWNS)
    for step in range(STEPS):
        gradient = rows.T @ (rows @ (x - truth)) / ROWS
        averages = yield from exchanger.run_step({"x": gradient}, step, world)
        x = x - STEP_SIZE * averages["x"]
    return float((x - truth).norm() / truth.norm())


def main():
    for text in ("dense()", "ef(topk(density=0.05))"):
        meters = [Meter() for _ in range(WORKERS)]
        exchangers = [Exchanger([TensorSpec("x", (UNKNOWNS,))], parse(text)) for _ in range(WORKERS)]
        programs = [train(exchangers[rank], shards[rank], World(rank, WORKERS)) for rank in range(WORKERS)]
        errors = lockstep(programs, meters)
        sent = meters[0].total()
        print(f"{text:22}  payload {sent.payload_bytes:7.0f} B  wire {sent.sent_bytes:7.0f} B  error {errors[0]:.1e}")


if __name__ == "__main__":
    main()
