"""Laws of memories: states of another number of ranks, refused messages, servers. Those of change() stand beside."""

from __future__ import annotations

import pytest
import torch

from helpers.cases import draw
from helpers.memory_cases import LAYERS, MEMORIES, OBJECTS, composed, mass, slack, train, trained
from helpers.own_memory import Late
from thinwire import Exchanger, World, catalog, parse
from thinwire.aggregators import GatherMean, SumMean
from thinwire.compressors import TopK
from thinwire.core import (
    IncompatibleParts,
    Memory,
    SendForm,
    SendsToServer,
    cast_saturating,
    flatten_state,
    loopback,
    parts_of,
)
from thinwire.feedback import EF21
from thinwire.sync.optimizers import SGD
from thinwire.sync.server import GradientServer
from thinwire.sync.uplink import UpdateDecoder, Uplink, uplink_form, worker_seed
from thinwire.sync.worker import GradientWorker

METHODS = ("target", "hand_over", "adopt", "merge", "give_back")
KEEP_DIFFERENCES = ("ef21(topk(density=0.05))", "ef21(qsgd())", "switch(ef21(topk(density=0.05)), dgc(topk(density=0.05)))")  # fmt: skip
KEEP_NOTHING = ("topk(density=0.05)", "dense()", "switch(dense, late(topk))")  # by the plan at the start
WITH_SERVERS = [
    text
    for text in MEMORIES
    if not any(part in text for part in ("switch", "adapt", "scheduled", "powersgd", "flatten"))
]

MERGED = [
    text.replace("lgreco(every=2, start=1, window=1, error_levels=100)", "accordion(every=2)") for text in MEMORIES
]


def tensors(seed):
    return {spec.name: draw("gaussian", spec.shape, spec.dtype, seed=seed) for spec in LAYERS}


def test_a_part_with_one_method_of_the_protocol_has_them_all():
    for kind in catalog.PARTS.values():
        assert any(hasattr(kind, name) for name in METHODS) == issubclass(kind, Memory), kind
    assert all(issubclass(kind, Memory) for kind in (*catalog.MEMORIES.values(), Late))


@pytest.mark.parametrize("text", MERGED)
def test_the_merged_memory_owes_the_mean_of_what_all_ranks_owed(text):
    workers = trained(text, size=3)
    merged = workers[0].merge_states([worker.state_dict() for worker in workers])
    one = Exchanger(LAYERS, composed(text), seed=3)
    one.load_state_dict(merged)
    for kind in ("residual", "velocity", "estimate"):
        owed, now = [mass(worker, kind) for worker in workers], mass(one, kind)
        for name, mean in now.items():
            all_owed = torch.stack([each[name].double() for each in owed])
            assert (mean.double() - all_owed.mean(0)).abs().max() <= slack(text, all_owed), (kind, name)
    pair = [one, Exchanger(LAYERS, composed(text), seed=3)]
    pair[1].load_state_dict(merged)
    train(pair, [4])


@pytest.mark.parametrize("text", MERGED)
def test_ranks_that_hold_the_same_hold_it_after_a_merge(text):
    (worker, _) = trained(text)
    state = worker.state_dict()
    merged = worker.merge_states([state, state])
    if "int8" in text:  # encoded anew: with the same scales, up to rounding
        return
    for name, flat in state["layers"].items():
        assert all(
            torch.equal(torch.as_tensor(merged["layers"][name][key]), torch.as_tensor(flat[key])) for key in flat
        )


@pytest.mark.parametrize("text", [text for text in MERGED if text not in KEEP_DIFFERENCES + KEEP_NOTHING])
def test_after_a_refused_message_the_layer_would_send_what_it_would_have_sent(text):
    (worker, _), refused = trained(text), tensors(77)
    wanted = worker.targets(refused, World(0, 2))
    worker.give_back(refused, 4, World(0, 2))
    nothing = {name: torch.zeros_like(tensor) for name, tensor in refused.items()}
    for name, target in worker.targets(nothing, World(0, 2)).items():
        assert (target - wanted[name]).abs().max() <= 4 * slack(text, wanted[name]), name


@pytest.mark.parametrize("text", KEEP_DIFFERENCES + KEEP_NOTHING)
def test_who_sends_differences_says_them_again_and_who_keeps_nothing_has_no_place(text):
    (worker, _), refused = trained(text), tensors(77)
    before = {name: flatten_state(state) for name, state in worker.states.items()}
    worker.give_back(refused, 4, World(0, 2))
    for name, flat in before.items():
        now = flatten_state(worker.states[name])
        assert all(torch.equal(torch.as_tensor(now[key]), torch.as_tensor(flat[key])) for key in flat)


@pytest.mark.parametrize(
    "text", [*WITH_SERVERS, "qsgd(bits=4)", "ef(natural())", 'ef(topk(density=0.1, values="bf16"))']
)
def test_a_server_reads_what_the_composition_would_give_in_process(text):
    part = composed(text)
    worker, server = Uplink(LAYERS, part, "w", seed=5), UpdateDecoder(LAYERS, part, seed=5)
    twin = Exchanger(LAYERS, part, seed=worker_seed(5, "w"))
    for step in range(5):
        payload = worker.encode(tensors(step), step)
        read = server.read(payload, "w", step)
        server.commit("w", read)
        worker.settle(is_accepted=True)
        values = loopback(twin.run_step(tensors(step), step, World(0, 1)))
        for spec in LAYERS:
            assert torch.equal(cast_saturating(read[spec.name], spec.dtype), values[spec.name]), (step, spec.name)
    for name, state in twin.states.items():
        ours, theirs = flatten_state(state), flatten_state(worker.exchanger.states[name])
        assert all(torch.equal(torch.as_tensor(ours[key]), torch.as_tensor(theirs[key])) for key in ours)


def test_payloads_that_are_added_among_ranks_are_gathered_for_a_server():
    way = uplink_form(parse("ef(randomk(density=0.1))"))
    assert any(isinstance(part, SumMean) for part in parts_of(parse("ef(randomk(density=0.1))")))
    assert way.worker == parse("ef(gather(randomk(density=0.1)))") and isinstance(way.worker.inner, GatherMean)


@pytest.mark.parametrize("text", [text for text in MEMORIES if text not in WITH_SERVERS])
def test_what_needs_all_ranks_says_so_by_name(text):
    names = [type(part).__name__ for part in parts_of(composed(text))]
    with pytest.raises(
        IncompatibleParts, match=r"(Switch|Adapt|DensitySchedule|PowerSGD|Flatten) needs answers of all ranks"
    ) as error:
        uplink_form(composed(text))
    assert str(error.value).partition(" ")[0] in names


def test_a_memory_of_another_package_trains_with_a_server():
    """With every coordinate sent at last, the server's model is where plain steps with the same gradients end."""
    weights = {"w": torch.zeros(12)}
    part = Late(GatherMean(TopK(k=2)))
    server = GradientServer(weights, SGD(0.5), part, workers=1)
    worker = GradientWorker("w0", server.layers, part)
    worker.handle_welcome(server.handle(worker.join(), 0.0))
    for step in range(12):
        assert worker.begin(server.handle(worker.pull(), 0.0))
        gradient = {"w": torch.arange(12.0) - 4} if step < 4 else {"w": torch.zeros(12)}
        assert worker.settle(server.handle(worker.push(gradient), 0.0))
    assert (
        server.decoder.text.startswith("helpers.own_memory.Late(")
        and not worker.uplink.exchanger.states["w"].waits.any()
    )
    assert torch.equal(server.weights["w"], -0.5 * 4 * (torch.arange(12.0) - 4))


@pytest.mark.parametrize("text", ["late(ef21(topk))", "ef(ef21(topk(density=0.1)))"])
def test_a_worker_whose_server_lost_its_estimate_keeps_what_it_owes(text):
    worker = Uplink(LAYERS, composed(text), "w")
    for step in range(3):
        worker.encode(tensors(step), step)
        worker.settle(is_accepted=True)
    owed = mass(worker.exchanger, "residual")
    worker.reset()
    assert any(bool(one.any()) for one in owed.values())
    for name, residual in mass(worker.exchanger, "residual").items():
        assert torch.equal(residual, owed[name])
        assert not mass(worker.exchanger, "estimate")[name].any()


class Closed:
    """A part whose inside cannot be looked at, with an estimate of its own at the server."""

    def init(self, spec, key):
        return ()

    def reduce(self, tensor, spec, state, ctx):
        raise NotImplementedError

    def send_form(self):
        return SendForm(None, lambda sender: sender, sends_differences=True)


def test_one_estimate_of_a_worker_is_enough():
    with pytest.raises(IncompatibleParts, match="EF21 inside EF21"):
        uplink_form(EF21(Closed()))


def test_the_objects_are_no_parts_of_the_catalog():
    assert all(Late not in catalog.NAMES for _ in OBJECTS) and isinstance(OBJECTS["late(topk)"], SendsToServer)
