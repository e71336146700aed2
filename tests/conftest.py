"""What all tests share.

A process for each core runs them (pytest-xdist); ``-n 0`` runs them in one, for a debugger.

Tests marked ``cuda`` are skipped where there is no NVIDIA GPU.

Tests marked ``slow`` are the widest sweeps. An ordinary run leaves them out. ``-m slow`` takes all,
``-k NAME`` all that it chooses, and ``--slow-part auto`` the one of 48 parts that today's
date chooses: 32 days' runs cover all.

Tests marked ``long`` compile much for what they find. An ordinary run leaves them out, too; all
other runs take them, so that continuous integration runs every one each time.

Those marked ``sweep`` take hours in all, and run by ``-m sweep`` alone.

``-m quick`` runs the tests of the folders in ``QUICK``, which take seconds each, and collects no
others. Tests marked ``slow``, ``long``, ``sweep`` or ``cuda`` are not quick.
"""

import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from zlib import crc32

import hypothesis
import pytest

# The test processes share the cores: each of them computes with one thread.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Tests compile what they compile: no program comes from an earlier run. Those of the program cache
# switch it on.
os.environ.setdefault("META_PROGRAM_CACHE", "0")
# What was measured on this machine does not decide who runs what in them, but in those of tuning.
os.environ.setdefault("META_TUNE", "off")


def first_on_path(folder: Path) -> dict[str, str]:
    """Return the environment of a process that imports from ``folder`` before anything else."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


# How long an example takes depends on what else the machine does. Each run draws examples of its
# own, except where CI is set: there, the result of a commit is the same in every run.
CI = bool(os.environ.get("CI"))
hypothesis.settings.register_profile(
    "meta", deadline=None, derandomize=CI, database=None if CI else hypothesis.settings().database
)
hypothesis.settings.load_profile("meta")


@pytest.fixture(autouse=True, scope="module")
def no_strangers_stay() -> Iterator[None]:
    """A dialect that a test registers is removed: with it, later tests compile other programs."""
    yield
    from meta.dialect.core import DIALECTS  # not before a test that looks at what is imported

    strangers = [one.name for one in DIALECTS.values() if not one.site.is_own]
    assert not strangers, f"left behind: {strangers}"


PARTS = 48


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-part",
        choices=["auto", *map(str, range(PARTS)), "all", "none"],
        help="which tests marked slow run: one of 48 parts (auto: by the date), all or none "
        "(default: none, but all where -m or -k is given)",
    )


def slow_parts(config: pytest.Config) -> range:
    """Return the parts of the slow tests that run."""
    chosen = config.option.markexpr or config.option.keyword
    wanted = config.getoption("--slow-part") or ("all" if chosen else "none")
    if wanted == "all":
        return range(PARTS)
    if wanted == "none":
        return range(0)
    day = datetime.now(timezone.utc).timetuple().tm_yday
    one = day % PARTS if wanted == "auto" else int(wanted)
    return range(one, one + 1)


def part_of(test_id: str) -> int:
    """Return the part of a test, the same on every machine."""
    return crc32(test_id.encode()) % PARTS


QUICK = ("analysis", "base", "grad", "ir", "optim", "runtime")
NOT_QUICK = ("slow", "long", "sweep", "cuda")
TESTS = Path(__file__).parent


def is_in_quick_folder(path: Path) -> bool:
    return any(path.is_relative_to(TESTS / folder) for folder in QUICK)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m quick``, import no test of another folder: that takes longer than the tests."""
    if config.option.markexpr == "quick" and TESTS in collection_path.parents:
        return not is_in_quick_folder(collection_path) or None
    return None


def mark_quick(items: list[pytest.Item]) -> None:
    for item in items:
        if is_in_quick_folder(item.path) and not any(map(item.get_closest_marker, NOT_QUICK)):
            item.add_marker("quick")


def deselect_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    parts = slow_parts(config)
    sweeps = "sweep" in config.option.markexpr
    kept, left_out = [], []
    for item in items:
        runs = not item.get_closest_marker("slow") or part_of(item.nodeid) in parts
        runs = runs and (len(parts) > 0 or not item.get_closest_marker("long"))
        runs = runs and (sweeps or not item.get_closest_marker("sweep"))
        (kept if runs else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_quick(items)
    deselect_slow(config, items)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)
