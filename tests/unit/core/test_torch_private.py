"""Each private API of torch is there and does what its function says; a missing one is an error with name and remedy."""

import inspect
import re
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from thinwire import UnsupportedTorch
from thinwire.core import ThinwireError, torch_private
from thinwire.core.tested import read_tested_versions
from thinwire.core.torch_private import SEEN_IN


class Without:
    """An object of a torch that has none of the private names."""


LACKING = {
    "is_in_backward": (lambda: torch_private.is_in_backward(), "torch._C._current_graph_task_id"),
    "call_after_backward": (
        lambda: torch_private.call_after_backward(print),
        "torch.autograd.Variable._execution_engine",
    ),
    "sparse_values": (lambda: torch_private.sparse_values(Without()), "Tensor._values"),
    "buffers_of": (lambda: torch_private.buffers_of(Without()), "Module._buffers"),
    "has_scaled": (lambda: torch_private.has_scaled(Without()), "GradScaler._scale"),
    "module_inside": (lambda: torch_private.module_inside(compiled_without()), "OptimizedModule._orig_mod"),
    "communication_hooks": (
        lambda: torch_private.communication_hooks(Without()),
        "DistributedDataParallel._comm_hooks",
    ),
    "parameters_of": (
        lambda: torch_private.parameters_of(Without()),
        "DistributedDataParallel._module_parameters",
    ),
    "count_reduced_parameters": (
        lambda: torch_private.count_reduced_parameters(Without()),
        "DistributedDataParallel._get_ddp_logging_data",
    ),
    "awaits_first_static_step": (
        lambda: torch_private.awaits_first_static_step(with_a("static_graph")),
        "DistributedDataParallel._static_graph_delay_allreduce_enqueued",
    ),
    "reducer_of": (lambda: torch_private.reducer_of(Without()), "DistributedDataParallel.reducer"),
    "used_map_of": (lambda: torch_private.used_map_of(with_a("reducer")), "Reducer._get_local_used_map"),
    "parameters_by_bucket": (
        lambda: torch_private.parameters_by_bucket(with_a("reducer")),
        "Reducer._get_zeros_like_grad_buckets",
    ),
    "count_buckets": (lambda: torch_private.count_buckets(with_a("reducer")), "Reducer._get_zeros_like_grad_buckets"),
    "default_store": (lambda: torch_private.default_store(Without()), "distributed_c10d._get_default_store"),
    "dispatch_mode": (lambda: torch_private.dispatch_mode(Without()), "torch.utils._python_dispatch"),
}
NEVER_MISSING = {"steps_in_backward"}  # a mark that torch sets on few parameters


def compiled_without():
    return type("OptimizedModule", (nn.Module,), {"__module__": "torch._dynamo.eval_frame"})()


def with_a(name):
    model = Without()
    setattr(model, name, Without())
    return model


def test_every_function_is_tried_without_its_api():
    here = inspect.getmembers(torch_private, inspect.isfunction)
    public = {name for name, f in here if f.__module__ == torch_private.__name__ and not name.startswith("_")}
    assert public == set(LACKING) | NEVER_MISSING
    assert {api for _, api in LACKING.values()} | {"Parameter._in_backward_optimizers"} == set(SEEN_IN)


@pytest.mark.parametrize("name", LACKING)
def test_a_missing_api_is_named_with_this_torch_and_with_versions_to_install(name, monkeypatch):
    call, api = LACKING[name]
    empty = SimpleNamespace(__version__="2.99.0", _C=Without(), autograd=SimpleNamespace(Variable=Without()))
    monkeypatch.setattr(torch_private, "torch", empty)
    with pytest.raises(UnsupportedTorch) as raised:
        call()
    assert isinstance(raised.value, ThinwireError)
    first, last = SEEN_IN[api]
    text = str(raised.value)
    assert api in text and "torch 2.99.0" in text and f"{first} to {last}" in text
    assert f"pip install 'torch>={first},<" in text


def test_the_error_allows_every_release_in_which_the_api_was_seen(monkeypatch):
    monkeypatch.setitem(SEEN_IN, "Tensor._values", ("2.10", "2.19"))
    with pytest.raises(UnsupportedTorch, match=re.escape("'torch>=2.10,<2.20'")):
        torch_private.sparse_values(Without())


def test_every_api_was_seen_in_every_torch_that_was_tested():
    for each in read_tested_versions():
        release = tuple(map(int, each.torch.split(".")[:2]))
        for api, (first, last) in SEEN_IN.items():
            assert tuple(map(int, first.split("."))) <= release <= tuple(map(int, last.split("."))), (api, each.torch)


def test_a_thread_knows_whether_it_is_in_backward():
    seen = []
    tensor = torch.ones(1, requires_grad=True)
    tensor.register_hook(lambda gradient: seen.append(torch_private.is_in_backward()))
    tensor.sum().backward()
    assert seen == [True] and not torch_private.is_in_backward()


def test_a_callback_is_called_when_gradients_are_there():
    seen = []
    tensor = torch.ones(1, requires_grad=True)
    tensor.register_hook(lambda gradient: torch_private.call_after_backward(lambda: seen.append(tensor.grad)))
    tensor.sum().backward()
    assert seen[0] is tensor.grad is not None


def test_values_of_an_uncoalesced_tensor_share_its_memory():
    rows = torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], (4,), check_invariants=True)
    torch_private.sparse_values(rows).fill_(5.0)
    assert not rows.is_coalesced() and rows.to_dense().tolist() == [0, 10, 0, 0]


def test_buffers_that_are_none_are_among_a_modules_buffers():
    module = nn.BatchNorm1d(3, track_running_stats=False)
    module.register_buffer("mine", torch.zeros(2))
    buffers = torch_private.buffers_of(module)
    assert buffers["running_mean"] is None and buffers["mine"] is module.mine


def test_a_scaler_has_scaled_once_it_has():
    scaler = GradScaler("cpu")
    assert not torch_private.has_scaled(scaler)
    scaler.scale(torch.ones(1))
    assert torch_private.has_scaled(scaler)


def test_a_compiled_module_is_looked_into():
    module = nn.Linear(2, 2)
    assert torch_private.module_inside(torch.compile(module)) is module
    assert torch_private.module_inside(module) is module


@pytest.fixture
def wrapped(tmp_path):
    """A DDP model in a world of one: one frozen parameter, one that DDP ignores."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    module = nn.ModuleDict({name: nn.Linear(3, 3, bias=False) for name in ("first", "frozen", "ignored", "last")})
    module["frozen"].weight.requires_grad_(False)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["ignored.weight"])
    yield DistributedDataParallel(module, find_unused_parameters=True)
    dist.destroy_process_group()


def test_ddp_tells_what_the_functions_ask(wrapped):
    assert [id(p) for p in torch_private.parameters_of(wrapped)] == [
        id(wrapped.module[name].weight) for name in ("first", "frozen", "last")
    ]
    assert torch_private.count_reduced_parameters(wrapped) == 2
    assert torch_private.count_buckets(wrapped) >= 1
    bucketed = {id(p) for bucket in torch_private.parameters_by_bucket(wrapped) for p in bucket}
    assert bucketed == {id(wrapped.module[name].weight) for name in ("first", "last")}
    assert not torch_private.awaits_first_static_step(wrapped)
    assert torch_private.communication_hooks(wrapped) == []
    assert not any(map(torch_private.steps_in_backward, wrapped.parameters()))
    assert torch_private.used_map_of(wrapped)().numel() == 2
    torch_private.default_store(dist.distributed_c10d).set("key", "value")


def test_ddp_tells_whether_the_first_step_of_a_static_graph_was_made(wrapped):
    model = DistributedDataParallel(nn.Linear(3, 3), static_graph=True)
    assert torch_private.awaits_first_static_step(model)
    model(torch.ones(1, 3)).sum().backward()
    assert not torch_private.awaits_first_static_step(model)


def test_ddp_remembers_its_hook(wrapped):
    def hook(state, bucket):
        raise NotImplementedError

    wrapped.register_comm_hook("state", hook)
    assert torch_private.communication_hooks(wrapped) == [(hook, "state")]
