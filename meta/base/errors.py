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

    >>> try:
    ...     meta.softmax(meta.ones((2, 3)), axis=5)
    ... except meta.errors.MetaError as error:
    ...     print(f"{error.op}: {error.what}; expected {error.expected}")
    softmax: axis 5 is out of range for ndim 2; expected -2 <= axis < 2
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
    """A name that no registry entry has: operator, dialect, knob, state key.

    >>> try:
    ...     meta.sofmax
    ... except meta.errors.UnknownName as error:
    ...     print(error.what, "softmax" in error.hint)
    there is no operator named 'sofmax' True
    """


class RegistrationError(MetaError):
    """A registration that contradicts an earlier one or the schema it belongs to.

    >>> try:
    ...     meta.amp.always(meta.op.matmul)
    ... except meta.errors.RegistrationError as error:
    ...     print(error.what)
    operator 'matmul' has two cast rules
    """


class ArgumentError(MetaError, TypeError):
    """An argument that is missing, superfluous or of the wrong kind.

    >>> try:
    ...     meta.softmax(meta.ones(3), axes=0)
    ... except meta.errors.ArgumentError as error:
    ...     print(error.what)
    there is no argument 'axes'
    """


class TypeInferError(MetaError, ValueError):
    """Argument types, shapes or attribute values that the operator's type function refuses.

    >>> try:
    ...     meta.matmul(meta.ones((2, 3)), meta.ones((2, 3)))
    ... except meta.errors.TypeInferError as error:
    ...     print(error.what)
    the inner extents 3 and 2 differ
    """


class NoSuchAxes(ArgumentError, AttributeError):
    """What arrays of other axes have, such as ``x.T`` of a vector; ``hasattr`` is False.

    >>> try:
    ...     meta.ones((2, 3, 4)).T
    ... except meta.errors.NoSuchAxes as error:
    ...     print(error.what)
    x.T is of a matrix
    """


class NumberOutOfRange(TypeInferError, OverflowError):
    """A Python number that the dtype it is to take does not have.

    >>> try:
    ...     meta.ones(2, dtype="int8") + 300
    ... except meta.errors.NumberOutOfRange as error:
    ...     print(error.what)
    argument 'x2' does not fit int8
    """


class IndexOutOfRange(TypeInferError, IndexError):
    """An index outside the extent of its axis, or more indices than axes.

    >>> try:
    ...     meta.ones(3)[5]
    ... except IndexError as error:
    ...     print(type(error).__name__, "-", error.what)
    IndexOutOfRange - index 5 is out of range for axis 0
    """


class DivisionByZero(TypeInferError, ZeroDivisionError, RuntimeError):
    """An integer divided by 0, where the numbers are at hand; to torch it is a RuntimeError.

    >>> try:
    ...     meta.array([1, 2]) // 0
    ... except ZeroDivisionError as error:
    ...     print(type(error).__name__, "-", error.what)
    DivisionByZero - an integer is divided by 0
    """


class PlatformError(MetaError, ImportError):
    """An operating system that the package does not run on, found when it is imported.

    >>> error = meta.errors.PlatformError("meta runs on Linux", found="win32")
    >>> isinstance(error, ImportError), error.found
    (True, 'win32')
    """


class DeviceError(MetaError, RuntimeError):
    """An unknown or absent device, or arrays on several devices where one is needed.

    >>> try:
    ...     meta.ones(3, device="tpu:0:0")
    ... except meta.errors.DeviceError as error:
    ...     print(error.what)
    unknown device
    """


class DispatchError(MetaError, RuntimeError):
    """No dialect accepted a call; the message has one line per candidate.

    >>> try:
    ...     with meta.dialect.only("cublas"):
    ...         meta.softmax(meta.ones((2, 3), device="cpu"), axis=1)
    ... except meta.errors.DispatchError as error:
    ...     print(error.what)
    no dialect accepts this call
    """


class BackendError(MetaError, RuntimeError):
    """A backend that fails while it builds, loads or runs a kernel: a fault of its own, or a limit
    that it does not state. What it raised is the cause.

    >>> error = meta.errors.BackendError("the compiler fails", op="softmax", hint="prefer('torch')")
    >>> str(error).splitlines()[0], isinstance(error, RuntimeError)
    ('softmax: the compiler fails', True)
    """


class GradientError(MetaError, RuntimeError):
    """A gradient asked of something that has none.

    >>> try:
    ...     meta.ones(3).sum().backward()
    ... except meta.errors.GradientError as error:
    ...     print(error.what)
    this array was not computed from one that requires a gradient
    """


class AutocastError(MetaError, RuntimeError):
    """A program that cannot be computed in mixed precision, for one because operators have no cast
    rule.

    >>> from meta.op.core import Op
    >>> mine = Op(lambda x: x, name="mine", schema=meta.op.exp.schema, random=False)
    >>> try:
    ...     with meta.amp.autocast_scope():
    ...         mine(meta.ones(2))
    ... except meta.errors.AutocastError as error:
    ...     print(error.what)
    operators have no cast rule: mine
    """


class TraceError(MetaError, RuntimeError):
    """Python code that cannot be traced, or a traced model that is called in a way it was not
    traced for.

    >>> sign = meta.model.trace(lambda x: x if x.sum() > 0 else -x)
    >>> try:
    ...     meta.vm.compile(sign, meta.ones(3))
    ... except meta.errors.TraceError as error:
    ...     print(error.what.partition(" by ")[0])
    Python decides here (if, while, and, or, not)
    """


class IRError(MetaError, ValueError):
    """A program that breaks a rule of the IR: found by the verifier, a pass or the parser.

    >>> try:
    ...     meta.ir.parse("func @main(%x: float32[3]) { return %y }")
    ... except meta.errors.IRError as error:
    ...     print(error.found)
    '%y'
    """


class ExecutionError(MetaError, RuntimeError):
    """A program that fails while it runs, as it says itself: no case of a match fits.

    >>> program = '''
    ... func @main(%x: float32[3]) -> float32[3] {
    ...   %y: float32[3] = fail "no case fits"() -> float32[3]
    ...   return %y
    ... }'''
    >>> try:
    ...     meta.vm.compile(meta.ir.parse(program), meta.ones(3))(meta.ones(3))
    ... except meta.errors.ExecutionError as error:
    ...     print(error.what)
    no case fits
    """


class DistributedError(MetaError, RuntimeError):
    """Ranks that do not fit together: another mesh, another collective, a rank that ended.

    >>> try:
    ...     meta.distributed.size("dp")
    ... except meta.errors.DistributedError as error:
    ...     print(error.what)
    the mesh has no axis 'dp'
    """


class LinAlgError(MetaError, ValueError):
    """A matrix for which there is no result: singular, not positive definite, or with NaN where an
    iteration does not converge. torch's error is the cause.

    >>> try:
    ...     meta.linalg.inv(meta.zeros((2, 2)))
    ... except meta.errors.LinAlgError as error:
    ...     print(error.what)
    a matrix is singular
    """


class CaptureError(MetaError, RuntimeError):
    """A program that was required to run as a CUDA graph and cannot.

    >>> x = meta.ones(3, device="cpu")
    >>> try:
    ...     meta.vm.compile(meta.model.ReLU(), x, cuda_graph=True)
    ... except meta.errors.CaptureError as error:
    ...     print(error.what)
    only CUDA has CUDA graphs
    """


class OutOfMemory(MetaError, MemoryError):
    """Memory that there is not.

    Attributes
    ----------
    planned: the bytes that were to be allocated. free: those that can be. None: not known.

    >>> error = meta.errors.OutOfMemory("the program is too large", planned=2**34, free=2**30)
    >>> isinstance(error, MemoryError), error.expected, error.found
    (True, '17,179,869,184 bytes', '1,073,741,824 bytes free')
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

    >>> try:
    ...     with meta.debug_nans():
    ...         meta.log(meta.array([1.0, -1.0]))
    ... except meta.errors.NonFiniteError as error:
    ...     print(error.what)
    this operator made a NaN
    """


class FormatError(MetaError, ValueError):
    """A file that is damaged, foreign or does not fit the object it is loaded into.

    Attributes
    ----------
    failures: of a program that is not supported, each call that stands against it (see
    `meta.frontend.core.Failure`).

    >>> try:
    ...     meta.vm.load("/")  # a folder, but not that of a program
    ... except meta.errors.FormatError as error:
    ...     print(error.what)
    / holds no compiled program
    """

    failures: tuple[Any, ...] = ()


class FileError(MetaError, OSError):
    """A file or folder that cannot be written: a full or read-only disk, missing permission.

    >>> try:
    ...     meta.model.save_weights(meta.model.Linear(2, 2), "/dev/null/weights.safetensors")
    ... except OSError as error:
    ...     print(type(error).__name__, "-", error.what)
    FileError - /dev/null/weights.safetensors cannot be written
    """


class MetaWarning(UserWarning):
    """What a user should know and that changes no result: a cache that cannot be used.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always", meta.errors.MetaWarning)
    ...     warnings.warn("the cache cannot be used", meta.errors.MetaWarning)
    >>> [str(warning.message) for warning in seen]
    ['the cache cannot be used']
    """
