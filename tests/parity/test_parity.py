"""Lockstep and real processes do the same: weights to the last bit, bytes to the last byte."""

import pytest
import torch

from helpers.cases import COMPOSITION_TEXTS, STRUCTURE_TEXTS, family_of, one_of_each
from helpers.jobs import LAYERS, table, train, train_all
from thinwire import Exchanger, Meter, World, lockstep, parse

STEPS = 4


def in_lockstep(text, size):
    meters = [Meter() for _ in range(size)]
    exchangers = [Exchanger(LAYERS, parse(text), seed=11) for _ in range(size)]
    digests = lockstep([train(e, World(r, size), STEPS) for r, e in enumerate(exchangers)], meters)
    return [(digest, table(meter)) for digest, meter in zip(digests, meters, strict=True)]


@pytest.mark.parametrize(
    ("size", "texts"),
    [(2, one_of_each(COMPOSITION_TEXTS, family_of)), (3, STRUCTURE_TEXTS[::2]), (4, STRUCTURE_TEXTS[1::2])],
)
def test_every_composition_gives_the_same_weights_and_bytes_on_real_processes(pool, size, texts):
    by_rank = pool.run(size, train_all, texts, STEPS, ordered=True, within_s=100.0)
    for text, real in zip(texts, zip(*by_rank, strict=True), strict=True):
        simulated = in_lockstep(text, size)
        assert [digest for digest, _ in real] == [digest for digest, _ in simulated], text
        for rank, ((_, rows), (_, expected)) in enumerate(zip(real, simulated, strict=True)):
            assert rows.keys() == expected.keys(), (text, rank)
            for where in rows:
                assert rows[where] == pytest.approx(expected[where]), (text, rank, where)


def test_the_backends_own_sums_agree_up_to_rounding_and_on_all_ranks(pool):
    by_rank = pool.run(3, train_all, ["dense()", "randomk(density=0.25)"], STEPS)
    for a, b, c in zip(*by_rank, strict=True):
        assert a[0] == b[0] == c[0]
        assert a[1].keys() == b[1].keys()


def test_a_world_of_one_needs_no_wire(pool):
    ((digest, rows),) = pool.run(1, train_all, ["ef(topk(k=3))"], STEPS)[0]
    ((expected, _),) = in_lockstep("ef(topk(k=3))", 1)
    assert digest == expected
    assert all(sent == received == 0 for *_, sent, received in rows.values())
    assert torch.get_num_threads() == 1
