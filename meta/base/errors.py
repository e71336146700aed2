"""The error tree. Every error that a user can cause is a `MetaError`.

An error says what failed, on which operator with which types, what was expected and what was found,
where in the user's code, and what to try. Add a class only when a caller would want to catch it
apart from the others.
"""

from __future__ import annotations

from typing import Any

from meta.base.source import Span, user_span


class MetaError(Exception):
    """Base class of every error that `meta` raises on purpose.

    Parameters
    ----------
    what: what failed, one sentence without a full stop.
    op: the operator's name, if one is concerned.
    found / expected: printable descriptions of the offending and the accepted value.
    hint: what to try.
    span: the user's line; by default the first frame outside `meta/` of the current stack.
    """

    def __init__(
        self,
        what: str,
        *,
        op: str | None = None,
        found: object = None,
        expected: object = None,
        hint: str | None = None,
        span: Span | None = None,
    ) -> None:
        self.what, self.op, self.found, self.expected, self.hint = what, op, found, expected, hint
        self.span = span if span is not None else user_span()
        self.notes: list[str] = []
        super().__init__(what)

    def note(self, text: str) -> None:
        """Add where the error passed through, innermost first (as `add_note` of Python 3.11)."""
        self.notes.append(text)

    def __str__(self) -> str:
        lines = [f"{self.op}: {self.what}" if self.op else self.what]
        if self.expected is not None:
            lines.append(f"  expected: {self.expected}")
        if self.found is not None:
            lines.append(f"  found:    {self.found}")
        if self.span is not None:
            lines.append(f"  at:       {self.span}")
        if self.hint is not None:
            lines.append(f"  try:      {self.hint}")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)


class UnknownName(MetaError, LookupError, AttributeError):
    """A name that no registry entry has: operator, dialect, knob, state key."""


class RegistrationError(MetaError):
    """A registration that contradicts an earlier one or the schema it belongs to."""


class ArgumentError(MetaError, TypeError):
    """An argument that is missing, superfluous or of the wrong kind."""


class TypeInferError(MetaError, ValueError):
    """Argument types, shapes or attribute values that the operator's type function refuses."""


class NoSuchAxes(ArgumentError, AttributeError):
    """What arrays of other axes have, such as ``x.T`` of a vector; ``hasattr`` is False."""


class NumberOutOfRange(TypeInferError, OverflowError):
    """A Python number that the dtype it is to take does not have."""


class IndexOutOfRange(TypeInferError, IndexError):
    """An index outside the extent of its axis, or more indices than axes."""


class DivisionByZero(TypeInferError, ZeroDivisionError, RuntimeError):
    """An integer divided by 0, where the numbers are at hand; to torch it is a RuntimeError."""


class PlatformError(MetaError, ImportError):
    """An operating system that the package does not run on, found when it is imported."""


class DeviceError(MetaError, RuntimeError):
    """An unknown or absent device, or arrays on several devices where one is needed."""


class DispatchError(MetaError, RuntimeError):
    """No dialect accepted a call; the message has one line per candidate."""


class BackendError(MetaError, RuntimeError):
    """A backend that fails while it builds, loads or runs a kernel: a fault of its own, or a limit
    that it does not state. What it raised is the cause.
    """


class GradientError(MetaError, RuntimeError):
    """A gradient asked of something that has none."""


class AutocastError(MetaError, RuntimeError):
    """A program that cannot be computed in mixed precision, for one because operators have no cast
    rule.
    """


class TraceError(MetaError, RuntimeError):
    """Python code that cannot be traced, or a traced model that is called in a way it was not
    traced for.
    """


class IRError(MetaError, ValueError):
    """A program that breaks a rule of the IR: found by the verifier, a pass or the parser."""


class ExecutionError(MetaError, RuntimeError):
    """A program that fails while it runs, as it says itself: no case of a match fits."""


class DistributedError(MetaError, RuntimeError):
    """Ranks that do not fit together: another mesh, another collective, a rank that ended."""


class LinAlgError(MetaError, ValueError):
    """A matrix for which there is no result: singular, not positive definite, or with NaN where an
    iteration does not converge. torch's error is the cause.
    """


class CaptureError(MetaError, RuntimeError):
    """A program that was required to run as a CUDA graph and cannot."""


class OutOfMemory(MetaError, MemoryError):
    """Memory that there is not.

    Attributes
    ----------
    planned: the bytes that were to be allocated. free: those that can be. None: not known.
    """

    def __init__(
        self, what: str, *, planned: int | None = None, free: int | None = None, **more: Any
    ) -> None:
        self.planned, self.free = planned, free
        expected = None if planned is None else f"{planned:,} bytes"
        found = None if free is None else f"{free:,} bytes free"
        super().__init__(what, expected=expected, found=found, **more)


class NonFiniteError(MetaError, FloatingPointError):
    """A NaN or an infinity where there should be none: found by META_DEBUG_NANS, or a training
    run.
    """


class FormatError(MetaError, ValueError):
    """A file that is damaged, foreign or does not fit the object it is loaded into.

    Attributes
    ----------
    failures: of a program that is not supported, each call that stands against it (see
    `meta.frontend.core.Failure`).
    """

    failures: tuple[Any, ...] = ()


class FileError(MetaError, OSError):
    """A file or folder that cannot be written: a full or read-only disk, missing permission."""


class MetaWarning(UserWarning):
    """What a user should know and that changes no result: a cache that cannot be used."""
