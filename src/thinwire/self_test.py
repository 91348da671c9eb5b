"""A self-test of an installation: versions, kernels, backend, links, and whether ranks exchange what they should."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import __version__
from .catalog import parse
from .core import AllGather, AllReduce, Op, Payload, Program, TensorSpec, ThinwireError, World
from .core.tested import describe_tests
from .drivers.driver import Driver
from .drivers.lockstep import lockstep
from .drivers.processes import run_ranks
from .drivers.rendezvous import gloo_is_available
from .exchange import Exchanger
from .integrations.comparison import compare_settings, fingerprint
from .kernels.native import serving
from .planner.link import LinkFigures, Rate, advice, measure_link

SELF_TESTS = ("dense()", "ef(topk(density=0.05))", "ef(powersgd(rank=2))", "qsgd(bits=4)", "two_hop(qsgd(bits=8))")
_STEPS = 3
_SHAPES = {"matrix": (48, 40), "vector": (97,)}


class Finding(NamedTuple):
    """One line of the examination; `well` is None where nothing can be wrong."""

    what: str
    found: str
    well: bool | None = None


@dataclass(frozen=True)
class Group:
    """What all ranks of a group found together; the same on each."""

    ranks: int
    link: LinkFigures | None
    wrong: dict[str, str]  # by self-test: what was wrong; empty if nothing

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, stored: dict[str, Any]) -> Group:
        link = stored["link"]
        rates = tuple(Rate(**rate) for rate in link["rates"]) if link else ()
        return cls(stored["ranks"], LinkFigures(**{**link, "rates": rates}) if link else None, stored["wrong"])

    def findings(self) -> Iterator[Finding]:
        if self.link is None:
            yield Finding("link", "one rank alone has none")
        else:
            yield Finding("latency", f"{self.link.latency_us:,.0f} us for an all-reduce of one number")
            for rate in self.link.rates:
                yield Finding(f"link {rate.source} to {rate.to}", f"{rate.mbit_s:,.0f} Mbit/s")
            yield Finding("advice", advice(self.link.slowest_mbit_s))
        for text in ("settings", *SELF_TESTS):
            bad = self.wrong.get(text)
            yield Finding(f"self-test {text}", bad or f"{self.ranks} ranks agree", bad is None)


def examine_machine() -> list[Finding]:
    """What is installed here and what may be used; nothing is sent."""
    return [
        Finding("thinwire", __version__),
        Finding("python", platform.python_version()),
        Finding("torch", str(torch.__version__)),
        Finding("numpy", np.__version__),
        Finding("tested with", describe_tests(platform.python_version(), str(torch.__version__))),
        Finding("safetensors", *_version("safetensors")),
        Finding("cores", f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads"),
        Finding("load", _load()),
        Finding("kernels", serving() + ("; torch reference on CUDA" if torch.cuda.is_available() else "")),
        Finding("backend", "gloo" if (gloo := gloo_is_available()) else "this torch was built without gloo", gloo),
        Finding("interface", os.environ.get("GLOO_SOCKET_IFNAME", "gloo's choice (GLOO_SOCKET_IFNAME is not set)")),
    ]


def _load() -> str:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"{load:.1f} processes want to run" + ("; figures below suffer" if load > cores else "")


def _version(name: str) -> tuple[str, bool | None]:
    try:
        return importlib.metadata.version(name), None
    except importlib.metadata.PackageNotFoundError:
        return "missing; install thinwire with its dependencies", False


def examine_here() -> list[Finding]:
    """The same as for a group, on two processes of this machine."""
    try:
        stored = run_ranks(2, "thinwire.self_test:examine_pair", None, timeout_s=120.0)[0]
    except ThinwireError as error:
        return [Finding("self-test on 2 processes", str(error), False)]
    found = list(Group.of_json(stored).findings())
    hint = "of this machine's loopback; start me by torchrun to learn about your network"
    return [Finding("link", hint) if finding.what == "advice" else finding for finding in found]


def examine_pair(driver: Driver, argument: Any, tell: Callable[[Any], None]) -> dict[str, Any]:
    return examine_group(driver).as_json()


def examine_group(driver: Driver) -> Group:
    """Compare versions, measure the links, and try some compositions. All ranks call this and find the same."""
    wrong: dict[str, str] = {}
    versions = {"thinwire": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
    try:
        driver.run(compare_settings({"version": versions}))
    except ThinwireError as error:
        wrong["settings"] = str(error)
    link = measure_link(driver)
    for text in SELF_TESTS:
        if complaint := self_test(driver, text):
            wrong[text] = complaint
    return Group(driver.world.size, link, wrong)


def self_test(driver: Driver, text: str) -> str:
    """What is wrong with a composition on this group; empty if all ranks have the same bits, and the right numbers."""
    size = driver.world.size
    expected = lockstep([_steps(text, World(rank, size)) for rank in range(size)])[driver.world.rank]
    found = driver.run(_steps(text, driver.world))
    marks = driver.run(_all_marks(fingerprint(found)))
    odd = [rank for rank in range(size) if not torch.equal(marks[rank], marks[0])]
    if odd:
        return f"rank {odd[0]} has other averages than rank 0"
    off = max(float((a - b).abs().max() / (1e-6 + b.abs().max())) for a, b in zip(found, expected, strict=True))
    worst = driver.run(_largest(torch.tensor([off], dtype=torch.float64)))
    return f"averages are off by {worst:.1e} of their size" if not worst < 1e-3 else ""


def _steps(text: str, world: World) -> Program[list[Tensor]]:
    """A few steps with a memory; every rank can compute every rank's tensors."""
    exchanger = Exchanger([TensorSpec(name, shape) for name, shape in _SHAPES.items()], parse(text))
    averages: list[Tensor] = []
    for step in range(_STEPS):
        generator = torch.Generator().manual_seed(1000 * step + world.rank)
        tensors = {name: torch.randn(shape, generator=generator) for name, shape in _SHAPES.items()}
        averages += (yield from exchanger.run_step(tensors, step, world)).values()
    return averages


def _all_marks(marks: Tensor) -> Program[list[Tensor]]:
    gathered = yield AllGather(Payload((marks,)))
    return [payload.parts[0] for payload in gathered]


def _largest(number: Tensor) -> Program[float]:
    largest: Tensor = yield AllReduce(number, Op.MAX)
    return float(largest)
