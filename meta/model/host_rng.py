"""Random numbers that Python draws while it is traced, which would be constants of the program.

The states of the global generators of NumPy, Python and torch, and of generators that the traced
function refers to by name, are compared before and after the trace. Only if one has changed, the
function is run again line by line, to name the line. A generator that is made while tracing is not
seen.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import numpy as np
import torch

from meta.base.errors import TraceError
from meta.base.source import Span, python_function, python_span

Read = Callable[[], Any]


def refuse_host_rng(
    run: Callable[[], Any], again: Callable[[], Any], function: Any, owner: Any
) -> Any:
    """Return ``run()``; TraceError if a random number is drawn meanwhile, but by an operator.

    again: runs the function anew and leaves the program under construction as it is. function: what
    is traced. owner: the model whose method it is, or None.
    """
    reads = {**_GLOBAL, **_referenced_generators(function, owner)}
    before = {name: read() for name, read in reads.items()}
    result = run()
    drawn = next((name for name, read in reads.items() if read() != before[name]), None)
    if drawn is None:
        return result
    line = _line(again, reads[drawn])
    if line is None and threading.active_count() > 1:
        return result  # drawn by another thread
    raise TraceError(
        f"{drawn} draws random numbers while a function is traced: they would be constants of the "
        "program, the same in every run",
        hint="meta.random.normal, uniform, randint, bernoulli, multinomial, permutation, "
        "exponential and gumbel draw anew in every run; or draw outside, and pass the array",
        span=line or python_span(function),
    )


def _comparable_state(state: Any) -> Any:
    """Return a generator's state with copies of its arrays, so that it can be compared."""
    if isinstance(state, dict):
        return {name: _comparable_state(value) for name, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _numpy() -> Any:
    return _comparable_state(np.random.get_state(legacy=False))


def _torch() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def _torch_cuda() -> list[bytes]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # of torch
        return []
    return [g.get_state().numpy().tobytes() for g in torch.cuda.default_generators]


_GLOBAL: dict[str, Read] = {
    "numpy.random": _numpy,
    "Python's random": random.getstate,
    "torch": _torch,
    "torch on CUDA": _torch_cuda,
}


def _referenced_generators(function: Any, owner: Any) -> dict[str, Read]:
    """Return how to read the generators that a function closes over, uses as globals, or finds in
    the attributes of its model.
    """
    values: dict[str, Any] = {}
    found = python_function(function)
    if found is not None:
        code = found.__code__
        values = {n: found.__globals__.get(n) for n in code.co_names}
        for name, cell in zip(code.co_freevars, found.__closure__ or (), strict=True):
            with suppress(ValueError):  # a cell that is still empty
                values[name] = cell.cell_contents
    values |= {f"self.{n}": v for n, v in ({} if owner is None else vars(owner)).items()}
    return {name: read for name, value in values.items() if (read := _reader(value)) is not None}


def _reader(value: Any) -> Read | None:
    match value:
        case np.random.Generator():
            return lambda: _comparable_state(value.bit_generator.state)
        case np.random.RandomState():
            return lambda: _comparable_state(value.get_state(legacy=False))
        case torch.Generator():
            return lambda: value.get_state().cpu().numpy().tobytes()
        case random.Random():
            return value.getstate
    return None


def _line(run: Callable[[], Any], read: Read) -> Span | None:
    """Run anew and return the line of the user's code that changes what ``read`` returns."""
    state, last, found = read(), None, None

    def watch(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal last, found
        if found is None and read() != state:
            found = last
        span = Span(frame.f_code.co_filename, frame.f_lineno)
        if span.is_own:
            return None
        if event == "line":
            last = span
        return watch

    traced = sys.gettrace()
    sys.settrace(watch)
    try:
        with suppress(Exception):
            run()
    finally:
        sys.settrace(traced)
    return found if found is not None or read() == state else last
