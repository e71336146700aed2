"""Mixed precision: `autocast_scope` for a block of calls, made now or traced, and `autocast` for a
model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from meta.amp.cast_rule import cast_dtypes, cast_finite, require_half, stays_finite
from meta.base.call_context import Default, current, use
from meta.base.dtype import canonical, is_float
from meta.base.errors import ArgumentError, AutocastError
from meta.base.registry import OPERATORS
from meta.op.core.call import array_type, map_tensors
from meta.op.core.op import Op, by_schema
from meta.op.core.tracing import Symbol, Trace
from meta.runtime.ndarray import as_array, ndarray

# `autocast`: a model in mixed precision. What the model is, and how it is traced, is its own.


def autocast(model: Any, dtype: object = "float16", out_dtype: object = None) -> Any:
    """Return a model that computes in mixed precision what ``model`` computes.

    model: a `meta.Model`, also one that trains (`meta.model.value_and_grad`,
    `meta.optim.with_sgd`): forward, backward and update are then cast, each operator by its own
    rule. The result may in turn be given to these.
    dtype: "float16" or "bfloat16". out_dtype: of the floating point results; None: what they have
    without autocast, so that the model is called, and differentiated, as before.

    Parameters, running statistics and whatever else is written in place stay as they are: arrays,
    their names and dtypes are those of ``model``. See `meta.passes.autocast` for what is cast.

    Raises ArgumentError for another dtype or something that is no model, and, when it is first
    called, AutocastError for operators without a cast rule.

    >>> model = meta.amp.autocast(meta.model.Linear(3, 2), "bfloat16", out_dtype="bfloat16")
    >>> model(meta.ones((4, 3))).dtype, model.program(meta.ones((4, 3))).arrays[0].dtype
    ('bfloat16', 'float32')
    """
    half = require_half(dtype)
    out = None if out_dtype is None else canonical(out_dtype)
    if out is not None and not is_float(out):
        raise ArgumentError("out_dtype is that of floating point results", found=out)
    wrap = getattr(model, "__autocast__", None)
    if wrap is None:
        raise ArgumentError(
            "this has no mixed precision",
            expected="a meta.Model",
            found=type(model).__name__,
            hint="meta.frontend.from_torch(module, (x,)) makes one of a torch module; for calls "
            "there is meta.amp.autocast_scope",
        )
    return wrap(half, out)


@contextmanager
def autocast_scope(dtype: object = "float16", enabled: bool = True) -> Iterator[None]:
    """Cast the arguments of every operator called in this block by its cast rule.

    dtype: "float16" or "bfloat16". enabled: False switches an outer block off.

    Casts are recorded for `backward` like any call, so that a float32 parameter gets a float32
    gradient. A leaf that requires a gradient is cast once, as long as nobody writes to it and the
    block lasts; in a block that records nothing, at each use. `backward` is not affected: every
    gradient is computed in the precision in which its call was. Nor is a compiled program.

    In a function that is being traced, the casts become part of its program. What a loop carries
    must keep its dtype, here as everywhere: cast it at the end of the body.

    Raises AutocastError, at the call, for an operator without a cast rule.

    >>> x = meta.ones((2, 2))
    >>> with meta.amp.autocast_scope(dtype="bfloat16"):
    ...     (x @ x).dtype, meta.softmax(x).dtype
    ('bfloat16', 'float32')
    """
    half = require_half(dtype)
    handler = current()
    if isinstance(handler, Trace):
        with _set_before_call(handler, traced_casts(half) if enabled else None):
            yield
        return
    if not (handler is None or handler is Default.handler or isinstance(handler, EagerCasts)):
        raise AutocastError(
            "calls have another meaning here than to be run or traced", found=repr(handler)
        )
    with use(EagerCasts(half) if enabled else None):
        yield


@contextmanager
def _set_before_call(trace: Trace, before_call: Callable[..., Any] | None) -> Iterator[None]:
    outer, trace.before_call = trace.before_call, before_call
    try:
        yield
    finally:
        trace.before_call = outer


def traced_casts(half: str) -> Callable[..., Any]:
    """Return what a trace asks of each call in a block: its arguments, cast."""
    astype = OPERATORS["astype"]

    def before_call(op: Any, bound: tuple[Any, ...]) -> tuple[Any, ...]:
        if op is astype:  # a call of our own, too
            return bound
        wanted = _cast_dtypes(op, map_tensors(op, bound, lambda s: s.type), half)
        return _cast(bound, wanted, astype) if any(wanted) else bound

    return before_call


class EagerCasts:
    """The call handler of a block whose calls are run now.

    A traced function is called in it by a program with the casts of the block.
    """

    casts = True

    def __init__(self, half: str) -> None:
        self.half = half
        # By array and dtype: a reference to the array, how often it had been written, the cast.
        self._casts: dict[tuple[int, str], tuple[weakref.ref[ndarray], int, ndarray]] = {}

    def __call__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = op.schema.bind(args, kwargs, as_array)
        with use(None):
            wanted = _cast_dtypes(
                op, map_tensors(op, bound, lambda a: array_type(a.key)), self.half
            )
            return by_schema(op)(*(_cast(bound, wanted, self._kept) if any(wanted) else bound))

    def _kept(self, array: ndarray, dtype: str) -> ndarray:
        """Return an array's cast; of a leaf the one made before, if it is the same still."""
        leaf = array.requires_grad and array.node is None and not array.tensor.is_inference()
        place, version = (id(array), dtype), array.tensor._version if leaf else 0
        known = self._casts.get(place) if leaf else None
        if known is not None and known[0]() is array and known[1] == version:
            return known[2]
        made: ndarray = OPERATORS["astype"](array, dtype)
        # Not where nothing is recorded: a later call may need the link.
        if leaf and made.requires_grad:
            reference = weakref.ref(array, lambda _: self._casts.pop(place, None))
            self._casts[place] = (reference, version, made)
        return made


def _cast_dtypes(op: Any, types: tuple[Any, ...], half: str) -> tuple[str | None, ...]:
    base: Op = op if isinstance(op, Op) else op.base
    return cast_dtypes(base, types, half)


def _cast(bound: tuple[Any, ...], wanted: tuple[str | None, ...], astype: Any) -> tuple[Any, ...]:
    """Return arguments with the floating point tensors cast of those that are to be."""
    return tuple(
        value
        if dtype is None
        else tuple(_cast_value(v, dtype, astype) for v in value)
        if isinstance(value, tuple)
        else _cast_value(value, dtype, astype)
        for value, dtype in zip(bound, wanted, strict=True)
    )


def _cast_value(value: Any, dtype: str, astype: Any) -> Any:
    if not is_float(value.dtype) or value.dtype == dtype:
        return value
    if stays_finite(value.dtype, dtype) and not _is_trained(value):
        return cast_finite(value, dtype, lambda name, *args: OPERATORS[name](*args))
    return astype(value, dtype)


def _is_trained(value: Any) -> bool:
    """Whether a tensor is trained, and so no mask."""
    if isinstance(value, Symbol):
        return value.atom in value.trace.trained
    return bool(value.requires_grad)
