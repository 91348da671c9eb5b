"""The optimizer of a server that the command line or a stored state names."""

import pytest
import torch

from thinwire import checkpoint
from thinwire.cli.main import main
from thinwire.core import CompositionError, ConfigMismatch
from thinwire.experiments import served
from thinwire.experiments.served import Service, Terms
from thinwire.experiments.stored import Storage
from thinwire.sync import parse_outer


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_text_replaces_the_usual_optimizer(rounds):
    service, weights = Service("digits", rounds=rounds), {"w": torch.zeros(2)}
    given = served._machine(service, Terms(optimizer="rmsprop(lr=0.1)"), weights)
    usual = served._machine(service, Terms(lr=0.3, momentum=0.5), weights)
    assert given.optimizer == parse_outer("rmsprop(lr=0.1)")
    assert usual.optimizer == parse_outer("sgd(lr=1.0)" if rounds else "sgd(lr=0.3, momentum=0.5)")


def test_two_ways_to_give_a_learning_rate_are_refused(capsys):
    assert main(["serve", "digits", "--optimizer", "adam(lr=0.1)", "--lr", "0.1"]) == 2
    assert "--optimizer has its own" in capsys.readouterr().err


def test_a_state_of_another_optimizer_is_not_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(served.Company, "is_over", lambda company, now: True)
    serve = lambda optimizer, **how: served.serve(  # noqa: E731
        Service("digits"), Terms(optimizer=optimizer), "127.0.0.1:0", storage=Storage(tmp_path, **how)
    )
    serve("adam(lr=0.1)")
    assert checkpoint.load(tmp_path)["settings"]["optimizer"] == "adam"
    serve("adam(lr=0.2)", resume=True)
    with pytest.raises(ConfigMismatch, match="optimizer: 'sgd' here, 'adam' stored"):
        serve("sgd(lr=0.1)", resume=True)
    with pytest.raises(CompositionError, match="did you mean 'adam'"):
        serve("adem()", start_over=True)
