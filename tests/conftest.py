import os
import signal

import pytest
import torch

from helpers.pool import Pool

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so would every process they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["PYTHONFAULTHANDLER"] = "1"  # every process that a test starts tells where it was if a signal ends it


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
