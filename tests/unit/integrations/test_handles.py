"""Handles of `attach`: closures, parts of one's own, a second attach, wrappers, and warnings."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import thinwire
from helpers import options_jobs as jobs
from thinwire import CompositionError
from thinwire.integrations.wrappers import find_ddp, find_plain_module


@pytest.mark.parametrize("kind", ("SGD", "Adam", "LBFGS"))
def test_a_bad_step_inside_a_closure_changes_no_weight(pool, kind):
    for same, finite, learns, skipped in pool.run(2, jobs.spoil_in_closure, kind, 0):
        assert same and finite and learns and skipped == 1


def test_a_bad_later_evaluation_of_lbfgs_does_no_harm(pool):
    for same, finite, learns, skipped in pool.run(2, jobs.spoil_in_closure, "LBFGS", 1):
        assert not same and finite and learns and skipped == 1


def test_a_bare_compressor_travels_as_its_text_does(pool):
    for digests in pool.run(2, jobs.bare_compressor):
        assert len(set(digests)) == 1


def test_a_part_of_ones_own_is_carried_and_reported(pool):
    (first, report), (second, _) = pool.run(2, jobs.own_parts)
    assert first == second and "helpers.options_jobs.OwnTopK" in report


def test_ranks_compare_parts_of_ones_own(pool):
    told = pool.run(2, jobs.said_of_own_parts)
    for kind, text in told:
        assert kind == "ConfigMismatch" and "OwnTopK(" in text and "extra=1.5" in text


def test_a_part_that_ranks_cannot_compare_is_refused_with_the_remedy(pool):
    for kind, text in pool.run(1, jobs.own_part_without_signature):
        assert kind == "CompositionError" and "helpers.options_jobs.Undescribed" in text and "signature()" in text


def test_a_handle_closes_at_the_end_of_its_with_block_and_leaves_plain_ddp(pool):
    (text, warned, steps, weights), other = pool.run(2, jobs.close_at_the_end_of_with)
    assert "detached" in text and (warned, steps) == (0, 1) and other[3] == weights


def test_an_old_handle_knows_that_it_was_replaced(pool):
    for errors, report, told, steps, after, last in pool.run(2, jobs.two_handles, within_s=30.0):
        for (kind, text), method in zip(
            errors, ("pause", "resume", "set_composition", "state_dict", "load_state"), strict=True
        ):
            assert kind == "ClosedError" and text.startswith(method)
            assert "this handle was detached by a second attach" in text
        assert report == 1 and len(told) == 1 and "stays with the newer handle" in told[0]
        assert steps == 2, "the newer handle carries the gradients"
        assert after[0] == "ClosedError" and "this handle was detached" in after[1]
        assert last == 2


WRAPPED = {
    "plain": "got Net, a plain module: wrap it first, DistributedDataParallel(model)",
    "compiled plain": "got torch.compile of Net, a plain module",
    "fsdp2": "sharded (FSDP2, fully_shard)",
    "replicate": "composable replicate() has changed in place; use DistributedDataParallel",
    "mixed precision": "mixed_precision=..., which uses the only communication hook",
    "in backward": "steps inside backward",
    "own hook": "already has a communication hook (allreduce_hook)",
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_attach_says_what_a_model_is_and_what_to_do(pool, kind):
    if kind == "mixed precision" and torch.version.cuda and not torch.cuda.is_available():
        pytest.skip("DDP with mixed_precision asks a CUDA build of torch for a stream, which needs a GPU")
    ((name, text),) = pool.run(1, jobs.wrapped, kind)
    assert name == "CompositionError" and text.startswith("attach: ") and WRAPPED[kind] in text


def test_a_compiled_ddp_model_is_taken_as_it_is(pool):
    (first, steps), (second, _) = pool.run(2, jobs.attach_compiled, within_s=100.0)
    assert first == second and steps == 3


def stub(name, module, base=nn.Module):
    return type(name, (base,), {"__module__": module})


FRAMEWORKS = [
    ("_FabricModule", "lightning.fabric.wrappers", 'a Lightning Fabric wrapper; use Fabric(strategy="ddp"), then'),
    ("LightningModule", "lightning.pytorch.core.module", "trainer.strategy.model in a callback's on_fit_start"),
    ("DeepSpeedEngine", "deepspeed.runtime.engine", "DeepSpeed's DeepSpeedEngine, which averages gradients itself"),
    ("DataParallel", "torch.nn.parallel.data_parallel", "runs in one process"),
    ("FullyShardedDataParallel", "torch.distributed.fsdp.fully_sharded_data_parallel", "sharded (FSDP, "),
]


@pytest.mark.parametrize(("name", "module", "told"), FRAMEWORKS)
def test_frameworks_are_known_by_their_classes(name, module, told):
    framework = stub(name, module)
    for model in (framework(), stub("Mine", "script", framework)()):
        with pytest.raises(CompositionError) as caught:
            find_ddp(model)
        assert told in str(caught.value)
        if name in ("LightningModule", "DataParallel"):
            assert find_plain_module(model) is model
        else:
            with pytest.raises(CompositionError, match="local: model must be a plain module"):
                find_plain_module(model)


def test_what_is_no_module_is_told_so():
    with pytest.raises(CompositionError, match=r"got list, which is not a torch.nn.Module"):
        thinwire.attach([], "dense()")
    with pytest.raises(CompositionError, match=r"local: model must be a torch.nn.Module, got list"):
        find_plain_module([])


def test_attach_warns_once_of_a_biased_part_without_a_memory(pool):
    quiet = ["ef(topk(density=0.05))", "qsgd()", "dense()", 'cast(dtype="fp16")', "uniform()", "ef(powersgd(rank=2))"]
    loud = ["topk(density=0.05)", "powersgd(rank=2)", "threshold(tau=0.1)", "ef21(qsgd())"]
    first, second = pool.run(2, jobs.warned, [*quiet, *loud])
    assert second == [[]] * 10, "rank 0 speaks for all"
    assert first[: len(quiet)] == [[]] * len(quiet)
    for composition, told in zip(loud, first[len(quiet) :], strict=True):
        ((text, file),) = told
        assert file == "options_jobs.py", "the warning points at the caller"
        assert f"ef({composition})" in text or (composition == "ef21(qsgd())" and "use ef(qsgd())" in text)


@pytest.mark.parametrize(
    "composition", ("ef21(randomk(density=0.1))", "ef21(ternary())", "ef21(flatten(randomk(k=5)))")
)
def test_ef21_around_what_is_no_contraction_is_refused(pool, composition):
    (found, *_), *_ = pool.run(1, jobs.refused, [{"composition": composition}])
    ((kind, text),) = found
    assert kind == "IncompatibleParts" and "EF21 needs a contraction" in text and "use ef(" in text


def test_importing_thinwire_adds_no_hooks_to_optimizers():
    code = (
        "import thinwire.api, thinwire.integrations.ddp_hook_slot\n"
        "from torch.optim import optimizer\n"
        "assert not optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_pre_hooks\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
