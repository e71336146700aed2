"""The errors of a program from what its kernels raise."""

from __future__ import annotations

from meta.base.errors import BackendError, MetaError
from meta.base.source import Span
from meta.dialect.core.backend_errors import backend_error, passes
from meta.vm.compiler.launch_sites import site_of


def launch_error(error: Exception) -> BackendError:
    """Return the error to raise from what a kernel of a program raised."""
    site = site_of(error)
    if site is None:
        return backend_error(error, "cannot run a program")
    return backend_error(
        error,
        "cannot run a kernel",
        op=site.operator,
        types=site.kernel,
        dialect=site.dialect or None,
        span=site.span,
    )


def passed_on(error: Exception) -> bool:
    """Whether what a program raised goes on as it is. What a kernel did wrong names its operator's
    line.
    """
    if isinstance(error, BackendError):
        name_site(error, error.op or "", error.span)
    return passes(error)


def name_site(error: MetaError, op: str, span: Span | None) -> None:
    """Let an error that a program raised name the operator that was run, with the user's line;
    ``op`` and ``span`` if there was none yet.
    """
    site = site_of(error)
    if site is not None:
        op, span = site.operator, site.span
    error.op = op
    if span is not None:
        if error.span is not None:
            error.note(f"in a program that was called at {error.span}")
        error.span = span
