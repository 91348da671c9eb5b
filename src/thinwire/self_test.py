"""Self-test of an installation: versions, kernels, backend, links, and whether ranks compute the right averages."""

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
from .integrations.comparison import compare_settings
from .integrations.fingerprints import fingerprint
from .kernels.native import describe_kernels
from .planner.link import LinkMeasurement, LinkRate, describe_link, measure_link

SELF_TESTS = ("dense()", "ef(topk(density=0.05))", "ef(powersgd(rank=2))", "qsgd(bits=4)", "two_hop(qsgd(bits=8))")
_STEPS = 3
_SHAPES = {"matrix": (48, 40), "vector": (97,)}


class Finding(NamedTuple):
    """One line of the self-test; `is_ok` is None for information only."""

    name: str
    text: str
    is_ok: bool | None = None


@dataclass(frozen=True)
class GroupResult:
    """The result of a self-test of a process group; the same on all ranks."""

    num_ranks: int
    link: LinkMeasurement | None
    failures: dict[str, str]  # by test: what is wrong; empty if nothing is

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers, texts and lists."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> GroupResult:
        """Undo `as_json`."""
        link = stored["link"]
        rates = tuple(LinkRate(**rate) for rate in link["rates"]) if link else ()
        return cls(
            stored["num_ranks"], LinkMeasurement(**{**link, "rates": rates}) if link else None, stored["failures"]
        )

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each link and test."""
        if self.link is None:
            yield Finding("link", "none: there is one rank")
        else:
            yield Finding("latency", f"{self.link.latency_us:,.0f} us for an all-reduce of one number")
            for rate in self.link.rates:
                yield Finding(f"link {rate.source} to {rate.to}", f"{rate.mbit_s:,.0f} Mbit/s")
            yield Finding("advice", describe_link(self.link.slowest_mbit_s))
        for text in ("settings", *SELF_TESTS):
            failure = self.failures.get(text)
            yield Finding(f"self-test {text}", failure or f"{self.num_ranks} ranks agree", failure is None)


def examine_machine() -> list[Finding]:
    """Return findings about versions, kernels and backend; nothing is sent."""
    return [
        Finding("thinwire", __version__),
        Finding("python", platform.python_version()),
        Finding("torch", str(torch.__version__)),
        Finding("numpy", np.__version__),
        Finding("tested with", describe_tests(platform.python_version(), str(torch.__version__))),
        Finding("safetensors", *_version("safetensors")),
        Finding("cores", f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads"),
        Finding("load", _load()),
        Finding("kernels", describe_kernels() + ("; torch reference on CUDA" if torch.cuda.is_available() else "")),
        Finding("backend", "gloo" if (gloo := gloo_is_available()) else "this torch was built without gloo", gloo),
        Finding("interface", os.environ.get("GLOO_SOCKET_IFNAME", "gloo's choice (GLOO_SOCKET_IFNAME is not set)")),
    ]


def _load() -> str:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"{load:.1f} runnable processes" + ("; the rates below are too low" if load > cores else "")


def _version(name: str) -> tuple[str, bool | None]:
    try:
        return importlib.metadata.version(name), None
    except importlib.metadata.PackageNotFoundError:
        return "missing; install thinwire with its dependencies", False


def examine_here() -> list[Finding]:
    """Return the findings of a group of two processes on this machine."""
    try:
        stored = run_ranks(2, "thinwire.self_test:examine_pair", None, timeout_s=120.0)[0]
    except ThinwireError as error:
        return [Finding("self-test on 2 processes", str(error), False)]
    findings = list(GroupResult.from_json(stored).findings())
    hint = "loopback of this machine; start the doctor with torchrun to measure your network"
    return [Finding("link", hint) if finding.name == "advice" else finding for finding in findings]


def examine_pair(driver: Driver, argument: Any, tell: Callable[[Any], None]) -> dict[str, Any]:
    """Run `examine_group` in a process of `run_ranks`."""
    return examine_group(driver).as_json()


def examine_group(driver: Driver) -> GroupResult:
    """Compare versions, measure the links and test some compositions. All ranks call this and get the same result."""
    failures: dict[str, str] = {}
    versions = {"thinwire": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
    try:
        driver.run(compare_settings({"version": versions}))
    except ThinwireError as error:
        failures["settings"] = str(error)
    link = measure_link(driver)
    for text in SELF_TESTS:
        if failure := self_test(driver, text):
            failures[text] = failure
    return GroupResult(driver.world.size, link, failures)


def self_test(driver: Driver, text: str) -> str:
    """Return what is wrong with a composition on this group; "" if averages are right and equal bit for bit."""
    size = driver.world.size
    expected = lockstep([_steps(text, World(rank, size)) for rank in range(size)])[driver.world.rank]
    averages = driver.run(_steps(text, driver.world))
    fingerprints = driver.run(_gather(fingerprint(averages)))
    differing = [rank for rank in range(size) if not torch.equal(fingerprints[rank], fingerprints[0])]
    if differing:
        return f"rank {differing[0]} has other averages than rank 0"
    error = max(float((a - b).abs().max() / (1e-6 + b.abs().max())) for a, b in zip(averages, expected, strict=True))
    largest = driver.run(_max(torch.tensor([error], dtype=torch.float64)))
    return f"averages have a relative error of {largest:.1e}" if not largest < 1e-3 else ""


def _steps(text: str, world: World) -> Program[list[Tensor]]:
    """A few steps with memory, with tensors that any rank can compute for any rank."""
    exchanger = Exchanger([TensorSpec(name, shape) for name, shape in _SHAPES.items()], parse(text))
    averages: list[Tensor] = []
    for step in range(_STEPS):
        generator = torch.Generator().manual_seed(1000 * step + world.rank)
        tensors = {name: torch.randn(shape, generator=generator) for name, shape in _SHAPES.items()}
        averages += (yield from exchanger.run_step(tensors, step, world)).values()
    return averages


def _gather(own: Tensor) -> Program[list[Tensor]]:
    gathered = yield AllGather(Payload((own,)))
    return [payload.parts[0] for payload in gathered]


def _max(number: Tensor) -> Program[float]:
    largest: Tensor = yield AllReduce(number, Op.MAX)
    return float(largest)
