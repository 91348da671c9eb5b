"""A run that resumes from a checkpoint takes the same next steps."""

import torch

from helpers.checkpoints import same
from thinwire import Exchanger, TensorSpec, World, checkpoint, lockstep, parse


class Run:
    """Two workers that train one model over an exchange with memory."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, betas=(0.8, 0.99))
        layers = [TensorSpec(name, tuple(p.shape)) for name, p in self.model.named_parameters()]
        self.exchangers = [Exchanger(layers, parse("ef(topk(density=0.1))"), seed=3) for _ in range(2)]
        self.step = 0

    def train(self, steps):
        losses = []
        for _ in range(steps):
            programs = [self.round(rank) for rank in range(2)]
            for name, gradient in lockstep(programs)[0].items():
                self.model.get_parameter(name).grad = gradient
            self.optimizer.step()
            losses.append(self.loss.item().hex())
            self.step += 1
        return losses

    def round(self, rank):
        generator = torch.Generator().manual_seed(1000 * self.step + rank)
        x = torch.randn(32, 8, generator=generator)
        self.model.zero_grad()
        self.loss = (self.model(x) - x[:, :3].abs()).square().mean()
        self.loss.backward()
        gradients = {name: p.grad.clone() for name, p in self.model.named_parameters()}
        return self.exchangers[rank].run_step(gradients, self.step, World(rank, 2))

    def state(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "exchangers": [e.state_dict() for e in self.exchangers],
            "generator": torch.get_rng_state(),
            "step": self.step,
        }

    def restore(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for exchanger, stored in zip(self.exchangers, state["exchangers"], strict=True):
            exchanger.load_state_dict(stored)
        self.step = state["step"]
        return self


def test_model_optimizer_and_exchange_resume_with_the_same_bits(tmp_path):
    run = Run()
    run.train(7)
    checkpoint.save(tmp_path, run.state(), step=run.step)
    loaded = checkpoint.load(tmp_path)
    assert same(plain(run.state()), loaded)
    assert list(loaded["optimizer"]["state"]) == [0, 1, 2, 3, 4, 5]
    after = run.train(7)
    other = Run()
    other.train(2)  # somewhere else altogether
    assert other.restore(loaded).train(7) == after
    assert same(plain(run.state()), plain(other.state()))


def plain(state):
    """The model's state is an OrderedDict, which comes back as a dict."""
    return state | {"model": dict(state["model"])}
