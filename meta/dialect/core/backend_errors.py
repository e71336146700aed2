"""What backends raise while they build, load or run a kernel, as errors of `meta`.

TVM, torch, cuDNN and kernels of strangers have errors of their own. `backend_error` says of one on
which operator it was, with which types and on which backend; the first error stays its cause.
Errors of `meta`, warnings that were made errors, and what ends a program pass as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from meta.base.errors import BackendError, MetaError
from meta.base.registry import OPERATORS
from meta.base.source import Span, innermost_user_line, outermost_user_span
from meta.runtime.out_of_memory import is_out_of_memory

MAX_TEXT = 300
"""Characters of a backend's text that are repeated: TVM's may hold a program."""


def passes(error: BaseException) -> bool:
    """Whether an error goes on as it is; who runs kernels makes `OutOfMemory` errors."""
    return isinstance(error, MetaError | Warning) or is_out_of_memory(error)


def backend_error(
    error: Exception,
    doing: str,
    *,
    op: str | None = None,
    types: object = None,
    dialect: str | None = None,
    span: Span | None = None,
) -> BackendError:
    """Return the error to raise from one of a backend.

    doing: what failed, as "cannot build a kernel". types: those of the call.
    """
    who = "a backend" if dialect is None else f"the dialect {dialect!r}"
    call = "" if types is None else f", in {types}"
    made = BackendError(
        f"{who} {doing}",
        op=op,
        found=f"{summary(error)}{call}",
        hint="this is a fault of the backend or of its kernel, or a limit of theirs that they do "
        "not state; another may have the operator (meta.dialect.exclude)",
        span=span,
    )
    place = _stranger(error, op, dialect)
    if place is not None:
        made.note(f"kernel:   {place}")
    return made


def _stranger(error: BaseException, op: str | None, dialect: str | None) -> Span | None:
    """Return the line of a kernel of others at which an error passed, or where it is defined."""
    if dialect is None:
        return None
    known = OPERATORS.get(op) if op is not None else None
    sites = [] if known is None else [
        site for one in known.aspects.dialect_ops if one.dialect.name == dialect
        for site in one.sites if not site.is_own
    ]  # fmt: skip
    if not sites:
        return None
    line = outermost_user_span(error.__traceback__)
    return next((s for s in (line,) if s and any(s.file == one.file for one in sites)), sites[0])


def located(error: BaseException) -> str:
    """Return the kind of an error, its text, and the line outside of `meta` that raised it."""
    line = innermost_user_line(error.__traceback__)
    place = getattr(error, "span", None) or (None if line is None else Span(*line))
    return summary(error) if place is None else f"{summary(error)} ({place})"


def summary(error: BaseException) -> str:
    """Return the kind of an error and the line of its text that says most: of TVM's, the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    traced = bool(lines) and lines[0].startswith(("Traceback", "File "))
    line = (lines[-1] if traced else lines[0]) if lines else ""
    return f"{type(error).__name__}: {line[:MAX_TEXT]}"


@contextmanager
def building(
    op: str | None, types: object, dialect: str | None, doing: str = "cannot build a kernel"
) -> Iterator[None]:
    """Let what a backend raises while it prepares kernels be a BackendError."""
    try:
        yield
    except Exception as error:
        if passes(error):
            raise
        raise backend_error(error, doing, op=op, types=types, dialect=dialect) from error
