"""One lossy map per file: settings, a contract, encode and decode. No memory, no collectives."""

from .cast import Cast
from .identity import Identity
from .natural import Natural
from .power2 import PowerOfTwo
from .qsgd import QSGD
from .randomk import RandomK
from .sign import ScaledSign
from .topk import TopK

__all__ = ["Cast", "Identity", "Natural", "PowerOfTwo", "QSGD", "RandomK", "ScaledSign", "TopK"]
