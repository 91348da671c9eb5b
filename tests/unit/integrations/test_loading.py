"""States and compositions that differ: `change`, `load_state_dict(strict=...)`, a forgotten state, torch's checkpoints."""

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

import thinwire
from helpers import state_jobs as jobs
from thinwire import CheckpointError, World, load_dcp
from thinwire.integrations.torch_checkpoint import read_dcp

EF = "ef(topk(density=0.05))"


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ('ef(topk(density=0.05), residual_dtype="int8")', EF, 1e-6),
        (EF, 'ef(topk(density=0.05), residual_dtype="int8")', 1 / 127),
        (EF, 'ef(topk(density=0.05), residual_dtype="bf16")', 1 / 127),
        ('ef(topk(density=0.05), residual_dtype="bf16")', EF, 1e-6),
        ("switch(ef(topk(density=0.05)), ef(qsgd()))", "ef(powersgd(rank=1))", 1e-6),
        (EF, "switch(dense(), ef(topk(density=0.1)))", 1e-6),
        ("adapt(ef(topk(density=0.05)), controller=lgreco())", "ef(topk(density=0.05))", 1e-6),
        (EF, "adapt(ef(topk(density=0.05)), controller=accordion())", 1e-6),
        ("dgc(topk(density=0.05))", "dgc(topk(density=0.1))", 1e-6),
    ],
)
def test_change_keeps_what_was_not_sent_in_every_form_and_place(pool, before, after, share):
    for owed, kept, dropped, _ in pool.run(1, jobs.change, before, after):
        assert not [text for text in dropped if "residual" in text]
        assert owed and owed.keys() == kept.keys()
        for name in owed:
            assert float((owed[name] - kept[name]).abs().max()) <= share * float(owed[name].abs().max())


def test_change_keeps_dgcs_velocity(pool):
    ((owed, kept, dropped, _),) = pool.run(
        1, jobs.change, "dgc(topk(density=0.05))", "dgc(topk(density=0.1))", "velocity"
    )
    assert dropped == [] and owed.keys() == kept.keys()
    assert all(torch.equal(owed[name], kept[name]) for name in owed)


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (EF, "ef21(topk(density=0.05))", "residual"),
        ("dgc(topk(density=0.05))", EF, "velocity"),
        (EF, "dense()", "residual"),
    ],
)
def test_what_change_drops_is_returned_and_logged(pool, before, after, what):
    for _, _, dropped, texts in pool.run(2, jobs.change, before, after):
        assert len(dropped) == 1 and f"'s {what} of" in dropped[0] and "second.weight" in dropped[0]
        assert len(texts) == 1 and texts[0].endswith(f": set_composition: {dropped[0]}")


def test_change_keeps_importance_and_the_mapping_that_a_refresher_fills(pool):
    assert pool.run(1, jobs.change_importance) == [([], ["second.weight", "third.weight"])]


@pytest.mark.parametrize("after", ("ef(topk(density=0.1))", "ef21(topk(density=0.05))"))
def test_a_state_of_another_composition_is_refused_with_both_names_and_the_remedy(pool, after):
    for kind, text in pool.run(2, jobs.load_another, EF, after, True):
        assert kind == "ConfigMismatch"
        assert f"was {EF}, here it is {after}" in text and "strict=False" in text


def test_not_strict_takes_over_what_fits_and_says_what_it_drops(pool):
    for dropped, texts, apart, step in pool.run(2, jobs.load_another, "dgc(topk(density=0.05))", EF, False):
        assert len(dropped) == 1 and "DGC's velocity" in dropped[0] and apart == 0 and step == 4
        assert len(texts) == 1 and texts[0].endswith(f": load_state_dict: {dropped[0]}")
    for dropped, _, apart, _ in pool.run(2, jobs.load_another, EF, 'ef(qsgd(), residual_dtype="int8")', False):
        assert dropped == [] and 0 < apart < 0.1
    for dropped, _, apart, _ in pool.run(2, jobs.load_another, EF, EF, False):
        assert dropped == [] and apart == 0


def test_a_state_that_does_not_name_its_composition_still_loads(pool):
    assert pool.run(2, jobs.load_without_a_name) == [True, True]


def test_states_that_are_none_are_refused_by_name(pool):
    for told in pool.run(1, jobs.load_odd_states):
        assert {kind for kind, _ in told.values()} == {"CheckpointError"}, told
        assert "not the state of a handle" in told["empty"][1] and "first.weight" in told["model"][1]
        assert "lacks paused" in told["no paused"][1] and "lacks layers" in told["no layers"][1]
        assert "3 ranks" in told["other size"][1] and "gather=True" in told["other size"][1]


@pytest.mark.parametrize("kind", ("adam", "sgd"))
def test_resuming_without_the_handles_state_is_told_once(pool, kind):
    for first, told in pool.run(2, jobs.resume_without_the_handle, kind, False):
        assert first == [] and len(told) == 1
        assert "load_state_dict" in told[0] and "resumed" in told[0] and "compression starts" in told[0]
    assert pool.run(1, jobs.resume_without_the_handle, kind, True) == [[[], []]]
    assert pool.run(1, jobs.resume_without_the_handle, kind, False, "qsgd()") == [[[], []]]  # nothing to lose


@pytest.mark.parametrize(("before", "after"), ((4, 2), (2, 4), (3, 1)))
@pytest.mark.parametrize("composition", (EF, 'ef(qsgd(bits=4), residual_dtype="int8")'))
def test_torchs_checkpoints_serve_another_number_of_ranks(pool, tmp_path, composition, before, after):
    saved = pool.run(before, jobs.save_dcp, composition, str(tmp_path))
    loaded = pool.run(after, jobs.load_dcp, composition, str(tmp_path))
    assert [(step, dropped) for _, step, dropped in loaded] == [(4, [])] * after
    exact = "int8" not in composition
    for name in saved[0]:
        old = sum(one[name] for one in saved) / before
        new = sum(kept[name] for kept, _, _ in loaded) / after
        size = float(old.abs().max())
        assert float((new - old).abs().max()) <= (1e-6 if exact else 1 / 127) * size


@pytest.mark.parametrize("gathered", (False, True), ids=("shards", "all ranks, of older versions"))
def test_torchs_checkpoint_of_as_many_ranks_gives_each_its_own_back(pool, tmp_path, gathered):
    saved = pool.run(3, jobs.save_dcp, EF, str(tmp_path), gathered)
    loaded = pool.run(3, jobs.load_dcp, EF, str(tmp_path))
    for before, (kept, step, dropped) in zip(saved, loaded, strict=True):
        assert (step, dropped) == (4, []) and before.keys() == kept.keys()
        assert all(torch.equal(before[name], kept[name]) for name in before)
    for size, ranks in ((3, {"rank1"}), (2, {"rank0", "rank1", "rank2"})):
        read = read_dcp(tmp_path, "thinwire", World(1, size))
        assert {key for key in read if key.startswith("rank")} == ranks and read["world_size"] == 3


def test_each_rank_writes_its_own_state_to_torchs_checkpoint(pool, tmp_path):
    pool.run(2, jobs.save_dcp, EF, str(tmp_path))
    metadata = FileSystemReader(tmp_path).read_metadata()
    files = {index.fqn: info.relative_path for index, info in metadata.storage_data.items()}
    for rank in range(2):
        own = {path for name, path in files.items() if name.startswith(f"thinwire.rank{rank}.")}
        assert len(own) == 1 and own.pop().startswith(f"__{rank}_")


def test_torchs_own_loading_refuses_another_number_of_ranks(pool, tmp_path):
    pool.run(2, jobs.save_dcp, EF, str(tmp_path))
    for kind, text in pool.run(3, jobs.load_by_torch, EF, str(tmp_path)):
        assert kind == "CheckpointException" and "Missing key" in text
    for kind, text in pool.run(1, jobs.load_by_torch, EF, str(tmp_path)):
        assert kind == "CheckpointError" and "memory of rank 1 is missing" in text and "thinwire.load_dcp" in text


def test_torchs_checkpoint_that_one_rank_cannot_read_is_refused_on_all(pool, tmp_path):
    pool.run(2, jobs.save_dcp, EF, str(tmp_path))
    outcomes = pool.run(2, jobs.load_dcp_elsewhere, EF, [str(tmp_path), str(tmp_path / "nowhere")])
    assert [kind for kind, _ in outcomes] == ["CheckpointError"] * 2
    assert "rank 1 could not load a state" in outcomes[0][1] and "cannot read" in outcomes[0][1]


def test_torchs_checkpoint_of_another_composition_or_place_is_told(pool, tmp_path):
    pool.run(2, jobs.save_dcp, EF, str(tmp_path))
    for kind, text in pool.run(2, jobs.load_dcp, "ef21(topk(density=0.05))", str(tmp_path)):
        assert kind == "ConfigMismatch" and "strict=False" in text
    for _, step, dropped in pool.run(2, jobs.load_dcp, 'ef(qsgd(), residual_dtype="int8")', str(tmp_path), False):
        assert step == 4 and dropped == []
    for kind, text in pool.run(1, jobs.load_dcp, EF, str(tmp_path), True, "handles"):
        assert kind == "CheckpointError" and "'handles'" in text and "model, thinwire" in text
    model = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match=r"cannot read a torch\.distributed\.checkpoint"):
        load_dcp(thinwire.local(model, torch.optim.SGD(model.parameters(), lr=0.1), sync_every=2), tmp_path / "nowhere")
