"""Collectives of processes that go on beside other work: on CUDA on a stream of their own, on the
CPU on a thread of its own. Both take them one after the other, so that all ranks do in one order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from queue import SimpleQueue

import torch

Work = Callable[[], None]


def start(run: Work, device: torch.device) -> Work:
    """Let ``run`` begin, behind what was launched on the current stream; return what waits for it.

    On CUDA the stream waits that is current then, and not the host. On the CPU an error of ``run``
    is raised by what waits.
    """
    if device.type == "cuda":
        return _on_stream(run, device)
    future = Future[None]()
    _queue().put((run, future))
    _pending_work.append(future)
    return future.result


def synchronize() -> None:
    """Wait until the thread has nothing to do, unless this is that thread: a collective that is not
    started comes behind those that were.
    """
    if _pending_work and threading.current_thread().name != _THREAD_NAME:
        for future in _pending_work:
            future.exception()
        _pending_work.clear()


_THREAD_NAME = "collectives of meta"
_pending_work: list[Future[None]] = []


@lru_cache
def _queue() -> SimpleQueue[tuple[Work, Future[None]]]:
    """Return what the thread takes from, which is begun with it. At the end of the process nobody
    waits for the thread, which may wait for others.
    """
    queue = SimpleQueue[tuple[Work, Future[None]]]()

    def work() -> None:
        while True:
            run, future = queue.get()
            try:
                run()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

    threading.Thread(target=work, name=_THREAD_NAME, daemon=True).start()
    return queue


def _on_stream(run: Work, device: torch.device) -> Work:
    here, beside = torch.cuda.current_stream(device), _stream(device.index)
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        run()
    done = beside.record_event()
    return lambda: torch.cuda.current_stream(device).wait_event(done)


@lru_cache
def _stream(ordinal: int) -> torch.cuda.Stream:
    """Return the stream of collectives. It comes first where the device has room: what it exchanges
    is what others wait for.
    """
    return torch.cuda.Stream(ordinal, priority=-1)  # type: ignore[no-untyped-call]
