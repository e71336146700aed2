"""What all tests share.

A process for each core runs them (pytest-xdist); ``-n 0`` runs them in one, for a debugger.

Tests marked ``cuda`` are skipped where there is no NVIDIA GPU: a function's, whatever its
parameters, as one.

Tests marked ``slow`` are the widest sweeps. An ordinary run leaves them out, and does not make
them, for they are half of all. ``-m slow`` takes all, ``-k NAME`` and ``FILE::NAME`` all that they
choose, and ``--slow-part auto`` the one of 96 parts that today's date chooses: 96 days' runs cover
all.

Tests marked ``long`` compile much, or start processes, for what they find. An ordinary run leaves
them out, too; of 4 parts, ``--slow-part auto`` takes one: 4 days' runs of continuous integration
cover all.

A test marked ``product`` has its parameters from n lists. Each choice of values from n - 1 of them
is in a call that every run takes; the other calls are ``long``.

Those marked ``sweep`` take hours in all, and run by ``-m sweep`` alone.

``-m quick`` runs the tests of the folders in ``QUICK``, and collects no others. Tests marked
``heavy``, which take seconds and run everywhere else, ``slow``, ``long``, ``sweep`` or ``cuda`` are
not quick.
"""

import atexit
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any
from zlib import crc32

import hypothesis
import pytest

# The test processes share the cores: each of them computes with one thread.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from tests.fork_server import ForkServer

# Tests compile what they compile: no program comes from an earlier run. Those of the program cache
# switch it on.
os.environ.setdefault("META_PROGRAM_CACHE", "0")
# What was measured on this machine does not decide who runs what in them, but in those of tuning.
os.environ.setdefault("META_TUNE", "off")
ROOT = Path(__file__).parents[1]


def first_on_path(folder: Path) -> dict[str, str]:
    """Return the environment of a process that imports from ``folder`` before anything else."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


FORK_SERVERS = {False: ForkServer("torch"), True: ForkServer("torch", "tvm", "torch._dynamo")}


def python_process(
    *arguments: object,
    cwd: Path = ROOT,
    first: Path = ROOT,
    timeout: float = 600.0,
    tvm: bool = False,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own that imports from ``first``, with more variables in its
    environment. Torch is imported already, unless the interpreter has options (see `fork_server`),
    and so are TVM and TorchDynamo if the program compiles anyway (``tvm``).
    """
    words, environment = [*map(str, arguments)], {**first_on_path(first), **more}
    if ForkServer.can_run(words):
        return FORK_SERVERS[tvm].run(words, cwd, environment, timeout)
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def run_python(*arguments: object, **options: Any) -> str:
    """Return what a `python_process` prints. AssertionError with what it says if it fails."""
    done = python_process(*arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


@pytest.fixture
def measured_by() -> Iterator[Callable[[Any], object]]:
    """Lets a test say what measures kernels (`meta.cost.chooser.Measurer`) until it ends."""
    from meta.cost.chooser import choosing

    with ExitStack() as stack:
        yield lambda measurer: stack.enter_context(choosing(measurer=measurer))


@pytest.fixture
def torch_kernels() -> Iterator[None]:
    """Nothing is compiled: the test runs on torch's kernels."""
    import meta

    with meta.dialect.only("torch"):
        yield


@pytest.fixture
def acme() -> Iterator[Any]:
    """A dialect that is forgotten after the test, beside torch."""
    import meta
    from tests.registered import remove_dialects

    dialect = meta.dialect.Dialect("acme", devices=("cpu",), plevel=meta.dialect.HANDWRITTEN)
    with meta.dialect.only("torch", "acme"):
        yield dialect
    remove_dialects(dialect)


PARTS, LONG_PARTS = 96, 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-part",
        choices=["auto", *map(str, range(PARTS)), "all", "none"],
        help="which tests marked slow or long run: one of 96, or 4, parts (auto: by the date), all "
        "or none (default: none, but all where -m, -k or FILE::NAME is given)",
    )


class Selection:
    """What the options of a run choose: parts of the slow tests, sweeps, tests by their names."""

    def __init__(self, config: pytest.Config) -> None:
        mark, name = config.option.markexpr, config.option.keyword
        self.by_name = bool(name) or any("::" in argument for argument in config.args)
        chosen = self.by_name or mark not in ("", "quick")
        self.parts = self._parts(config.getoption("--slow-part") or ("all" if chosen else "none"))
        self.part_of: dict[str, int] = {}
        self.sweeps = "sweep" in mark
        self.on_gpu = torch.cuda.is_available()

    @staticmethod
    def _parts(wanted: str) -> range:
        if wanted == "all":
            return range(PARTS)
        if wanted == "none":
            return range(0)
        day = datetime.now(timezone.utc).timetuple().tm_yday
        one = day % PARTS if wanted == "auto" else int(wanted)
        return range(one, one + 1)

    def deal(self, function: str, test_ids: Sequence[str]) -> None:
        """Deal the slow or long tests of a function to the parts in turn: those of a function take
        about as long as one another, so all parts do. Functions begin at parts of their own.
        """
        if 0 < len(self.parts) < PARTS:
            first = crc32(function.encode())
            self.part_of.update((one, (first + i) % PARTS) for i, one in enumerate(test_ids))

    def runs(self, marks: Collection[str], test_id: str) -> bool:
        """Return whether a test with these marks runs."""
        part = self.part_of.get(test_id, crc32(test_id.encode()) % PARTS)
        if "slow" in marks and part not in self.parts:
            return False
        if "long" in marks and all((part - one) % LONG_PARTS for one in self.parts):
            return False
        return "sweep" not in marks or self.sweeps


SELECTION = pytest.StashKey[Selection]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SELECTION] = Selection(config)


QUICK = ("analysis", "base", "grad", "ir", "optim", "runtime")
NOT_PLAIN = ("slow", "long", "sweep", "cuda")
NOT_QUICK = ("heavy", *NOT_PLAIN)
TESTS = Path(__file__).parent


@cache
def is_in_quick_folder(path: Path) -> bool:
    return any(path.is_relative_to(TESTS / folder) for folder in QUICK)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m quick``, import no test of another folder: that takes longer than the tests."""
    if config.option.markexpr == "quick" and TESTS in collection_path.parents:
        return not is_in_quick_folder(collection_path) or None
    return None


def beyond_cover(places: Sequence[Collection[int]]) -> list[bool]:
    """Return which of all combinations of n lists' values are not needed for each choice of values
    from n - 1 lists to be in one that is left: all whose places do not add up to a multiple of the
    shortest list's length. Where one list is left out, its value follows from the others' places.

    places: of each combination, the places of its values in their lists, once or several times.
    """
    lists = {column for column in zip(*places, strict=True) if len(set(column)) > 1}
    if len(lists) < 2:
        return [False] * len(places)
    values = [sorted(set(column)) for column in lists]
    ranks = [map(v.index, column) for v, column in zip(values, lists, strict=True)]
    shortest = min(map(len, values))
    return [sum(of_one) % shortest != 0 for of_one in zip(*ranks, strict=True)]


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Make no test of parameters that do not run: to make one and leave it out costs as much as to
    collect it. Where there is no GPU, one test of a function is skipped for all. Part and marks of
    each are known when pytest has their ids, and no public name has them then.
    """
    yield
    calls = metafunc._calls
    if len(calls) < 2:
        return
    definition, selection = metafunc.definition, metafunc.config.stash[SELECTION]
    shared = {mark.name for mark in definition.iter_markers()}
    if "product" in shared:
        plain = [call for call in calls if not {mark.name for mark in call.marks} & set(NOT_PLAIN)]
        beyond = beyond_cover([call.indices.values() for call in plain])
        for call in compress(plain, beyond):
            call.marks.append(pytest.mark.long.mark)
    every, skipped = selection.on_gpu or selection.by_name, False
    made = [
        (call, shared.union(mark.name for mark in call.marks), f"{definition.nodeid}[{call.id}]")
        for call in calls
    ]
    dealt = [test_id for _, marks, test_id in made if marks & {"slow", "long"}]
    selection.deal(definition.nodeid, dealt)
    kept = []
    for call, marks, test_id in made:
        if not selection.runs(marks, test_id):
            continue
        if "cuda" in marks and not every:
            if skipped:
                continue
            skipped = True
        kept.append(call)
    calls[:] = kept or calls[:1]  # without any, the function would be called without parameters


def deselect_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    selection = config.stash[SELECTION]
    kept, left_out = [], []
    for item in items:
        runs = selection.runs({mark.name for mark in item.iter_markers()}, item.nodeid)
        (kept if runs else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def spare_what_dynamo_logs() -> None:
    """Each time that torch compiles, it measures how long its guards take, and writes over the
    processor's caches before: a tenth of what tests of it take. It also splits each file that it
    traces into words, to name functions. Both are for its log alone.
    """
    guards: Any = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        guards.profile_guard_manager = lambda *_: 0.0
        names: Any = sys.modules["torch._dynamo.funcname_cache"]
        names._add_file = lambda file: names.cache.setdefault(file, {})


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays: the collector of garbage does not look at it, now or in a test. It
    looks at what tests make and libraries import as often as is needed for memory, not by its
    defaults, with which it takes a twentieth of the time of all tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        spare_what_dynamo_logs()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        gc.enable()
        atexit.register(gc.unfreeze)  # libraries tell of what they see alive after the last look


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_in_quick_folder(item.path) and not any(map(item.get_closest_marker, NOT_QUICK)):
            item.add_marker("quick")
    deselect_slow(config, items)
    if config.stash[SELECTION].on_gpu:
        return
    skip = pytest.mark.skip(reason="no NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)
