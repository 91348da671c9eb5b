"""What all tests of checkpoints share."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Most tests ask what a file says, not whether it would survive a power cut; a busy disk makes them wait."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
