"""`Op`: a base operator, the object to which every aspect attaches. `declare.py` has `@op`, which
makes one of a type function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meta.base.aliases import UFUNC
from meta.base.call_context import Default, context
from meta.base.device import Device
from meta.base.dtype import COMPLEX, DTYPES, FLOAT8
from meta.base.errors import (
    ArgumentError,
    GradientError,
    MetaError,
    RegistrationError,
    TraceError,
    TypeInferError,
    UnknownName,
)
from meta.base.number import fits, out_of_range, suggest_dtype
from meta.base.registry import OPERATORS
from meta.base.signature_check import require_bindable
from meta.base.source import Span, definition_span
from meta.ir.expr import OpNode
from meta.ir.types import TensorType, TupleType, Type
from meta.op.core.axes import Axes, AxesRule
from meta.op.core.axes import elementwise as elementwise_axes
from meta.op.core.call import CallValues, call_text, runtime_args
from meta.op.core.check import array_limit_error
from meta.op.core.indices import IndexRange, IndexRule
from meta.op.core.names import NO_NAMES, Names
from meta.op.core.phases import phase_slots
from meta.op.core.schema import Schema
from meta.op.core.slot import Slot
from meta.runtime import trace_checks
from meta.runtime.inplace_writes import writable_buffer
from meta.runtime.ndarray import array_with_key, ndarray
from meta.runtime.no_gradient import is_recording

MAX_DESCRIPTION = 1000
"""Characters of a call that an error shows."""
CONSTANT_TYPES = (bool, int, float, tuple)
"""What a type function returns where the result is known now."""
NOT_COMPLEX = "this operator does not take complex numbers"

_ABSENT: Any = object()
_new = object.__new__
_context = context.get

Declare = Callable[[CallValues], None]


@dataclass(slots=True)
class Aspects:
    """What other floors attach to an operator. Each entry remembers its own file:line."""

    gradient: Any = None
    cast_rule: Any = None
    dialect_ops: list[Any] = field(default_factory=list)
    converters: dict[str, Span] = field(default_factory=dict)


class Op(OpNode):
    """A backend-independent operator.

    Calling it asks the current call handler what the call means (`base/call_context.py`). The
    result of an operator with in-out slots is its own outputs followed by the written arguments in
    slot order.

    Attributes
    ----------
    schema: the slots. type_function: argument types to result type. site: where it was defined.
    random: whether two calls with the same arguments may differ, so that no pass may merge, fold or
    repeat them.
    collective: what ranks exchange (`meta.op.collective`), so that no pass may fold it:
    "all_reduce", "gather", "scatter", "broadcast", "all_to_all", "send", "wait" for what was
    started, "nothing" if each takes its own part alone; empty where other ranks have no part.
    elementwise: whether each element of the result is made of the elements at its place in the
    tensors, which are broadcast, alone.
    commutative: whether the first two arguments may be exchanged.
    float8: whether tensors of float8 are taken and returned; they have no arithmetic.
    complex: whether complex tensors are taken and returned, as by all that takes float8.
    axes: how the axes of tensors belong together, None if that is not said; see `axes_of`.
    indices: which arguments are indices, and into what; None if none is. See `indices.py`.
    promotes: the slots whose operands a user's call may give in several dtypes; see `promotion.py`.
    counts_as_float: whether integers and bools among these count as float32 there.
    unary: the operator that a call with the first argument alone means; empty for none.
    view_elsewhere: whether NumPy and PyTorch return a view of the first argument, of which this
    returns a copy, which users are not to write; see `meta.runtime.view_copies`.
    names: what other systems call it; see `names.py`.
    aspects: gradient, cast rule, dialect operators, converters.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        schema: Schema,
        random: bool,
        collective: str = "",
        elementwise: bool = False,
        commutative: bool = False,
        float8: bool = False,
        complex: bool = False,
        axes: AxesRule | None = None,
        indices: IndexRule | None = None,
        promotes: tuple[str, ...] = (),
        counts_as_float: bool = False,
        unary: str = "",
        view_elsewhere: bool = False,
        names: Names = NO_NAMES,
    ) -> None:
        super().__init__(name)
        self.schema = schema
        self.type_function = function
        self.random, self.collective = random, collective
        self.elementwise = elementwise
        self.commutative, self.float8 = commutative, float8
        self.complex = complex or float8
        self.axes, self.indices, self.promotes = axes, indices, promotes
        self.counts_as_float, self.unary = counts_as_float, unary
        self.view_elsewhere = view_elsewhere
        self.names = names.of(name)
        self.site: Span = definition_span(function)
        self.aspects = Aspects()
        self._declare: Declare | None = None
        self.declare_site: Span | None = None
        self.__name__ = self.__qualname__ = name
        self.__doc__ = function.__doc__

    def __call__(self, x: Any = _ABSENT, y: Any = _ABSENT, /, *args: Any, **kwargs: Any) -> Any:
        # One array, two, or one and a float, for which a kernel was decided before: the handler
        # does the same in twice the time.
        kernel = failure = None
        try:
            if type(x) is ndarray and not args and not kwargs:
                if type(y) is ndarray:
                    calls, first = _context().pairs[self], x.key
                    kernel, key = calls[first] if first is y.key else calls[first, y.key]
                    result = _new(ndarray)  # as `array_with_key` does
                    result.tensor = kernel(x.tensor, y.tensor)
                    result.key = key
                    result.grad = result.node = None
                    result.name = ""
                    result.tracked = False
                    if x.tracked or y.tracked:
                        return Default.recorded(self, (x, y), result)
                    return result
                if y is _ABSENT:
                    kernel, key = _context().alone[self][x.key]
                    result = array_with_key(kernel(x.tensor), key)
                    return Default.recorded(self, (x,), result) if x.tracked else result
                if type(y) is float:
                    kernel, key = _context().pairs[self][x.key, float]
                    result = array_with_key(kernel(x.tensor, y), key)
                    return Default.recorded(self, (x, y), result) if x.tracked else result
        except Exception as error:
            if kernel is not None:
                failure = Default.failed(self, (x,) if y is _ABSENT else (x, y), error)
            elif not isinstance(error, KeyError):  # of operands that were not met yet
                raise
        if failure is not None:  # behind the block: what the error holds is free by then
            raise failure
        given = () if x is _ABSENT else (x, *args) if y is _ABSENT else (x, y, *args)
        if "out" in kwargs:
            return write_out(self.name, kwargs.pop("out"), lambda: self(*given, **kwargs))
        if self.unary and len(given) == 1 and not kwargs:
            return OPERATORS[self.unary](x)
        return (_context().handler or Default.handler)(self, given, kwargs)

    def __getattr__(self, name: str) -> Any:
        """Say what an attribute of NumPy's functions is here; only missing ones come here."""
        if name == "__signature__":
            return self.schema.signature
        if name in UFUNC:
            hint = UFUNC[name].format(name=self.name)
            raise UnknownName(f"meta.{self.name} has no {name!r}", hint=f"write {hint}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<operator {self.name}>"

    @property
    def family(self) -> str:
        """The operator's family: the name of the file that defines it, or of the package."""
        file = Path(self.site.file)
        return file.parent.name if file.stem == "__init__" else file.stem

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The arguments: name, kind, access, default."""
        return self.schema.slots

    @property
    def has_effect(self) -> bool:
        """Whether the operator writes an argument, so that no pass may remove or move a call."""
        return bool(self.schema.written)

    def infer(self, args: tuple[Any, ...]) -> Any:
        """Apply the type function to canonical arguments whose tensors are `TensorType`s.

        Returns a Type, or a plain value where the result is known now. Raises TypeInferError for
        the user's errors.
        """
        if not self.float8:
            self._refuse_dtypes(args, args)
        try:
            result = self.type_function(*args)
        except (TypeInferError, ArgumentError) as error:
            if error.op is None:
                error.op = self.name
                if error.found is None:
                    error.found = self._describe(args)
            raise
        except Exception as error:
            if self.site.is_own or isinstance(error, MetaError):
                raise
            raise self._wrong(f"raises {type(error).__name__}: {error}", args) from error
        if isinstance(result, tuple) and all(isinstance(r, Type) for r in result):
            # A tuple of types is the type of a tuple; () is also what an operator returns that only
            # writes.
            result = TupleType(result) if result or self.schema.written else result
        types = result.fields if isinstance(result, TupleType) else (result,)
        if not self.site.is_own:
            self._check_result(result, types, args)
        wrong = array_limit_error(types)
        if wrong is not None:
            what, expected, found = wrong
            raise TypeInferError(
                what, op=self.name, expected=expected, found=f"{found} of {self._describe(args)}"
            )
        self._require_numbers_fit(args, result)
        if not self.float8:
            self._refuse_dtypes(args, types)
        return result

    def _check_result(self, result: Any, types: Sequence[Any], args: tuple[Any, ...]) -> None:
        """Raise TypeInferError if the type function of a stranger returns no type of tensors where
        its annotation says so, or where no value is known either.
        """
        known = self.schema.returns is not TensorType and isinstance(result, CONSTANT_TYPES)
        if isinstance(result, tuple) and any(isinstance(r, Type) for r in result):
            known = False  # a type among values
        if not isinstance(result, Type) and not known:
            raise self._wrong(f"returns {result!r:.100}", args)
        for one in types:
            if isinstance(one, TensorType) and one.dtype not in DTYPES:
                raise self._wrong(f"returns a tensor of the unknown dtype {one.dtype!r}", args)

    def _wrong(self, what: str, args: tuple[Any, ...]) -> TypeInferError:
        """Return the error for a fault of the type function, which names its line."""
        error = TypeInferError(
            f"its type function {what}",
            op=self.name,
            expected="the type of the result: a TensorType, several as a tuple",
            found=self._describe(args),
        )
        error.note(f"type function: {self.site}")
        return error

    def _refuse_dtypes(self, args: tuple[Any, ...], types: Sequence[Any]) -> None:
        """Raise TypeInferError if a tensor among ``types``, or in a tuple among them, is float8, or
        complex where the operator does not take that.
        """
        flat = [t for a in types for t in (a if isinstance(a, tuple) else (a,))]
        found = {t.dtype for t in flat if isinstance(t, TensorType)}
        if found & COMPLEX and not self.complex:
            raise TypeInferError(
                NOT_COMPLEX,
                op=self.name,
                expected="tensors of other dtypes",
                found=self._describe(args),
                hint="take parts of them: meta.real(x), meta.imag(x), meta.abs(x) or meta.angle(x)",
            )
        if found & FLOAT8:
            raise TypeInferError(
                "float8 is stored, moved and cast, and has no arithmetic but scaled_matmul",
                op=self.name,
                expected="tensors of other dtypes",
                found=self._describe(args),
                hint='cast them first: meta.astype(x, "float16")',
            )

    def _require_numbers_fit(self, args: tuple[Any, ...], result: Any) -> None:
        """Raise NumberOutOfRange for a Python number that the dtype it takes does not have."""
        for i, dtype in self.schema.number_dtypes(args, result).items():
            value = args[i]
            if not fits(value, dtype):
                tensors = any(isinstance(a, TensorType) for a in args)
                hint = None if tensors else f'dtype="{suggest_dtype(value)}"'
                error = out_of_range(value, dtype, f"argument {self.schema.names[i]!r}", hint)
                error.op, error.found = self.name, f"{value!r} in {self._describe(args)}"
                raise error

    def _describe(self, args: tuple[Any, ...]) -> str:
        text = call_text(self, args)
        return text if len(text) <= MAX_DESCRIPTION else f"{text[:MAX_DESCRIPTION]}..."

    def call_values(self, args: tuple[Any, ...], device: Device) -> CallValues:
        """Infer and declare a call with canonical arguments; see `CallValues`. What is left out at
        the end has its default.
        """
        args += self.schema.defaults[len(args) :]
        call = CallValues(self, args, device)
        call.out = self.infer(args)
        if not isinstance(call.out, Type):
            call.callee = None
        elif self._declare is not None:
            self._declare(call)
        return call

    def axes_of(self, args: dict[str, Any]) -> tuple[Axes, ...]:
        """Return how the axes of a call belong together, of arguments by name, tensors being types;
        () if that is not said. See `axes.py`.
        """
        if self.axes is None:
            return tuple(elementwise_axes(args, self.promotes)) if self.elementwise else ()
        return tuple(self.axes(args))

    def index_ranges(self, args: tuple[Any, ...]) -> tuple[tuple[int, IndexRange], ...]:
        """Return what is indexed by data in a call with canonical arguments, tensors being types:
        the position of each tensor of indices among `runtime_args`, and what it may hold.
        """
        return tuple(row for row in self._ranges(args) if not self._is_number(args, row[1]))

    def number_ranges(self, args: tuple[Any, ...]) -> dict[int, IndexRange]:
        """Return the same of Python numbers, by position."""
        return {at: r for at, r in self._ranges(args) if self._is_number(args, r)}

    def _is_number(self, args: tuple[Any, ...], found: IndexRange) -> bool:
        return isinstance(args[self.schema.index[found.slot]], bool | int | float)

    def _ranges(self, args: tuple[Any, ...]) -> tuple[tuple[int, IndexRange], ...]:
        if self.indices is None:
            return ()
        wanted = inspect.signature(self.indices).parameters
        found = tuple(self.indices(**{name: args[self.schema.index[name]] for name in wanted}))
        for one in found:
            if not isinstance(one, IndexRange):
                raise RegistrationError(
                    f"the indices of operator {self.name!r} are {one!r:.100}",
                    expected="an IndexRange for each tensor of indices",
                    span=definition_span(self.indices),
                )
        before = (len(runtime_args(self, args, self.schema.index[r.slot])) for r in found)
        return tuple((count + r.field, r) for count, r in zip(before, found, strict=True))

    def declare(self, function: Declare) -> Declare:
        """Register, as a decorator, what prepares a call if to infer and allocate is not enough."""
        if self._declare is not None:
            raise RegistrationError(
                f"operator {self.name!r} has two declares",
                found=f"{definition_span(function)} and {self.declare_site}",
                span=definition_span(function),
            )
        self._declare, self.declare_site = function, definition_span(function)
        return function

    def signature(
        self, phase: str, args: tuple[Any, ...] | None = None
    ) -> tuple[tuple[str, str], ...]:
        """Return (slot, access) pairs of one phase of the task view: "init", "forward" or
        "backward"; of a call, if its canonical arguments are given.

        ``init`` takes the attributes. ``forward`` takes tensors and numbers and writes "out".
        ``backward`` reads what the gradient keeps, and the gradient of the result, and writes
        "d<slot>" of differentiable slots. See `phases.phase_slots`, and `meta.task`.
        """
        return tuple((slot.name, slot.access) for slot in phase_slots(self, phase, args))


class ComposedOp(Op):
    """An operator whose call may take more than its schema: other forms of the arguments, or cases
    that are composed of several operators.

    ``written``, set by `calls`, is what a call means. The program has calls by the schema only, and
    what works with any operator makes them by `by_schema`. ``takes_schema``: whether a call with
    the arguments of the schema means the same.
    """

    written: Callable[..., Any]
    takes_schema: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            return write_out(self.name, kwargs.pop("out"), lambda: self(*args, **kwargs))
        try:
            return self.written(*args, **kwargs)
        except MetaError as error:
            if error.op is None:
                error.op = self.name
            raise
        except AttributeError:
            if hasattr(self, "written"):
                raise
            raise RegistrationError(
                f"nothing says what the composed operator {self.name!r} is composed of",
                expected=f"a function under @{self.name}.calls",
                span=self.site,
            ) from None
        except TypeError:
            require_bindable(self.name, inspect.signature(self.written), args, kwargs)
            raise  # in the function, not for its arguments

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator itself, by its schema."""
        return super().__call__(*args, **kwargs)

    def calls(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register, as a decorator, what a call means."""
        self.written = function
        self.__signature__ = inspect.signature(function)
        names = tuple(self.__signature__.parameters)
        self.takes_schema = names[: len(self.schema.names)] == self.schema.names
        return function


def by_schema(op: Any) -> Callable[..., Any]:
    """Return what calls an operator, or a dialect's, with the arguments of its schema."""
    return op.plain if isinstance(op, ComposedOp) else op


# ``meta.add(x, y, out=z)``: the result of a call is written into an array that there is.
#
# Every operator takes it whose result is one array. As with torch, nothing is promoted or broadcast
# on the way to ``out``, and no gradient passes.


def write_out(name: str, out: Any, call: Callable[[], Any]) -> Any:
    """Write the result of a call of an operator into ``out`` and return it; None: return the
    result.

    Raises ArgumentError for what is no array, or has another shape, dtype or device than the
    result; GradientError where the call would be recorded, or ``out`` requires a gradient; and
    TraceError in code that is traced.
    """
    if out is None:
        return call()
    hint = f"z = meta.{name}(...), which is a new array"
    if trace_checks.current_trace() is not None:
        raise TraceError(
            f"{name}(out=) writes to an array while a function is traced: a program has no such "
            "writes",
            found=f"out of shape {out.shape}",
            hint=hint,
        )
    if not isinstance(out, ndarray):
        raise ArgumentError(
            "out must be an array of meta",
            op=name,
            found=type(out).__name__,
            hint="meta.from_dlpack(t) shares the memory of arrays of other libraries",
        )
    memory = writable_buffer(out, f"{name}(out=)", hint)
    result = call()
    if not isinstance(result, ndarray):
        raise ArgumentError(
            "out= is for operators whose result is one array",
            op=name,
            found=type(result).__name__,
        )
    if result.requires_grad and is_recording():
        raise GradientError(
            "a call with out= is not recorded, and an argument requires a gradient",
            op=name,
            hint=f"{hint}; or with meta.no_grad(): where no gradient is needed",
        )
    if (result.shape, result.dtype, result.device) != (out.shape, out.dtype, out.device):
        raise ArgumentError(
            "out has another type than the result",
            op=name,
            expected=f"shape {result.shape}, dtype {result.dtype}, on {result.device}",
            found=f"shape {out.shape}, dtype {out.dtype}, on {out.device}",
        )
    memory.copy_(result.tensor.detach())
    return out
