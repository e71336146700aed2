"""`@compute`: registers a TE compute function as the TVM implementation of a base operator;
`@pointwise` and `table`: functions of elements.

The function names the arguments it wants: a tensor is a `te.Tensor`, several are a tuple of them, a
run-time number is a scalar variable (float64, int64 or bool), an attribute its value; ``out`` is
the result type (a `TensorType`, or a tuple of them; ``out_`` for an operator that has an argument
``out``). It returns the operator's own results, then, for in-out slots, their new values in slot
order; the tensor itself where it stays as it is.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import te, tirx

from meta.base.dtype import COMPLEX, DTYPES, FLOAT8
from meta.base.errors import BackendError, RegistrationError
from meta.base.registry import nearest
from meta.base.source import Span, caller_span, definition_span
from meta.dialect.core import DialectOp, OpEnv, Unsupported, check_parameters
from meta.dialect.core.openv import declining
from meta.dialect.tvm import tvm as dialect
from meta.dialect.tvm.broadcast import broadcast, elementwise
from meta.dialect.tvm.build import deferred
from meta.dialect.tvm.index import zeros
from meta.dialect.tvm.launch import LaunchPlan
from meta.dialect.tvm.lower import prim_func
from meta.ir.dims import is_symbolic
from meta.ir.types import UNKNOWN, SymbolicDim, TensorType, TupleType, UnknownDim
from meta.op.core.call import CallValues, written_positions
from meta.op.core.op import Op
from meta.op.core.registration import require_function, require_op

# How a kernel may be fused with its neighbours (TVM's pattern kinds).
ELEMWISE, BROADCAST, INJECTIVE = "elemwise", "broadcast", "injective"
COMM_REDUCE, OUT_ELEMWISE_FUSABLE, OPAQUE = "comm_reduce", "out_elemwise_fusable", "opaque"
MOST_ON_CUDA = 1 << 40
"""Elements of an array in a kernel for CUDA. A launch has fewer than 2^31 blocks, and no device the
memory for so many; another dialect says so when it allocates them."""
# CUDA takes no bool as a kernel argument; one travels as an int and is a bool inside.
_SCALAR_DTYPE = {bool: "int64", int: "int64", float: "float64"}


def number_dtype(value: bool | int | float) -> str:
    """Return the dtype in which a kernel sees a run-time number."""
    return _SCALAR_DTYPE[type(value)]


class Extents(dict[SymbolicDim, Any]):
    """The variables of symbolic dimensions in one kernel.

    TVM reads them off the shapes of the arguments at each call. Index arithmetic is done in 64 bits
    then, since nothing bounds the extents.
    """

    def __missing__(self, dim: SymbolicDim) -> Any:
        self[dim] = te.var(f"extent{len(self)}", "int64")
        return self[dim]

    def placeholder(self, type_: TensorType, name: str) -> te.Tensor:
        """Return a tensor of a type."""
        return te.placeholder(self.shape(type_), type_.dtype, name)

    def shape(self, type_: TensorType) -> tuple[Any, ...]:
        """Return the extents of a type: numbers and variables."""
        return tuple(self[d] if isinstance(d, SymbolicDim) else d for d in type_.shape)

    def result(self, type_: TensorType) -> Any:
        """Return a result's type as a function is given it."""
        return type_ if type_.is_static else _Result(self.shape(type_), type_.dtype)


@dataclass(frozen=True)
class _Result:
    """The type of a result with variables among its extents."""

    shape: tuple[Any, ...]
    dtype: str

    @property
    def ndim(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class Compute:
    """The TVM aspect of an operator: the function and its fusion kind."""

    op: Op
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    kind: str

    def build(self, call: CallValues) -> tuple[list[Any], list[te.Tensor]]:
        """Return the PrimFunc's inputs, in the order of `OpEnv.run`, and its outputs."""
        inputs: list[Any] = []
        extents = Extents()

        def leaf(value: Any, name: str) -> Any:
            if isinstance(value, TensorType):
                inputs.append(extents.placeholder(value, name))
            else:
                inputs.append(te.var(name, dtype=number_dtype(value)))
            return inputs[-1]

        out = call.out.fields if isinstance(call.out, TupleType) else call.outputs[0]
        return inputs, self.apply(call.args, out, leaf, extents)

    def apply(
        self,
        args: tuple[Any, ...],
        out: Any,
        leaf: Callable[[Any, str], Any],
        extents: Extents,
    ) -> list[te.Tensor]:
        """Return the results for a call's arguments.

        ``leaf(value, name)`` makes the `te.Tensor` of a tensor argument, and what stands for a
        run-time number; ``extents`` stand for symbolic dimensions. Where no result has an element,
        the function is not asked.
        """
        lowered = tuple(map(extents.result, out)) if isinstance(out, tuple) else extents.result(out)
        values: dict[str, Any] = {self.op.schema.reserved("out"): lowered}
        for slot, value in zip(self.op.schema.slots, args, strict=True):
            if slot.kind == "attribute" or value is None:
                values[slot.name] = value
            elif slot.kind == "tensors":
                values[slot.name] = tuple(leaf(v, f"{slot.name}{i}") for i, v in enumerate(value))
            else:
                made = leaf(value, slot.name)
                values[slot.name] = made.astype("bool") if type(value) is bool else made
        types = out if isinstance(out, tuple) else (out,)
        nothing = all(t.is_static and 0 in t.shape for t in types)
        if types and nothing and not self.op.schema.written:
            return [zeros(t.shape, t.dtype) for t in types]
        result = self.function(**{p: values[p] for p in self.parameters})
        several = isinstance(result, list | tuple) or hasattr(result, "__len__")
        made = list(result) if several else [result]
        self._require(made, types)
        return made

    def _require(self, made: list[Any], types: tuple[TensorType, ...]) -> None:
        """Raise BackendError unless results are what the type function says: a kernel that is fused
        with others would read elements that are not there.
        """
        own = made[: len(types)]
        found = [_type_of(result, type_) for result, type_ in zip(own, types, strict=False)]
        if len(own) < len(types) or any(map(_differs, found, types)):
            raise BackendError(
                f"the TE function at {definition_span(self.function)} does not return what the "
                "type function says",
                op=self.op.name,
                expected=", ".join(map(str, types)),
                found=", ".join(map(str, found)) or "no result",
            )


def _type_of(result: Any, like: TensorType) -> Any:
    """Return the type of a TE tensor, symbolic extents as in ``like``; what is none as text."""
    if not isinstance(result, te.Tensor):
        return type(result).__name__
    same = len(result.shape) == like.ndim
    known = like.shape if same else (UNKNOWN,) * len(result.shape)
    dims = zip(result.shape, known, strict=True)
    return TensorType(
        tuple(int(d) if isinstance(d, tirx.IntImm) else k for d, k in dims), str(result.dtype)
    )


def _differs(found: Any, wanted: TensorType) -> bool:
    """Whether what was found is not of a type; an extent that is symbolic in it may be any."""
    if not isinstance(found, TensorType) or found.ndim != wanted.ndim:
        return True
    dims = zip(found.shape, wanted.shape, strict=True)
    unequal = any(f != w for f, w in dims if isinstance(f, int) and isinstance(w, int))
    return unequal or found.dtype != wanted.dtype


COMPUTES: dict[DialectOp, Compute] = {}
"""The aspect of each operator of the dialect that has one."""


def compute(
    op: Op,
    kind: str,
    *,
    when: Callable[[CallValues], str | None] | None = None,
    static: bool | None = None,
    level_of: Callable[[CallValues], int | None] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a TE compute function for ``op``; a decorator.

    Parameters
    ----------
    kind: the fusion kind, one of the constants of this module. A parameter ``**rest`` of the
        function stands for all further attributes.
    when: returns a reason to decline a call, or None.
    static: whether the function needs extents that are numbers. One that does not serves all
        extents of symbolic dimensions, on the CPU; of an elementwise kernel that is the default, on
        each device. Such a function computes with extents as expressions: ``int(x.shape[0])`` and
        a comparison in Python are numbers' alone (`index.number` declines others). It need not
        serve those that no result has, such as a number of rows over which it sums.
    level_of: returns the priority level for a call in which the kernel is better than otherwise,
        or None.
    """

    require_op(op, "a compute function")
    _require_kind(kind, f"a compute function of {op.name!r}")
    if when is not None:
        require_function(when, f"when= of a compute function of {op.name!r}")

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        require_function(function, f"a compute function of {op.name!r}")
        rest = inspect.getfullargspec(function).varkw
        names = check_parameters(op, function, (op.schema.reserved("out"), rest or ""))
        if rest:
            every = (slot.name for slot in op.schema.slots if slot.kind == "attribute")
            names = tuple(dict.fromkeys((*names, *every)))
            names = tuple(name for name in names if name != rest)
        aspect = Compute(op, function, names, kind)
        _register(aspect, definition_span(function), when, static).level_of = level_of
        return function

    return register


def pointwise(
    op: Op, kind: str = ELEMWISE, *, within: str | None = None, raw: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of elements for ``op``; a decorator.

    The function is given an element of each tensor, and each run-time number, in slot order. What
    it takes by keyword only is an attribute of that name, or ``out``.

    Parameters
    ----------
    within: the dtype to compute in, if it is not that of `elementwise`.
    raw: whether the elements come in the dtypes that they have.
    """

    require_op(op, "a function of elements")
    _require_kind(kind, f"a function of elements of {op.name!r}")

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        require_function(function, f"a function of elements of {op.name!r}", classes=True)
        named = inspect.getfullargspec(function).kwonlyargs
        aspect = _of_elements(op, function, kind, tuple(named), within, raw)
        _register(aspect, definition_span(function))
        return function

    return register


def table(functions: dict[Op, Callable[..., Any]], kind: str = ELEMWISE, **options: Any) -> None:
    """Register functions of elements; for the options see `pointwise`."""
    for op, function in functions.items():
        require_op(op, "a function of elements", caller_span())
        what = f"a function of elements of {op.name!r}"
        require_function(function, what, caller_span(), classes=True)
        _register(_of_elements(op, function, kind, **options), caller_span())


KINDS = (ELEMWISE, BROADCAST, INJECTIVE, COMM_REDUCE, OUT_ELEMWISE_FUSABLE, OPAQUE)


def _takes(function: Callable[..., Any], count: int, named: tuple[str, ...]) -> bool:
    """Whether a function can be called with so many elements, and what it names; those that are not
    written in Python do not say.
    """
    try:
        inspect.signature(function).bind(*range(count), **dict.fromkeys(named))
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _require_kind(kind: Any, what: str) -> None:
    if kind not in KINDS:
        raise RegistrationError(
            f"{what} has an unknown fusion kind",
            expected=f"one of {', '.join(KINDS)}",
            found=f"{kind!r:.200}",
            hint=nearest(kind, KINDS) if isinstance(kind, str) else "ELEMWISE, say",
        )


def _of_elements(
    op: Op,
    function: Callable[..., Any],
    kind: str,
    named: tuple[str, ...] = (),
    within: str | None = None,
    raw: bool = False,
) -> Compute:
    elements = tuple(slot.name for slot in op.schema.slots if slot.kind != "attribute")
    out = op.schema.reserved("out")
    unknown = [n for n in named if n != out and n not in op.schema.index]
    unfit = unknown or not _takes(function, len(elements), named)
    if unfit or (within is not None and within not in DTYPES):
        raise RegistrationError(
            f"a function of elements of {op.name!r} does not fit",
            expected=f"an element of each of {elements}, attributes by keyword only, and for "
            "within= a dtype",
            found=f"{within!r}" if not unfit else f"{inspect.signature(function)}",
            span=definition_span(function),
        )

    def kernel(**given: Any) -> te.Tensor:
        of = partial(function, **{name: given[name] for name in named})
        operands, dtype = [given[name] for name in elements], given[out].dtype
        if raw:
            return broadcast(of, *operands, dtype=dtype)
        return elementwise(of, *operands, dtype=dtype, within=within)

    return Compute(op, kernel, tuple(dict.fromkeys((*elements, *named, out))), kind)


def _register(
    aspect: Compute,
    site: Span,
    when: Callable[[CallValues], str | None] | None = None,
    static: bool | None = None,
) -> DialectOp:
    elementwise = aspect.kind in (ELEMWISE, BROADCAST)

    def make(call: CallValues) -> OpEnv:
        declining(when, call)
        types = (*call.tensors(), *call.outputs)
        if any(t.dtype in FLOAT8 or t.dtype in COMPLEX for t in types):
            raise Unsupported("no code is generated for float8 and complex numbers")
        known = all(t.is_static for t in types)
        serves_all = call.device.kind in made.symbolic
        if not known and not serves_all:
            raise Unsupported("this kernel is built for extents that are numbers")
        if any(isinstance(dim, UnknownDim) for t in types for dim in t.shape):
            raise Unsupported("nothing is known of an extent")
        results = {dim for t in call.outputs for dim in t.shape}
        read = (dim for t in call.tensors() for dim in t.shape)
        if any(isinstance(dim, SymbolicDim) and dim not in results for dim in read):
            raise Unsupported("no kernel is built that sums over an extent that is no number")
        if any(map(is_symbolic, call.args)):
            raise Unsupported("an attribute is a number that only a call knows")
        if any(map(_empty_and_long, types)):
            raise Unsupported("an empty array has an extent beyond 32 bits")
        sizes = [math.prod(t.static_shape) for t in types] if known else []
        if call.device.kind == "cuda" and any(size > MOST_ON_CUDA for size in sizes):
            raise Unsupported(f"an array has more than {MOST_ON_CUDA:,} elements")
        inputs, outputs = aspect.build(call)
        outputs, written = _changed(inputs, outputs, written_positions(call))
        function = prim_func(inputs, outputs, in_place=written)
        return deferred(function, call.device, LaunchPlan(repeated=written), not known)

    made = dialect.register(aspect.op, make, site)
    made.fusion = aspect.kind
    if not static:
        made.symbolic = ("cpu", "cuda") if elementwise else ("cpu",) if static is False else ()
    COMPUTES[made] = aspect
    return made


def _empty_and_long(array: TensorType) -> bool:
    """Whether TVM takes some extents for 32 bits and others for 64."""
    extents = [e for e in array.shape if isinstance(e, int)]
    return 0 in extents and max(extents) >= 2**31


def _changed(
    inputs: list[Any], outputs: list[te.Tensor], written: tuple[int, ...]
) -> tuple[list[te.Tensor], tuple[int, ...]]:
    """Leave out the written arguments whose new value is the old one."""
    own = len(outputs) - len(written)
    pairs = zip(outputs[own:], written, strict=True)
    changed = [(new, place) for new, place in pairs if not new.same_as(inputs[place])]
    return [*outputs[:own], *(new for new, _ in changed)], tuple(place for _, place in changed)
