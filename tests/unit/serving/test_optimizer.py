"""The optimizer of a server that a text, the command line or a stored state names."""

import pytest
import torch

import thinwire
from thinwire import checkpoint
from thinwire.cli.main import main
from thinwire.core import CompositionError, ConfigMismatch


def serve(optimizer, **options):
    with thinwire.serve({"w": torch.zeros(2)}, optimizer, block=False, **options) as server:
        return server._server.optimizer


@pytest.mark.parametrize("rounds", [0, 2])
def test_any_optimizer_of_torch_serves(rounds):
    assert serve("rmsprop(lr=0.1)", rounds=rounds) == thinwire.sync.parse_outer_optimizer("rmsprop(lr=0.1)")


def test_two_ways_to_give_a_learning_rate_are_refused(capsys):
    assert main(["serve", "digits", "--optimizer", "adam(lr=0.1)", "--lr", "0.1"]) == 2
    assert "cannot be used with --optimizer" in capsys.readouterr().err


def test_a_state_of_another_optimizer_is_not_resumed(tmp_path):
    serve("adam(lr=0.1)", save=tmp_path)
    assert checkpoint.load(tmp_path)["settings"]["optimizer"] == "adam"
    serve("adam(lr=0.2)", save=tmp_path, resume=True)
    with pytest.raises(ConfigMismatch, match="optimizer: 'sgd' here, 'adam' saved"):
        serve("sgd(lr=0.1)", save=tmp_path, resume=True)
    with pytest.raises(CompositionError, match="did you mean 'adam'"):
        serve("adem()")


def test_a_state_that_names_no_optimizer_is_one_of_sgd(tmp_path):
    serve("sgd(lr=0.1)", save=tmp_path)
    state = checkpoint.load(tmp_path)
    del state["settings"]["optimizer"]
    checkpoint.save(tmp_path, state, step=1)
    serve("sgd(lr=0.2)", save=tmp_path, resume=True)
