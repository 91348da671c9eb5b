"""Gossip topologies: which ranks a rank receives from, and with which weights. One graph per module.

The weights of all ranks form a doubly stochastic matrix K: rows and columns sum to one.
"""

from .complete import Complete
from .exponential import Exponential
from .hypercube import Hypercube
from .matrix import Matrix
from .mixing import mixing_matrix, mixing_rate, spectral_gap
from .ring import Ring
from .rotating import Rotating
from .star import Star
from .torus import Torus

__all__ = [
    "Complete", "Exponential", "Hypercube", "Matrix", "Ring", "Rotating", "Star", "Torus",
    "mixing_matrix", "mixing_rate", "spectral_gap",
]  # fmt: skip
