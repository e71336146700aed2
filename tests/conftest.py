"""What all tests share.

Tests marked ``cuda`` are skipped where there is no NVIDIA GPU.

Tests marked ``slow`` are the widest sweeps. An ordinary run leaves them out. ``-m slow`` takes all,
and ``--slow-quarter auto`` the quarter that today's date chooses: four days' runs cover all.
"""

import os
from datetime import datetime, timezone
from pathlib import Path
from zlib import crc32

import pytest
import torch

# Tests compile what they compile: no program comes from an earlier run. Those of the program cache
# switch it on.
os.environ.setdefault("META_PROGRAM_CACHE", "0")


def first_on_path(folder: Path) -> dict[str, str]:
    """Return the environment of a process that imports from ``folder`` before anything else."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


QUARTERS = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-quarter",
        choices=["auto", *map(str, range(QUARTERS)), "all", "none"],
        help="which tests marked slow run: one quarter (auto: by the date), all or none "
        "(default: none, but all where -m is given)",
    )


def slow_quarters(config: pytest.Config) -> range:
    """Return the quarters of the slow tests that run."""
    wanted = config.getoption("--slow-quarter") or ("all" if config.option.markexpr else "none")
    if wanted == "all":
        return range(QUARTERS)
    if wanted == "none":
        return range(0)
    day = datetime.now(timezone.utc).timetuple().tm_yday
    one = day % QUARTERS if wanted == "auto" else int(wanted)
    return range(one, one + 1)


def quarter_of(test_id: str) -> int:
    """Return the quarter of a test, the same on every machine."""
    return crc32(test_id.encode()) % QUARTERS


def deselect_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    quarters = slow_quarters(config)
    left_out = [
        item
        for item in items
        if item.get_closest_marker("slow") and quarter_of(item.nodeid) not in quarters
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    deselect_slow(config, items)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)
