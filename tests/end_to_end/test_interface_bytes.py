"""The meter is right about real networks: what it counts is what the interface sends and receives, give or take 2 %.

Ranks are processes that run this file, see the end of it; those on two hosts are joined by a network that nobody else
uses. They meet and wait for one another through a file, so that nothing travels but what is counted.
"""

import json
import os
import subprocess
import sys
import time
from datetime import timedelta

import pytest

from thinwire_lab.testbed.counters import Counts, read_counts
from thinwire_lab.testbed.network import DEVICE, explain_unavailable, network

KINDS = ("AllGather", "AllReduce", "AllReduce, ordered", "Broadcast")
REPETITIONS = 4
NUMEL = (262_144, 393_216)  # of rank 0 and 1 where lengths may differ: 1.05 and 1.57 MB


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Per rank and kind: what the meter says and what the interface says."""
    if reason := explain_unavailable():
        pytest.skip(reason)
    with network(2) as hosts:
        starts = [place.wrap_command(sys.executable) for place in hosts.hosts]
        return run_ranks(starts, DEVICE, "compare_counts", tmp_path_factory.mktemp("meet"))


@pytest.mark.needs_root
@pytest.mark.parametrize("rank", (0, 1))
@pytest.mark.parametrize("kind", KINDS)
def test_the_meter_counts_what_the_interface_sends_and_receives(counted, kind, rank):
    seen = counted[rank][kind]
    for metered, on_the_wire in zip(("sent", "received"), Counts(*seen["counts"]).without_frames(), strict=True):
        assert seen[metered] >= REPETITIONS * 4 * min(NUMEL), "too little was sent to tell"
        assert seen[metered] == pytest.approx(on_the_wire, rel=0.02), (metered, seen)


def test_long_messages_of_differing_lengths_arrive_whole_and_are_counted_to_the_byte(tmp_path):
    run_ranks([[sys.executable]] * 4, "lo", "gather_long_messages", tmp_path)


def run_ranks(starts, device, task, folder):
    """Run `task` on one process per beginning of a command; what each returns, in rank order."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": "1"}
    arguments = [__file__, task, str(len(starts)), str(folder / "store")]
    ranks = []
    try:
        for rank, start in enumerate(starts):
            with (folder / f"rank{rank}.err").open("w") as errors:
                ranks.append(
                    subprocess.Popen([*start, *arguments, str(rank)], env=environment, stdout=-1, stderr=errors)
                )
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    faults = [(folder / f"rank{rank}.err").read_text() for rank in range(len(ranks))]
    assert not any(rank.returncode for rank in ranks), "\n".join(faults)
    return [json.loads(output) for output in outputs]


def compare_counts(store, rank, size):
    import torch

    from thinwire import Meter, TorchDist
    from thinwire.core import AllGather, AllReduce, Broadcast, Payload

    mine, equal = torch.randn(NUMEL[rank]), torch.randn(NUMEL[0])
    backend, ordered = TorchDist(), TorchDist(ordered=True)
    plans = {
        "AllGather": (backend, [AllGather(Payload((mine,)))]),
        "AllReduce": (backend, [AllReduce(equal)]),
        "AllReduce, ordered": (ordered, [AllReduce(equal)]),
        "Broadcast": (backend, [Broadcast(Payload((mine,)), root) for root in range(size)]),
    }
    assert tuple(plans) == KINDS
    results = {}
    for kind, (driver, requests) in plans.items():
        perform(driver, requests)  # connections are made
        rounds = []
        for turn in range(3):
            meet(store, f"before {kind} {turn}", rank, size)
            before = read_counts(DEVICE)
            driver.set_meter(Meter())
            meet(store, f"start {kind} {turn}", rank, size)
            perform(driver, requests * REPETITIONS)
            meet(store, f"after {kind} {turn}", rank, size)
            total = driver.meter.total()
            counts = read_counts(DEVICE).since(before)
            rounds.append({"sent": total.sent_bytes, "received": total.received_bytes, "counts": counts})
        # on a loaded machine TCP may send again what was only late: the round with the fewest bytes has none of that
        results[kind] = min(rounds, key=lambda seen: seen["counts"].sent_bytes + seen["counts"].received_bytes)
    meet(store, "end", rank, size)
    return results


def gather_long_messages(store, rank, size):
    """Longer than any threshold of the driver, and not equally so; a second message shows that order is kept."""
    import torch

    from thinwire import TorchDist
    from thinwire.core import AllGather, Payload

    lengths = (300_001, 400_000, 300_002, 300_001)
    with TorchDist() as driver:
        for turn in range(2):
            values = [torch.arange(n, dtype=torch.int32) + 10**6 * r + turn for r, n in enumerate(lengths)]
            (gathered,) = perform(driver, [AllGather(Payload((values[rank],)))])
            assert all(torch.equal(p.parts[0], v) for p, v in zip(gathered, values, strict=True))
        total, headers = driver.meter.total(), driver.meter.sum_by("kind")["header"]
        assert total.sent_bytes - headers.sent_bytes == 2 * 4 * (size - 1) * lengths[rank]
        assert total.received_bytes - headers.received_bytes == 2 * 4 * (sum(lengths) - lengths[rank])
        assert headers.sent_bytes == 2 * (size - 1) * (24 + 8)  # a header; the length of the only part, filled up to 8
    meet(store, "end", rank, size)


def perform(driver, requests):
    def program():
        answers = []
        for request in requests:
            answers.append((yield request))
        return answers

    return driver.run(program())


def meet(store, name, rank, size):
    """Wait for all ranks without the network, and a little longer for its last acknowledgements."""
    store.set(f"{name} {rank}", "here")
    store.wait([f"{name} {other}" for other in range(size)])
    time.sleep(0.1)


def main(task, size, path, rank):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, size = int(rank), int(size)
    store = dist.FileStore(path, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    own = dist.PrefixStore("test", store)
    print(json.dumps(globals()[task](own, rank, size)))


if __name__ == "__main__":
    main(*sys.argv[1:])
