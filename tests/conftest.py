import pytest
import torch

from pool import Pool


@pytest.fixture(scope="session")
def pool():
    """Worker processes shared by all tests; see pool.py."""
    made = Pool()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def one_thread():
    """Two cores, several processes: more threads would only get in each other's way, and change sums' last bits."""
    torch.set_num_threads(1)
