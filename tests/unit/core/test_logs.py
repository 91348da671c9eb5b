"""Log lines begin with the rank, once, in every module's logger."""

import logging
from pathlib import Path

import pytest

import thinwire
from thinwire.core.logs import get_logger, set_log_rank

ROOT = Path(thinwire.__file__).parent


@pytest.fixture
def rank():
    yield set_log_rank
    set_log_rank(None)


def test_a_line_begins_with_the_rank(rank, caplog):
    log = get_logger("thinwire.example")
    with caplog.at_level(logging.INFO, "thinwire"):
        log.info("step %d", 3)
        rank(1)
        get_logger("thinwire.example").warning("step %d", 4)
    assert [record.getMessage() for record in caplog.records] == ["step 3", "rank 1: step 4"]


def test_every_module_takes_its_logger_from_here():
    for path in ROOT.rglob("*.py"):
        if path.name != "logs.py":
            assert "logging.getLogger" not in path.read_text(), path
