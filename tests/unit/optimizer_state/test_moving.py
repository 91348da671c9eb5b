"""One rank's moments for another; no third rank takes part."""

import pytest
import torch

from helpers import moments_jobs as jobs
from helpers.moments_jobs import adam


def error(moments, true, key):
    return float((moments[key].float() - true[key].float()).norm() / true[key].float().norm())


@pytest.mark.parametrize(("text", "most"), [("dense()", 0.0), ("uniform(bits=8)", 0.05), ("topk(density=0.5)", 0.9)])
@pytest.mark.parametrize(("sender", "receiver", "steps"), [(0, 2, 0), (2, 1, 5)])
def test_the_receiver_ends_with_the_senders_moments_and_counters(pool, text, most, sender, receiver, steps):
    results = pool.run(3, jobs.hand_over, [text] * 3, sender, receiver, steps)
    (sent, out), (got, taken) = results[sender], results[receiver]
    assert all(error(got, sent, key) <= most for key in sent)
    assert all(torch.equal(got[key], sent[key]) for key in sent if key.endswith("step"))
    assert out[0] == pytest.approx(taken[1]) and results[3 - sender - receiver][1] is None


def test_compressed_moments_are_shorter_on_the_wire(pool):
    sizes = [
        pool.run(2, jobs.hand_over, [text] * 2, 0, 1)[0][1][0]
        for text in ("dense()", "uniform(bits=8)", "uniform(bits=2)")
    ]
    assert sizes[0] > 2.5 * sizes[1] > 5 * sizes[2] / 2


def test_a_shard_moves_alone(pool):
    (sent, _), (got, _) = pool.run(2, jobs.hand_over, ["dense()"] * 2, 0, 1, 0, ["c", "a"])
    assert sorted({key.split(".")[0] for key in got}) == ["a", "c"]
    assert all(torch.equal(got[key], sent[key]) for key in got)


@pytest.mark.parametrize("other", ("uniform(bits=4)", "moments(uniform(bits=8), transmit='log')"))
def test_hosts_that_disagree_are_both_told(pool, other):
    for kind, text in pool.run(2, jobs.hand_over, ["uniform(bits=8)", other], 0, 1):
        assert kind == "ConfigMismatch" and "moments is" in text


@pytest.mark.parametrize(
    ("text", "to", "says"),
    [("ef(topk(density=0.1))", 1, "several ranks or many rounds"), ("sketch(topk(density=0.1))", 1, "several ranks"),
     ("dense()", 0, "the other rank must be"), ("dense()", 7, "the other rank must be")],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_before_anything_is(pool, text, to, says):
    ((kind, told),) = pool.run(1, jobs.refused, text, to)
    assert kind in ("IncompatibleParts", "CompositionError") and says in told


def test_without_a_process_group_there_is_nobody():
    import thinwire

    with pytest.raises(thinwire.CompositionError, match="need a process group"):
        thinwire.moments.send(adam(0)[1], "dense()", to=1)
