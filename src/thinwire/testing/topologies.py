"""Laws of topologies: mixing matrices are doubly stochastic, and neighbors agree with them."""

from __future__ import annotations

import torch

from ..aggregators import Gossip
from ..compressors import Identity
from ..core import CompositionError, Topology, World, neighbors_of
from ..topologies import mixing_matrix
from .laws import Law, check_all, law
from .lockstep import reduce_all
from .tensors import draw

TOPOLOGY_LAWS: list[Law] = []
SIZES = (*range(1, 18), 25, 32, 60, 64)
STEPS = range(7)


def check_topology(topology: Topology) -> None:
    """Check all laws of topologies, in worlds of the sizes that it accepts.

    Args:
        topology: with the settings to be tested.

    Raises:
        AssertionError: a law is broken.
    """
    check_all(TOPOLOGY_LAWS, topology)


def sizes_of(topology: Topology, sizes: tuple[int, ...] = SIZES) -> list[int]:
    """The sizes that a topology does not refuse with a CompositionError."""
    taken = []
    for size in sizes:
        try:
            topology.weights(World(0, size), 0)
        except CompositionError:
            continue
        taken.append(size)
    assert taken, f"{topology!r} takes no world of {sizes} ranks"
    return taken


@law(TOPOLOGY_LAWS)
def equal_settings_are_equal_topologies(topology: Topology) -> None:
    """Graphs are cached by topology."""
    assert isinstance(topology, Topology), f"{topology!r} lacks weights, changes or a hash"
    assert topology == topology and isinstance(hash(topology), int) and isinstance(topology.changes, bool)


@law(TOPOLOGY_LAWS)
def rows_and_columns_sum_to_one_for_every_world_and_step(topology: Topology) -> None:
    for size in sizes_of(topology):
        ones = torch.ones(size, dtype=torch.float64)
        for step in STEPS:
            matrix = mixing_matrix(topology, size, step)
            assert bool((matrix >= 0).all())
            torch.testing.assert_close(matrix.sum(0), ones)
            torch.testing.assert_close(matrix.sum(1), ones)
            assert topology.changes or torch.equal(matrix, mixing_matrix(topology, size, 0))


@law(TOPOLOGY_LAWS)
def incoming_and_outgoing_neighbors_are_two_sides_of_one_matrix(topology: Topology) -> None:
    for size in sizes_of(topology, (1, 2, 4, 8)):
        for step in STEPS[:4]:
            matrix = mixing_matrix(topology, size, step)
            for rank in range(size):
                near = neighbors_of(topology, World(rank, size), step)
                row = {r: w for r, w in enumerate(matrix[rank].tolist()) if w and r != rank}
                assert near.incoming == row and near.self_weight == matrix[rank, rank]
                assert list(near.receivers) == [r for r in range(size) if matrix[r, rank] and r != rank]


@law(TOPOLOGY_LAWS)
def mixing_keeps_the_mean_of_all_ranks(topology: Topology) -> None:
    for size in sizes_of(topology, (1, 2, 3, 4, 5, 8)):
        tensors = [draw("gaussian", (20,), torch.float64, rank) for rank in range(size)]
        mean = torch.stack(tensors).mean(0)
        for step in STEPS[:4]:
            tensors = [out.value for out in reduce_all(Gossip(Identity(), topology), tensors, step=step)]
            torch.testing.assert_close(torch.stack(tensors).mean(0), mean)
