import json

import pytest

from helpers.doctor_jobs import examine
from thinwire.self_test import SELF_TESTS, GroupResult, examine_machine
from thinwire_lab.testbed.tools import examine_tools


def test_a_group_that_is_well_is_told_so_and_survives_json(pool):
    groups = pool.run(3, examine, "none")
    assert all(group == groups[0] for group in groups)
    group = groups[0]
    assert not group.failures and all(finding.is_ok is not False for finding in group.findings())
    assert GroupResult.from_json(json.loads(json.dumps(group.as_json()))) == group


@pytest.mark.parametrize(
    ("illness", "words"),
    [("version", "0.0.9"), ("bit", "rank 1 has other averages"), ("sums", "averages have a relative error")],
)
def test_what_is_wrong_is_found_by_all_ranks_and_named(pool, illness, words):
    groups = pool.run(2, examine, illness)
    assert groups[0].failures == groups[1].failures
    assert set(groups[0].failures) == ({"settings"} if illness == "version" else set(SELF_TESTS))
    assert all(words in text for text in groups[0].failures.values())
    assert any(finding.is_ok is False and words in finding.text for finding in groups[0].findings())


def test_the_machine_is_described():
    found = {finding.name: finding for finding in examine_machine()}
    assert found["thinwire"].text and found["backend"].is_ok
    assert found["kernels"].text.startswith(("C, ", "torch reference"))


def test_the_tools_of_the_testbed_are_described():
    assert "namespaces" in {finding.name: finding for finding in examine_tools()}["testbed"].text
