"""What the package tells by logging, and the ranges that programs name."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import meta
from meta.base import config
from meta.model import Linear, ReLU, Sequential
from tests.conftest import run_python

X = (4, 3)


@pytest.fixture
def network() -> Sequential:
    return Sequential(Linear(3, 5), ReLU(), Linear(5, 2)).eval()


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the package tells, level and message. pytest's own fixture costs each test of a run two
    milliseconds, and is off.
    """
    found, logger = io.StringIO(), logging.getLogger("meta")
    handler, level = logging.StreamHandler(found), logger.level
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_it_is_quiet_unless_asked() -> None:
    code = """
import meta
print(meta.vm.compile(meta.model.Linear(3, 2), meta.ones((4, 3)))(meta.ones((4, 3))).shape)
import logging
print(logging.getLogger("meta").handlers, logging.getLogger("meta").level)
"""
    assert run_python("-c", code, tvm=True).splitlines() == ["(4, 2)", "[<NullHandler (NOTSET)>] 0"]


def test_what_is_compiled_and_why_not_from_a_cache(
    network: Sequential,
    tmp_path: Path,
    log: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("META_PROGRAM_CACHE", "1")
    monkeypatch.setenv("META_CACHE", "1")

    def said() -> str:
        found = log.getvalue()
        log.seek(0)
        log.truncate()
        return found

    with meta.dialect.only("tvm"):
        run = meta.vm.compile(network, meta.ones(X))
        text = said()
        assert "INFO no program in the cache" in text and "holds no compiled program" in text
        assert re.search(rf"INFO compiled \S+ on cpu, {len(run.envs)} kernels, in \d+\.\d+ s", text)
        assert re.search(r"INFO made \d+ kernels in \d+\.\d+ s", text)
        meta.vm.compile(network, meta.ones(X))
        assert "INFO took from the program cache" in (text := said())
        assert "INFO compiled" not in text
        with config.override(META_PROGRAM_CACHE=False):
            meta.vm.compile(network, meta.ones(X))
        assert "INFO the program cache is off" in said()
    run.save(tmp_path / "net")
    meta.vm.load(tmp_path / "net")
    assert f"INFO loaded {tmp_path / 'net'} in " in said()
    with meta.dialect.only("torch"):
        meta.tanh(meta.ones((3, 7)))
    assert "DEBUG tanh(x=float32[3, 7]) on cpu runs on torch.tanh" in said()


@pytest.mark.parametrize("kind", ["torch", "nvtx"])
def test_ranges(kind: str, network: Sequential, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    @contextmanager
    def named(name: str) -> Iterator[None]:
        names.append(name)
        yield

    if kind == "nvtx":  # which torch has on CUDA alone
        monkeypatch.setattr(torch.cuda.nvtx, "range", named)
    with config.override(META_RANGES=kind), meta.dialect.only("torch"):
        run = meta.vm.compile(network, meta.ones(X))
    want = network(meta.ones(X)).torch().detach()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.testing.assert_close(run(meta.ones(X)).torch(), want)
    names += [event.key for event in profile.key_averages()]
    found = {name.partition(" ")[0] for name in names}
    assert set(run.kernels()) <= found
    assert any(" " in name and name.partition(":")[2].isdecimal() for name in names)


def test_without_the_word_there_are_none(network: Sequential) -> None:
    run = meta.vm.compile(network, meta.ones(X))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(meta.ones(X))
    found = {event.key.partition(" ")[0] for event in profile.key_averages()}
    assert not found & set(run.kernels())
