"""Loggers of thinwire: one for each module, below "thinwire"; every line begins with the rank of its process."""

from __future__ import annotations

import logging


class _RankPrefix(logging.Filter):
    rank: int | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if self.rank is not None:
            record.msg = f"rank {self.rank}: {record.msg}"
        return True


_PREFIX = _RankPrefix()


def get_logger(name: str) -> logging.Logger:
    """The logger of a module, by its `__name__`."""
    logger = logging.getLogger(name)
    logger.addFilter(_PREFIX)
    return logger


def set_log_rank(rank: int | None) -> None:
    """Begin every later line with this rank; None: with no rank, as in a process that has no peers."""
    _PREFIX.rank = rank
