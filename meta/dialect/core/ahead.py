"""What is begun on threads before a program needs it, while passes run: what backends do before
their first kernel, and kernels that are chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial

from meta.base.call_context import overriding
from meta.base.device import Device
from meta.base.errors import DeviceError
from meta.base.threads import compile_threads
from meta.dialect.core.catalog import DIALECTS

FEWEST = 4
"""Cores from which on it is done ahead: on fewer, it would take from the time of what is under
way."""
_begun: set[tuple[str, Device]] = set()
_lock = threading.Lock()
_compiling: ContextVar[bool] = ContextVar("meta_compiling", default=False)


@contextmanager
def compiling(runs: bool = True) -> Iterator[None]:
    """Say that the kernels which are made in the block are about to run, or may not be."""
    with overriding(_compiling, lambda _: runs):
        yield


def may_begin() -> bool:
    """Whether a backend may begin to compile a kernel as soon as it is chosen, on a thread."""
    return _compiling.get() and compile_threads() > 1


def begin_ahead(device: Device) -> None:
    """Let each backend of a device begin with `Dialect.ahead`, once in a process, and do not wait.

    A library that is not there is an error where it is needed. The threads do not keep a process
    from ending.
    """
    if compile_threads() < FEWEST:
        return
    for dialect in DIALECTS.values():
        if dialect.ahead is None or device.kind not in dialect.devices or dialect.unavailable:
            continue
        with _lock:
            if (dialect.name, device) in _begun:
                continue
            _begun.add((dialect.name, device))
        job = partial(_run, dialect.ahead, device)
        threading.Thread(target=job, name=f"meta-ahead-{dialect.name}", daemon=True).start()


def _run(ahead: Callable[[Device], None], device: Device) -> None:
    with suppress(DeviceError, OSError, ImportError):
        ahead(device)
