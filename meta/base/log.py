"""What the package tells by `logging`: to the logger ``meta``, which says nothing unless asked.

INFO: what is compiled or loaded, how long it takes, and why it was not in a cache. DEBUG: which
kernel dispatch chose, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOG = logging.getLogger("meta")
LOG.addHandler(logging.NullHandler())  # else Python would print warnings by itself


@contextmanager
def timed(what: str, *values: object) -> Iterator[None]:
    """Tell what a block has done, and how long that took; nothing of one that fails."""
    begin = time.perf_counter()
    yield
    LOG.info(f"{what} in %.3f s", *values, time.perf_counter() - begin)
