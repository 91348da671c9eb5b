import socket
import threading
import time

import pytest

from thinwire_lab.testbed.goodput import MESSAGES, judge_goodput, receive_rate


@pytest.mark.parametrize("message", list(MESSAGES))
def test_a_rate_that_is_kept_is_obeyed_and_one_that_is_not_there_is_not_judged(message):
    assert judge_goodput(message, 1000, 1e8, [0.93e8, 0.95e8]).obeyed
    assert judge_goodput(message, 1000, 1e8, [0.95e8, 15e8]).obeyed is False  # a burst too large: as if nothing shaped
    assert judge_goodput(message, 1000, None, [1.0, 1e12]).obeyed is None


def test_a_rate_that_is_not_reached_is_not_obeyed():
    assert judge_goodput("long", 1000, 1e10, [5e9, 6e9]).obeyed is False


def test_the_clock_starts_with_the_first_piece():
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def send():
            theirs.sendall(bytes(1000))
            time.sleep(0.2)
            theirs.sendall(bytes(500))

        sender = threading.Thread(target=send)
        sender.start()
        assert 0 < receive_rate(ours, 1500) <= 8 * 500 / 0.19
        sender.join()
