"""C kernels on several threads: the bits of one thread, for any number of them."""

import os
import threading

import pytest
import torch

from helpers.cases import KINDS
from helpers.same_bits import alike, drawn
from thinwire.core import DecodeError, derive_key
from thinwire.drivers.comm_thread import CommThread
from thinwire.kernels import CodeForm, Coding, codes, dispatch, native, positions
from thinwire.kernels.native import (
    calls,
    calls_batches,
    calls_code_batches,
    calls_matrices,
    calls_natural,
    calls_positions,
    calls_uniform,
)
from thinwire.kernels.threads import forget_num_threads, lend_cores, limit_threads, num_threads

CPU = torch.device("cpu")
KEY = derive_key("native threads")
GRAIN = 64  # so that tensors of a few thousand elements are divided
SIZES = (4097, 50_001)
THREADS = (2, 3, 5)
RANKS = 3
LEVELS = [(4, 512), (2, 33), (5, 7), (3, 5000), (8, 10**9)]  # bits and block; threads share a block of the last two

pytestmark = pytest.mark.skipif(not native.runnable_builds(), reason="no C kernels were built here")


@pytest.fixture
def on_threads(library):
    """Call a kernel with a number of threads; returns its result and how many threads it started."""

    def call(count, kernel, *args):
        library.tw_set_threads(count, GRAIN)
        before = library.tw_started_threads()
        try:
            return kernel(library, *args), library.tw_started_threads() - before
        finally:
            library.tw_set_threads(1, 0)
            forget_num_threads()

    return call


def several(encode, numbers):
    """The payloads of ranks, each part in a list of its own."""
    sent = [encode(numbers.roll(7 * rank)) for rank in range(RANKS)]
    return tuple(map(list, zip(*sent, strict=True)))


def shape_of(numel):
    """Of a matrix with more columns than rows."""
    return 12, numel // 12


def low_rank_cases(numbers):
    for rows, columns in (shape_of(numbers.numel()), shape_of(numbers.numel())[::-1]):
        matrix = numbers[: rows * columns].view(rows, columns)
        left, right = numbers[: 6 * rows].view(6, rows), numbers[-6 * columns :].view(6, columns)
        yield calls_matrices.low_rank, None, left, right
        yield subtracted_low_rank, matrix, left, right
        yield calls_matrices.add_and_project, matrix, matrix.flip(0).contiguous(), right
        yield calls_matrices.combine_rows, left, matrix


def subtracted_low_rank(library, matrix, left, right):
    rest = matrix.clone()
    calls_matrices.subtract_low_rank(library, rest, left, right)
    return rest


def sparse_cases(numbers):
    numel = numbers.numel()
    for k in (numel // 100, numel // 5):
        yield calls.largest_magnitudes, numbers, k
        yield taken_largest, numbers, drawn("limits", numel, seed=3) * 0.7, k
        places = codes.largest_magnitudes(numbers, k)
        kept = numbers[places]
        yield calls.scatter, kept, places, numel
        yield calls.take, numbers, places
        yield subtracted_at, numbers, places, -kept
        ranks = [codes.largest_magnitudes(numbers.roll(7 * rank), k) for rank in range(RANKS)]
        coded = [positions.encode_positions(each, numel).data for each in ranks]
        yield calls_positions.sparse_mean, None, [numbers[each] for each in ranks], coded, numel
    yield calls.positions_reaching, numbers, float(numbers.abs().median())
    yield counted_below, numbers, float(numbers.abs().median())


def taken_largest(library, numbers, residual, k):
    taken = calls_positions.take_largest(library, numbers, residual, k)
    return (*taken[:3], taken.coded.data)


def subtracted_at(library, numbers, places, values):
    rest = numbers.clone()
    calls.subtract_at(library, rest, places, values)
    return rest


def counted_below(library, numbers, level):
    return torch.tensor(calls.count_below(library, numbers, level))


def level_cases(numbers):
    numel, residual = numbers.numel(), drawn("limits", numbers.numel(), seed=3) * 0.7
    for bits, block in LEVELS:
        yield calls.block_peaks, numbers, block
        yield calls.qsgd_encode, numbers, bits, block, KEY
        yield calls.qsgd_encode, numbers, bits, block, KEY, codes.block_peaks(numbers, block) * 1.25 + 1e-3
        yield calls.qsgd_feedback, numbers, residual, bits, block, KEY
        packed, norms = several(lambda x, b=bits, w=block: codes.qsgd_encode(x, b, w, KEY), numbers)
        yield calls.qsgd_decode, packed[0], norms[0], numel, bits, block
        yield calls.qsgd_mean, None, packed, norms, numel, bits, block
        for stochastic in (False, True):
            yield calls_uniform.uniform_encode, numbers, bits, block, stochastic, KEY
            yield calls_uniform.uniform_feedback, numbers, residual, bits, block, stochastic, KEY
        packed, peaks = several(lambda x, b=bits, w=block: codes.uniform_encode(x, b, w, False, KEY), numbers)
        yield calls_uniform.uniform_decode, packed[0], peaks[0], numel, bits, block
        yield calls_uniform.uniform_mean, None, packed, peaks, numel, bits, block


def sign_cases(numbers):
    numel = numbers.numel()
    signs, scales = several(codes.sign_encode, numbers)
    yield calls.pack_signs, numbers
    yield calls.mean_magnitude, numbers
    yield calls.sign_encode, numbers
    yield calls.sign_feedback, numbers, drawn("limits", numel, seed=3) * 0.7
    yield calls.sign_decode, signs[0], scales[0], numel
    yield calls.sign_mean, None, signs, scales, numel


def power_cases(numbers):
    residual = drawn("limits", numbers.numel(), seed=3) * 0.7
    signed = [codes.natural_encode_signed(numbers.roll(7 * rank), KEY, 16) for rank in range(RANKS)]
    planes = several(lambda x: (codes.natural_encode(x, KEY, 0, 254), codes.pack_signs(x)), numbers)
    yield calls_natural.natural_encode, numbers, KEY, 0, 254
    yield calls_natural.natural_encode_signed, numbers, KEY, 16
    yield calls_natural.natural_feedback, numbers, residual, KEY, 16
    yield calls_natural.natural_decode_signed, signed[0], 16
    yield calls_natural.natural_mean, None, signed, 16
    yield calls_natural.exponents_feedback, numbers, residual, KEY, 254
    yield calls_natural.exponents_decode, planes[0][0], planes[1][0]
    yield calls_natural.exponents_mean, None, *planes


def plain_cases(numbers):
    whole = numbers.view(torch.int32).to(torch.int64) & 0xFFFFF
    yield calls.noise16, KEY, numbers.numel(), CPU
    yield calls.add_saturated, numbers, drawn("limits", numbers.numel(), seed=3)
    for bits in (3, 11, 20):
        yield calls.pack, whole & ((1 << bits) - 1), bits
        yield calls.unpack, codes.pack(whole & ((1 << bits) - 1), bits), numbers.numel(), bits


CODE_FORMS = [
    *[CodeForm(coding, 4, 512) for coding in (Coding.LEVELS, Coding.STEPS, Coding.RANDOM_STEPS)],
    CodeForm(Coding.LEVELS, 3, 5000),
    CodeForm(Coding.POWERS, limit=16),
    CodeForm(Coding.EXPONENTS, limit=254),
    CodeForm(Coding.SIGNS),
]


def batch_cases(numbers):
    tensors = [numbers, numbers[:100].clone(), numbers.flip(0)]
    residuals = [drawn("limits", tensor.numel(), seed=3) * 0.7 for tensor in tensors]
    for form in CODE_FORMS:
        yield coded_batch, form, tensors, None
        yield coded_batch, form, tensors, residuals
        yield mean_of_codes, form, tensors
    yield taken_batch, tensors, None
    yield taken_batch, tensors, residuals
    yield mean_of_taken, tensors
    yield taken_changes, tensors, residuals
    yield sums_with_taken, tensors, residuals


def batch_keys(tensors):
    return [derive_key("native threads", i) for i in range(len(tensors))]


def coded_batch(library, form, tensors, residuals):
    batch = calls_code_batches.encode_codes_many(library, form, tensors, residuals, batch_keys(tensors))
    return (*batch.payload.parts, *(batch.rests or ()), torch.tensor(batch.first_bad))


def mean_of_codes(library, form, tensors):
    encode, keys = calls_code_batches.encode_codes_many, batch_keys(tensors)
    shifted = [[tensor.roll(7 * rank) for tensor in tensors] for rank in range(RANKS)]
    payloads = [encode(library, form, each, None, keys).payload for each in shifted]
    outs = [torch.empty_like(tensor) for tensor in tensors]
    assert calls_code_batches.mean_codes_many(library, form, payloads, outs)
    return tuple(outs)


def counts_of(tensors):
    return [-(-tensor.numel() // 100) for tensor in tensors]


def taken_batch(library, tensors, residuals):
    taken = calls_batches.take_largest_many(library, tensors, residuals, counts_of(tensors))
    return (*taken.payload.parts, *(taken.rests or ()), torch.tensor(taken.first_bad))


def mean_of_taken(library, tensors):
    shifted = [[tensor.roll(7 * rank) for tensor in tensors] for rank in range(RANKS)]
    payloads = [calls_batches.take_largest_many(library, each, None, counts_of(each)).payload for each in shifted]
    outs = [torch.empty_like(tensor) for tensor in tensors]
    calls_batches.sparse_mean_many(library, payloads, [(k, k) for k in counts_of(tensors)], outs)
    return tuple(outs)


def taken_changes(library, tensors, estimates):
    taken = calls_batches.take_changes_many(library, tensors, estimates, counts_of(tensors))
    return (*taken.payload.parts, *taken.rests, torch.tensor(taken.first_bad))


def sums_with_taken(library, tensors, bases):
    shifted = [[tensor.roll(7 * rank) for tensor in tensors] for rank in range(RANKS)]
    payloads = [calls_batches.take_largest_many(library, each, None, counts_of(each)).payload for each in shifted]
    outs = [torch.empty_like(tensor) for tensor in tensors]
    return (*calls_batches.add_sparse_many(library, bases, payloads, [(k, k) for k in counts_of(tensors)], outs), *outs)


FAMILIES = (plain_cases, sign_cases, level_cases, power_cases, sparse_cases, low_rank_cases, batch_cases)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_any_number_of_threads_gives_the_same_bits(on_threads, family, size):
    divided = set()
    for kind in (*KINDS, "limits"):
        for kernel, *args in family(drawn(kind, size)):
            alone, started = on_threads(1, kernel, *args)
            assert started == 0
            for count in THREADS:
                together, started = on_threads(count, kernel, *args)
                assert alike(together, alone), (kernel.__name__, kind, count, args[1:])
                if started:
                    divided.add(kernel)
    every = {kernel for kernel, *_ in family(drawn("gaussian", size))}
    if size == max(SIZES):  # a range has 4096 elements or more, so smaller ones are not divided by all kernels
        assert divided == every


def test_small_tensors_start_no_threads(library):
    numbers = drawn("gaussian", 50_001)
    library.tw_set_threads(3, 0)  # the default grain
    before = library.tw_started_threads()
    try:
        calls.add_saturated(library, numbers, numbers)
        calls.largest_magnitudes(library, numbers, 500)
    finally:
        library.tw_set_threads(1, 0)
        forget_num_threads()
    assert library.tw_started_threads() == before


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_is_refused_on_one_thread_is_refused_on_several(on_threads, count):
    numel, k = 20_000, 2000
    places = torch.arange(k) * 10
    for bad in (-1, numel, 1 << 40):
        wrong = places.clone()
        wrong[-1 if bad > 0 else 0] = bad
        with pytest.raises(IndexError, match="1 positions are not below"):
            on_threads(count, calls.scatter, torch.ones(k), wrong, numel)
        with pytest.raises(IndexError, match="1 positions are not below"):
            on_threads(count, calls.take, torch.ones(numel), wrong)
    coded = [positions.encode_positions(places, numel).data] * 3
    with pytest.raises(DecodeError, match="positions"):
        values = [torch.ones(k), torch.ones(k), torch.ones(k - 1)]
        on_threads(count, calls_positions.sparse_mean, None, values, coded, numel)
    codes_of_8_bits = torch.full((numel,), 254, dtype=torch.uint8)
    codes_of_8_bits[15_000] = 255
    with pytest.raises(DecodeError, match="is never sent"):
        on_threads(count, calls_uniform.uniform_decode, codes_of_8_bits, torch.ones(40), numel, 8, 512)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_found_by_whatever_thread_reads_it(on_threads, count, bad):
    for at in (0, 20_000, 50_000):
        tensors = [torch.ones(100), drawn("gaussian", 50_001)]
        tensors[1][at] = bad
        residuals = [torch.zeros_like(tensor) for tensor in tensors]
        for kernel, *args in batch_cases(tensors[1]):
            if kernel in (coded_batch, taken_batch):
                given = residuals if args[-1] else None
                found, _ = on_threads(count, kernel, *args[:-2], tensors, given)
                assert int(found[-1]) == 1


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("block", [512, 10**9])
def test_the_peak_of_a_block_with_nan_is_nan(on_threads, count, block):
    numbers = drawn("gaussian", 50_001)
    numbers[20_000] = float("nan")
    peaks, _ = on_threads(count, calls.block_peaks, numbers, block)
    assert peaks.isnan().nonzero().flatten().tolist() == [20_000 // block]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_repeated_positions_are_written_in_their_order(on_threads, count):
    places = torch.cat((torch.arange(3000), torch.arange(3000)))
    values = drawn("gaussian", 6000)
    scattered, _ = on_threads(count, calls.scatter, values, places, 5000)
    assert alike(scattered[:3000], values[3000:]) and not scattered[3000:].any()


def test_kernels_use_the_threads_of_torch_below_the_limit_of_the_calling_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert num_threads() == 3
        with limit_threads(2):
            assert num_threads() == 2
            with limit_threads(1):
                assert num_threads() == 1
            with limit_threads(8):
                assert num_threads() == 3
        assert num_threads() == 3
        with pytest.raises(ValueError, match="max_threads must be at least 1, got 0"), limit_threads(0):
            pass
    finally:
        torch.set_num_threads(before)


def started_by(call):
    library = native.library()
    before = library.tw_started_threads()
    call()
    return library.tw_started_threads() - before


def test_dispatch_applies_the_number_to_each_thread_and_to_the_communication_thread_while_cores_are_lent():
    if native.library() is None:
        pytest.skip("C kernels are switched off")
    numbers, before = torch.ones(1 << 20), torch.get_num_threads()

    def add():
        return dispatch.add_saturated(numbers, numbers)

    comm, elsewhere = CommThread(), []
    torch.set_num_threads(2)
    try:
        assert started_by(add) == 1
        with limit_threads(1):
            assert started_by(add) == 0
        assert started_by(lambda: comm.submit(add).result()) == 0
        with lend_cores():
            assert started_by(lambda: comm.submit(add).result()) == 1
        assert started_by(lambda: comm.submit(add).result()) == 0
        thread = threading.Thread(target=lambda: elsewhere.append(started_by(add)))
        thread.start()
        thread.join()
        assert elsewhere == [1]
        torch.set_num_threads(1)
        assert started_by(add) == 0
    finally:
        torch.set_num_threads(before)
        comm.close()


def test_a_kernel_works_in_a_forked_process_after_its_parent_used_threads(on_threads):
    x, y = drawn("gaussian", 50_001), drawn("limits", 50_001)
    expected, started = on_threads(3, calls.add_saturated, x, y)
    assert started == 2
    out = torch.zeros(50_001).share_memory_()

    def add(library):
        library.tw_add_saturated(x.data_ptr(), y.data_ptr(), x.numel(), out.data_ptr())

    child = os.fork()
    if not child:  # nothing of torch in here: its own threads do not survive a fork
        try:
            os._exit(0 if on_threads(3, add)[1] == 2 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert alike(out, expected)
