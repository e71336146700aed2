"""Warming up: what is begun on threads before a program needs it, while passes run. That is what
backends do before their first kernel, and kernels that are chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from meta.base.call_context import context, override_context
from meta.base.device import Device
from meta.base.errors import DeviceError
from meta.base.threads import compile_threads
from meta.dialect.core.catalog import DIALECTS

FEWEST_CORES = 4
"""Cores from which on it is done ahead: on fewer, it would take from the time of what is under
way."""
_begun: set[tuple[str, Device]] = set()
_lock = threading.Lock()


@contextmanager
def compiling(runs: bool = True) -> Iterator[None]:
    """Say that the kernels which are made in the block are about to run, or may not be."""
    with override_context(compiles=runs):
        yield


def may_begin() -> bool:
    """Whether a backend may begin to compile a kernel as soon as it is chosen, on a thread."""
    return context.get().compiles and compile_threads() > 1


def warm_up(device: Device) -> None:
    """Let each backend of a device begin with `Dialect.warmup`, once in a process, and do not wait.

    A library that is not there is an error where it is needed. The threads do not keep a process
    from ending.
    """
    if compile_threads() < FEWEST_CORES:
        return
    for dialect in DIALECTS.values():
        if dialect.warmup is None or device.kind not in dialect.devices or dialect.unavailable:
            continue
        with _lock:
            if (dialect.name, device) in _begun:
                continue
            _begun.add((dialect.name, device))
        job = partial(_run, dialect.warmup, device)
        threading.Thread(target=job, name=f"meta-warmup-{dialect.name}", daemon=True).start()


def _run(warmup: Callable[[Device], None], device: Device) -> None:
    with suppress(DeviceError, OSError, ImportError):
        warmup(device)
