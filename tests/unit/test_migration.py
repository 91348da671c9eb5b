"""Names in stored states and texts from before format 2."""

import json
from pathlib import Path

import pytest
import torch

from thinwire import checkpoint, parse, renamed
from thinwire.checkpoint.migration import migrate_text

STORED = Path(__file__).parent.parent / "data" / "stored"


def exchanger_state(layer, controller=None):
    plans = {"steps": torch.zeros(1), "entries": torch.zeros(1, 1)}
    return {"plan": {"w": 0}, "plans": plans, "controller": controller or {}, "layers": {"w": layer}, "lr": 0.0}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"local": 1, "shared": 2}, {"own_estimate": 1, "mean_estimate": 2}),
        ({"residual": 0, "inner.local": 1, "inner.shared": 2}, {"residual": 0, "inner.own_estimate": 1, "inner.mean_estimate": 2}),
        ({"own": 1, "mixed": 2}, {"own_estimate": 1, "mixed_estimate": 2}),
        ({"entries.0.residual": 1, "entries.1.local": 2, "entries.1.shared": 3}, {"states.0.residual": 1, "states.1.own_estimate": 2, "states.1.mean_estimate": 3}),
        ({"local": 1}, {"local": 1}),  # of a part that we do not know
        ({"residual": 1, "inner.right": 2}, {"residual": 1, "inner.right": 2}),
    ],
)  # fmt: skip
def test_fields_of_layers_have_their_new_names(old, new):
    assert checkpoint.migrate(exchanger_state(old))["layers"]["w"] == new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"begun": 5, "counts": 1, "sums.0": 2, "own.entries": 3}, {"num_exchanges": 5, "counts": 1, "sums.0": 2, "extra.defaults": 3}),
        ({"begun": 5, "own.lr": 1, "own.old": 2}, {"num_exchanges": 5, "extra.lr": 1, "extra.norms": 2}),
        ({"begun": 5, "own.timing.entries": 1, "own.timing.verdict": 2}, {"num_exchanges": 5, "extra.timing.options": 1, "extra.timing.status": 2}),
        ({"begun": 5, "own.reference.q": 1}, {"num_exchanges": 5, "extra.defaults_state.q": 1}),
        ({"0.begun": 5, "1.begun": 6, "1.own.old": 7}, {"0.num_exchanges": 5, "1.num_exchanges": 6, "1.extra.norms": 7}),
        ({"seen": 1, "own": 2}, {"seen": 1, "own": 2}),  # of a controller that we do not know
    ],
)  # fmt: skip
def test_fields_of_controllers_have_their_new_names(old, new):
    assert checkpoint.migrate(exchanger_state({}, old))["controller"] == new


def test_a_state_is_found_at_any_depth_and_a_present_one_stays_as_it_is():
    old = {"step": 3, "deep": [{"wire": exchanger_state({"local": 1, "shared": 2})}, (1, "x")]}
    new = checkpoint.migrate(old)
    assert new["deep"][0]["wire"]["layers"]["w"] == {"own_estimate": 1, "mean_estimate": 2}
    assert "options" in new["deep"][0]["wire"]["plans"] and new["deep"][1] == (1, "x") and new["step"] == 3
    assert repr(checkpoint.migrate(new)) == repr(new)
    assert old["deep"][0]["wire"]["layers"]["w"] == {"local": 1, "shared": 2}


@pytest.mark.parametrize("old", renamed.PARTS)
def test_every_renamed_part_is_translated_in_texts(old):
    assert migrate_text(f"ef({old}(k=1), x={old}())") == f"ef({renamed.PARTS[old]}(k=1), x={renamed.PARTS[old]}())"


@pytest.mark.parametrize("old", renamed.SETTINGS)
def test_every_renamed_setting_is_translated_in_texts(old):
    part, _, setting = old.partition(".")
    assert migrate_text(f"{part}(1, {setting}=2)") == f"{part}(1, {renamed.SETTINGS[old]}=2)"


def test_texts_of_a_handle_are_translated():
    old = 'switch(ef(topk(k=1), residual="bf16"), by=lgreco(steps=9, look_at="pure", statistics="one"))'
    new = 'switch(ef(topk(k=1), residual_dtype="bf16"), controller=lgreco(error_levels=9, observed="gradient", errors_from="rank0"))'
    state = {"world_size": 2, "composition": {"w": old, "v": "greedy(k=2, weights='normalised')", "u": "no (text"}}
    texts = checkpoint.migrate(state)["composition"]
    assert texts == {"w": new, "v": 'importance_topk(k=2, weights="normalized")', "u": "no (text"}
    parse(texts["w"])
    assert checkpoint.migrate({"composition": {"w": old}}) == {"composition": {"w": old}}  # no state of a handle


def test_format_2_is_written_and_format_1_is_read_and_translated(tmp_path):
    path = checkpoint.save(tmp_path, {"x": torch.ones(2)}, step=1)
    assert json.loads((path / "manifest.json").read_text())["format"] == 2
    layers = checkpoint.load(STORED / "ef21")["states"]["0"]["layers"]
    assert sorted(layers["w"]) == ["mean_estimate", "own_estimate"]
    old = exchanger_state({"local": torch.ones(1), "shared": torch.ones(1)})
    checkpoint.save(tmp_path, old, step=2)
    assert sorted(checkpoint.load(tmp_path)["layers"]["w"]) == ["local", "shared"]  # format 2 is not translated
