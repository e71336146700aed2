"""Which instruction it was that failed: steps know, and the trace of an error says which ran."""

from __future__ import annotations

from types import FunctionType

from meta.base.errors import BackendError
from meta.base.source import Span
from meta.dialect.core.failure import backend_error
from meta.vm.code import Kernel
from meta.vm.kernels import dialect_of
from meta.vm.steps import Step

_SITE = "__meta_site__"


def marked(step: Step, kernel: Kernel, span: Span | None) -> Step:
    """Note on a step what it launches, where `launch_error` finds it; running it costs nothing."""
    step.__dict__[_SITE] = (kernel, span)
    return step


def launch_error(error: Exception) -> BackendError:
    """Return the error to raise from what a kernel of a program raised."""
    site = None
    trace = error.__traceback__
    while trace is not None and site is None:
        step = trace.tb_frame.f_locals.get("step")
        if isinstance(step, FunctionType):
            site = step.__dict__.get(_SITE)
        trace = trace.tb_next
    if site is None:
        return backend_error(error, "cannot run a program")
    kernel, span = site
    return backend_error(
        error,
        "cannot run a kernel",
        op=kernel.name.rpartition(".")[2],
        types=kernel,
        dialect=dialect_of(kernel) or None,
        span=span,
    )
