"""What backends do ahead of their first kernel: once, on threads, and without errors."""

from __future__ import annotations

import threading

import pytest

from meta.base import config
from meta.base.device import CPU, Device
from meta.base.errors import DeviceError
from meta.dialect.core import Dialect, warm_up, warmup
from meta.dialect.core.catalog import DIALECTS
from tests.conftest import run_python


@pytest.fixture
def begun(monkeypatch):
    """The devices for which a backend was asked to begin, with the thread."""
    seen, done = [], threading.Event()

    def begin(device):
        seen.append((device, threading.current_thread()))
        done.set()
        raise DeviceError("a library is missing")

    made = Dialect("eager_beaver", devices=("cpu",), warmup=begin)
    off = Dialect("sleeper", devices=("cpu",), probe=lambda: "is asleep", warmup=begin)
    for one in (made, off):
        del DIALECTS._entries[one.name]
    monkeypatch.setattr(warmup, "_begun", set())
    monkeypatch.setattr(warmup, "DIALECTS", {"one": made, "two": off})
    return seen, done


def test_begins_once_on_a_thread(begun):
    seen, done = begun
    with config.override(META_COMPILE_THREADS=warmup.FEWEST_CORES):
        for device in (CPU, CPU, Device("cuda")):
            warm_up(device)
    assert done.wait(10)
    ((device, thread),) = seen
    assert device == CPU and thread is not threading.current_thread() and thread.daemon


def test_few_cores_have_something_else_to_do(begun):
    with config.override(META_COMPILE_THREADS=warmup.FEWEST_CORES - 1):
        warm_up(CPU)
    assert not begun[0]


COMPILED = """
import sys
import torch
import meta
from meta.base.device import CPU
from meta.dialect.tvm import warmup
warmup(CPU)
assert "tvm" not in sys.modules
x = meta.array(torch.ones(3))
print(meta.vm.compile(meta.model.trace(lambda x: meta.exp(x)), x)(x).numpy().sum())
"""


def test_tvm_works_when_it_has_read_the_symbols_before(tmp_path):
    printed = run_python("-c", COMPILED, META_CACHE_DIR=str(tmp_path), META_COMPILE_THREADS="4")
    assert float(printed) == pytest.approx(8.1548, rel=1e-3)
