"""How fast each topology mixes, and what is special to it; the laws of all are in tests/contracts/test_topologies.py."""

import math

import pytest
import torch

from thinwire import CompositionError, World
from thinwire.core import neighbors_of
from thinwire.topologies import (
    Exponential,
    Hypercube,
    Matrix,
    Ring,
    Rotating,
    Star,
    Torus,
    mixing_matrix,
    mixing_rate,
    spectral_gap,
)
from thinwire.topologies.torus import grid_shape


@pytest.mark.parametrize("size", range(3, 70))
def test_the_gap_of_a_ring_is_the_known_formula(size):
    assert spectral_gap(mixing_matrix(Ring(), size)) == pytest.approx(2 / 3 * (1 - math.cos(2 * math.pi / size)))


def test_small_rings_are_averages():
    assert mixing_matrix(Ring(), 1).tolist() == [[1.0]]
    assert mixing_matrix(Ring(), 2).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert mixing_matrix(Ring(), 3)[0].tolist() == [1 / 3] * 3


def test_one_peer_at_a_time_gives_the_average_after_a_whole_cycle():
    for topology in (Exponential(one_peer=True), Hypercube(one_peer=True)):
        for size in (2, 4, 16, 64):
            product = torch.eye(size, dtype=torch.float64)
            for step in range(topology.period(size)):
                product = mixing_matrix(topology, size, step) @ product
            torch.testing.assert_close(product, torch.full_like(product, 1 / size))
            assert mixing_rate(topology, size) > 0.99


def test_rotating_neighbors_are_those_of_the_published_algorithm():
    """r = (i + s) mod P, l = (i - s + P) mod P; s <- s + 1, if s > P/2: s <- 1."""
    for size in (3, 4, 5, 6, 9, 16):
        s = 1
        for step in range(3 * size):
            for rank in range(size):
                expected = {}
                for source in (rank, (rank + s) % size, (rank - s + size) % size):
                    expected[source] = expected.get(source, 0) + 1 / 3
                assert Rotating().weights(World(rank, size), step) == pytest.approx(expected)
            s = 1 if s + 1 > size // 2 else s + 1


def test_rotating_in_small_worlds():
    assert Rotating().weights(World(0, 1), 5) == {0: 1.0}
    assert Rotating().weights(World(0, 2), 5) == {0: 1 / 3, 1: 2 / 3}
    assert Rotating(equal_pairs=True).weights(World(0, 2), 5) == {0: 0.5, 1: 0.5}
    assert Rotating().weights(World(1, 3), 5) == {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}
    assert Rotating().weights(World(0, 4), 1) == {0: 1 / 3, 2: 2 / 3}
    assert Rotating(equal_pairs=True).weights(World(0, 4), 1) == {0: 0.5, 2: 0.5}


def test_a_grid_is_as_square_as_it_can_be():
    assert [grid_shape(size) for size in (1, 2, 6, 7, 12, 16, 60)] == [
        (1, 1),
        (1, 2),
        (2, 3),
        (1, 7),
        (3, 4),
        (4, 4),
        (6, 10),
    ]
    assert len(Torus().weights(World(5, 16), 0)) == 5
    assert Torus().weights(World(3, 7), 0) == Ring().weights(World(3, 7), 0)


def test_an_exponential_graph_has_log2_n_neighbors():
    assert sorted(Exponential().weights(World(0, 16), 0)) == [0, 8, 12, 14, 15]
    assert neighbors_of(Exponential(), World(0, 16), 0).receivers == (1, 2, 4, 8)
    assert [len(Exponential().weights(World(0, size), 0)) for size in (1, 2, 3, 5, 64)] == [1, 2, 3, 4, 7]


def test_a_hypercube_needs_a_power_of_two():
    with pytest.raises(CompositionError, match="must be a power of two, got 6; exponential"):
        Hypercube().weights(World(0, 6), 0)
    assert sorted(Hypercube().weights(World(5, 8), 0)) == [1, 4, 5, 7]


def test_a_star_needs_its_center():
    with pytest.raises(CompositionError, match="center is rank 4 in a world of 4 ranks"):
        Star(4).weights(World(0, 4), 0)
    assert neighbors_of(Star(1), World(1, 3), 0).receivers == (0, 2)
    assert neighbors_of(Star(1), World(0, 3), 0).receivers == (1,)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (((0.5, 0.4), (0.5, 0.5)), "row 0 sums to 0.9, it must sum to 1"),
        (((0.5, 0.5), (0.4, 0.6)), "column 0 sums to 0.9, it must sum to 1"),
        (((1.0, 0.0),), "row 0 is 2 numbers; a row needs 1 numbers"),
        (((1.5, -0.5), (-0.5, 1.5)), r"row 0, column 0 must be in \[0, 1\], got 1.5"),
        (((0.5, "a"), (0.5, 0.5)), "row 0, column 1 must be in"),
        ((0.5, 0.5), "row 0 is 0.5; a row needs 2 numbers"),
        ((), "it has no rows"),
    ],
)
def test_a_matrix_that_would_drift_is_refused_with_the_place(rows, words):
    with pytest.raises(CompositionError, match=words):
        Matrix(rows)


def test_a_matrix_is_read_from_a_file(tmp_path):
    (tmp_path / "k.csv").write_text("0.5, 0.5, 0\n0 0.5 0.5\n\n0.5,0,0.5\n")
    topology = Matrix(file=str(tmp_path / "k.csv"))
    assert topology.weights(World(1, 3), 9) == {1: 0.5, 2: 0.5}
    assert neighbors_of(topology, World(1, 3), 0).receivers == (0,)
    with pytest.raises(CompositionError, match="has 3 rows for a world of 4 ranks"):
        topology.weights(World(0, 4), 0)
    (tmp_path / "bad.csv").write_text("0.5 half\n")
    for file in ("bad.csv", "none.csv"):
        with pytest.raises(CompositionError, match=f"cannot read .*{file}"):
            Matrix(file=str(tmp_path / file))
    with pytest.raises(CompositionError, match="either rows or a file"):
        Matrix()
