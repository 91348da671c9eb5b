"""Layers on a device are copied through the CPU; the user hears of it once."""

import pytest
import torch

from helpers import report_jobs as jobs
from thinwire.core import AllGather, AllReduce, Label, Payload, World, format_bytes
from thinwire.core.tensors import TensorSpec
from thinwire.drivers.meter import Meter
from thinwire.integrations.device_copies import count_copied_bytes, format_copy_warning

HERE = [TensorSpec("a", (4, 4))]
THERE = [*HERE, TensorSpec("b", (4, 4), torch.float32, torch.device("cuda", 1))]


@pytest.mark.parametrize("backend", ("gloo", "nccl"))
def test_layers_on_the_cpu_need_no_warning(backend):
    assert format_copy_warning(HERE, backend, 1e6, 1e6) is None


def test_the_warning_has_device_backend_and_bytes():
    text = format_copy_warning(THERE, "nccl", 3.25e6, 2e6)
    for word in ("cuda:1", "nccl", "every step", "3.25 MB from the device", "2 MB back"):
        assert word in text
    assert "process group" not in format_copy_warning(THERE, "gloo", 1.0, 1.0)


def test_copied_bytes_are_those_of_layers():
    meter, world, part = Meter(), World(0, 3), torch.zeros(10)
    meter.record(AllReduce(part, labels=(Label("a", "values", 40, 320.0),)), world, 53, 53, 9, 9)
    meter.record(AllGather(Payload((part,)), (Label("b", "values", 40, 320.0),)), world, 80, 80, 9, 9)
    meter.record(AllGather(Payload((part,)), (Label("", "settings", 40, 320.0),)), world, 80, 80, 9, 9)
    assert count_copied_bytes(meter) == (80, 40 + 80)


def test_attach_and_local_warn_once(pool):
    dense = 4 * (32 * 40 + 40 + 2 * (40 * 40 + 40) + 40 * 4 + 4)
    for attached, local in pool.run(2, jobs.copies):
        assert len(attached) == len(local) == 1
        assert f"every step copies about {format_bytes(dense)}" in attached[0] and "cuda:0" in attached[0]
        assert f"every round copies about {format_bytes(dense)}" in local[0]
