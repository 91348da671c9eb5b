import pytest
import torch

from thinwire_lab.configuration.config import OptimizerConfig
from thinwire_lab.running.optimizers import learning_rate_at, make_optimizer


def stepped(name, gradients, **settings):
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0, 0.5]))
    optimizer = make_optimizer(OptimizerConfig(name, **settings), [parameter], 0.1)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    return parameter.detach()


def test_a_cautious_step_is_adamws_where_all_of_it_goes_down():
    one = [[0.3, -0.2, 0.1, 0.4]]
    torch.testing.assert_close(stepped("cadamw", one, weight_decay=0.1), stepped("adamw", one, weight_decay=0.1))


def test_a_cautious_step_leaves_out_what_goes_against_the_gradient_and_makes_up_for_it():
    turn = [[1.0, 1.0, 1.0, 1.0], [-0.1, 1.0, 1.0, 1.0]]  # the moment of the first still points down
    before, cautious, plain = stepped("cadamw", turn[:1]), stepped("cadamw", turn), stepped("adamw", turn)
    assert cautious[0] == before[0] != plain[0]
    torch.testing.assert_close(cautious[1:] - before[1:], (plain[1:] - before[1:]) / 0.75)


def test_rates_follow_their_schedule():
    assert learning_rate_at(0, 100, 1.0, "constant", 4) == 0.25 and learning_rate_at(50, 100, 1.0, "constant", 4) == 1.0
    assert learning_rate_at(0, 100, 1.0, "cosine", 0) == 1.0 and learning_rate_at(
        50, 100, 1.0, "cosine", 0
    ) == pytest.approx(0.5)
