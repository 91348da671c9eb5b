"""Memory that is used again."""

import gc
import threading

import pytest
import torch

from thinwire.kernels.memory import Pool


@pytest.fixture
def pool():
    return Pool()


def test_what_was_dropped_is_given_out_again(pool):
    first = pool.empty(50_000)
    place = first.data_ptr()
    del first
    assert pool.empty(50_000).data_ptr() == place


def test_a_view_keeps_it(pool):
    whole = pool.empty(50_000).fill_(7.0)
    part = whole[10:20].view(2, 5)
    del whole
    gc.collect()
    other = pool.empty(50_000).fill_(1.0)
    assert part.tolist() == [[7.0] * 5] * 2 and other.data_ptr() != part.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
def test_it_is_an_ordinary_tensor(pool, dtype):
    for count in (0, 1, 100_000):
        tensor = pool.empty(count, dtype).zero_()
        assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == ((count,), dtype, True)
        assert int((tensor + 1).sum()) == count


def test_what_is_kept_is_bounded():
    pool = Pool(max_bytes=1_000_000)
    several = [pool.empty(30_000 + 100 * i) for i in range(20)]
    last = several[-1].data_ptr()
    while several:
        del several[0]
    assert 500_000 < pool.num_bytes <= 1_000_000
    assert pool.empty(31_900).data_ptr() == last


def test_threads_never_share_a_block(pool):
    wrong = []

    def work(number):
        for _ in range(300):
            tensor = pool.empty(20_000).fill_(number)
            if float(tensor.min()) != number or float(tensor.max()) != number:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
