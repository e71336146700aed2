"""Functions with ATen's names and arguments as kernels of our operators.

A function of a vendor's ``ops/`` has the name and the arguments of one of ATen's operators, as
FlagGems' have: ``softmax`` takes ``(self, dim, half_to_float)``. Where ATen has overloads, the name
says which: ``eq`` takes tensors, ``eq_scalar`` a tensor and a number, ``sum`` all axes, ``sum_dim``
some. `meta.dialect.torch.aten_calls` has the names and what each argument is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from meta.base.dtype import COMPLEX, FLOAT8, FLOATS, TO_TORCH, UNSIGNED
from meta.base.errors import BackendError, FormatError, MetaError
from meta.dialect.core.openv import OpEnv, Unsupported
from meta.dialect.torch.aten_calls import BY_FUNCTION
from meta.dialect.torch.correspondence import Argument, AtenCall, Computed, schema_of
from meta.ir.types import TensorType
from meta.op.core.call import CallValues, slot_positions

AT = "at"
"""Of an argument that a kernel receives: where."""
Bound = tuple[str, Any]
"""An argument of ATen's: `AT` and a place among the run-time values, or "is" and a value."""


def calls_of(name: str) -> tuple[AtenCall, ...]:
    """Return how a function of a name is called, nothing if the tables do not have it."""
    return BY_FUNCTION.get(name, ())


def is_other_form(name: str) -> bool:
    """Whether a name is that of a form of a known function that writes its argument or takes
    ``out=``: our operators are functions of their arguments, so that nothing would call it.
    """
    plain = name.removesuffix("_out").removesuffix("_")
    return plain != name and any(known in BY_FUNCTION for known in (plain, f"{plain}_tensor"))


def check_signature(function: Callable[..., Any], name: str, form: AtenCall) -> None:
    """Raise FormatError for a function that cannot be called with ATen's arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Triton's launchers, for one, do not say
        return
    try:
        signature.bind(*(None for _ in form.arguments), **dict.fromkeys(form.keywords))
    except TypeError as error:
        raise FormatError(
            f"the function {name!r} does not take ATen's arguments: {error}",
            expected=f"those of {form}, in this order",
            found=f"{name}{signature}",
        ) from None


def kernel_maker(
    implementations: Sequence[tuple[str, AtenCall, Callable[..., Any] | MetaError]],
    who: str,
    launching: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda run: run,
) -> Callable[[CallValues], OpEnv]:
    """Return the maker of an operator's kernels from functions with the forms in which they take
    it, of which the first that fits a call runs it; an error in place of one says why it is not
    available. ``who``: whose they are. ``launching``: gives a function as it is run on the machine.
    """

    def make(call: CallValues) -> OpEnv:
        refusals = []
        for name, form, function in implementations:
            if isinstance(function, MetaError):
                refusals.append(f"{name} is not available: {function.what} ({function.span})")
                continue
            try:
                args, keywords = _bound(form, call)
            except Unsupported as refusal:
                refusals.append(f"{name}: {refusal}")
                continue
            what = f"{name} of the {who}"
            run = _checked(launching(_caller(function, args, keywords)), form.result, call, what)
            return OpEnv(run, allocates=True, strided=True)
        raise Unsupported("; ".join(refusals))

    return make


_RARE = COMPLEX | FLOAT8 | UNSIGNED - {"uint8"}


def _bound(form: AtenCall, call: CallValues) -> tuple[list[Bound], dict[str, Bound]]:
    """Return what stands for each argument in a call; Unsupported if ATen has no such call, or if
    functions that were written for ATen may not be ready for it.
    """
    named, tensors = form.slots, list(call.tensors())
    dtypes = {t.dtype for t in tensors}
    if dtypes & _RARE:
        raise Unsupported(f"a tensor of {min(dtypes & _RARE)}, of which ATen has few kernels")
    if len(dtypes & FLOATS) > 1:
        raise Unsupported(f"tensors of several dtypes, {sorted(dtypes & FLOATS)}")
    if any(0 in t.shape for t in tensors) and not all(0 in t.shape for t in call.outputs):
        raise Unsupported("a tensor without elements")
    for slot, value in zip(call.op.slots, call.args, strict=True):
        if slot.name not in named and not (slot.has_default and value == slot.default):
            if value is None:
                continue
            shown = "a tensor" if isinstance(value, TensorType | tuple) else repr(value)
            raise Unsupported(f"ATen has no {slot.name}, which is {shown}")
    for name, domain in form.domain.items():
        value = getattr(call.args, name)
        if isinstance(value, TensorType):
            if not domain.has(value.dtype):
                raise Unsupported(f"{name} is {value.dtype}, not {domain.text}")
            if domain.ndim not in (None, value.ndim):
                raise Unsupported(f"{name} has not {domain.ndim} axes")
    schema = [] if form.overload is None else schema_of(form.overload)
    by_name = {argument.name: argument for argument in schema}
    args = [
        _argument(given, schema[i] if schema else None, call)
        for i, given in enumerate(form.arguments)
    ]
    return args, {k: _argument(v, by_name.get(k), call) for k, v in form.keywords.items()}


def _argument(given: Argument, argument: Any, call: CallValues) -> Bound:
    """Return what stands for an argument, which the schema has as ``argument``, if torch has one.

    Of a slot that is no tensor, the schema says how ATen takes it.
    """
    if isinstance(given, Computed):
        return _COMPUTED[given.what](call, *given.slots)
    if not isinstance(given, str):
        return "is", given
    type_ = "Tensor" if argument is None else str(argument.real_type)
    if "Tensor" in type_:
        return _slot(given, call)
    if call.op.slots[call.op.schema.index[given]].kind != "attribute":
        return _number(call, given)
    if given == "axis":
        return _axis(call, given, type_)
    for known, bind in _BY_TYPE.items():
        if known in type_:
            return bind(call, given)
    if argument.name == "reduction":
        return _reduction(call, given)
    if "List[int]" in type_:
        return _ints(call, given) if argument.N is None else _per_axis(call, given, argument.N)
    return _slot(given, call)


def _slot(name: str, call: CallValues) -> Bound:
    """Return a tensor, several, or an attribute."""
    slot, value = call.op.slots[call.op.schema.index[name]], getattr(call.args, name)
    if slot.kind == "attribute":
        return "is", list(value) if isinstance(value, tuple) else value
    if value is None:
        if slot.optional:
            return "is", None
        raise Unsupported(f"needs {name}")
    if slot.kind != "tensors" and not isinstance(value, TensorType):
        raise Unsupported(f"{name} is a number, not a tensor")
    return AT, slot_positions(call)[name]


def _number(call: CallValues, name: str) -> Bound:
    slot, value = call.op.slots[call.op.schema.index[name]], getattr(call.args, name)
    if slot.kind == "attribute":
        return "is", value
    if value is None or isinstance(value, TensorType):
        raise Unsupported(f"{name} is no number")
    return AT, slot_positions(call)[name]


def _batch(call: CallValues, name: str, other: str) -> Bound:
    if getattr(call.args, name).shape[0] != getattr(call.args, other).shape[0]:
        raise Unsupported("batches of different extent")
    return _slot(name, call)


def _ints(call: CallValues, name: str) -> Bound:
    value = getattr(call.args, name)
    if value is None:
        return "is", []
    return "is", list(value) if isinstance(value, tuple) else [value]


def _along(call: CallValues, name: str, axis: str) -> Bound:
    value, axes = _ints(call, name)[1], _ints(call, axis)[1]
    if not value:
        raise Unsupported(f"{name} is empty")
    return "is", value * len(axes) if len(value) == 1 and axes else value


def _per_axis(call: CallValues, name: str, count: int) -> Bound:
    value = _ints(call, name)[1]
    if len(value) not in (1, count):
        raise Unsupported(f"{name} is {value}, not one number for each of {count} axes")
    return "is", value * count if len(value) == 1 else value


def _reps(call: CallValues, name: str, other: str) -> Bound:
    found = _ints(call, name)
    if len(found[1]) < getattr(call.args, other).ndim:
        raise Unsupported(f"{name} is shorter than the shape")
    return found


def _reduction(call: CallValues, name: str) -> Bound:
    return "is", ("none", "mean", "sum").index(getattr(call.args, name))


def _device(call: CallValues, name: str) -> Bound:
    return "is", torch.device(str(call.out_device))


def _axis(call: CallValues, name: str, type_: str) -> Bound:
    """Return an axis, or where ATen takes several, a list of one or more."""
    axes = getattr(call.args, name)
    if axes is None and type_ == "Optional[int]":
        return "is", None
    if axes is None or axes == ():
        raise Unsupported(f"{name} is {axes}")
    several = list(axes) if isinstance(axes, tuple) else [axes]
    if "List" in type_:
        return "is", several
    if len(several) != 1:
        raise Unsupported(f"{name} is {several}, not one axis")
    return "is", several[0]


def _flag(call: CallValues, name: str) -> Bound:
    value = getattr(call.args, name)
    if not isinstance(value, bool):
        raise Unsupported(f"{name} is {value!r}, not True or False")
    return "is", value


def _dtype(call: CallValues, name: str) -> Bound:
    value = getattr(call.args, name)
    return "is", None if value is None else TO_TORCH[value]


def _dtype_of(call: CallValues, name: str) -> Bound:
    return "is", TO_TORCH[getattr(call.args, name).dtype]


def _last(call: CallValues, name: str, axis: str) -> Bound:
    type_, place = getattr(call.args, name), getattr(call.args, axis)
    if place not in (-1, type_.ndim - 1):
        raise Unsupported(f"{axis} is {place}, not the last one")
    return "is", [type_.shape[-1]]


_BY_TYPE: dict[str, Callable[..., Bound]] = {
    "ScalarType": _dtype, "Device": _device, "bool": _flag,
}  # fmt: skip
"""By a part of the name of a schema's type."""
_COMPUTED: dict[str, Callable[..., Bound]] = {
    "along": _along, "batch": _batch, "dtype": _dtype_of, "integers": _ints, "last": _last,
    "repeats": _reps,
}  # fmt: skip


def _caller(
    function: Callable[..., Any], args: list[Bound], keywords: dict[str, Bound]
) -> Callable[..., Any]:
    """Return a function of the run-time values that calls ATen's."""

    def run(*values: Any) -> Any:
        def given(bound: Bound) -> Any:
            kind, value = bound
            if kind != AT:
                return value
            return list(values[value]) if isinstance(value, slice) else values[value]

        return function(*map(given, args), **{k: given(v) for k, v in keywords.items()})

    return run


def _checked(
    run: Callable[..., Any], which: int | None, call: CallValues, what: str
) -> Callable[..., Any]:
    """Return a kernel whose results are what the operator's type function says, compact and in
    memory of their own; BackendError if the function returns others. One without elements is not
    asked for.
    """
    types = call.outputs
    wanted = [
        (torch.Size(t.static_shape) if t.is_static else None, TO_TORCH[t.dtype]) for t in types
    ]
    device = torch.device(str(call.out_device))
    empty = [(s, dtype) for s, dtype in wanted if s is not None and 0 in s]
    if len(empty) == len(wanted):
        return lambda *_: _unpacked([torch.empty(s, dtype=d, device=device) for s, d in empty])

    def kernel(*values: Any) -> Any:
        found = run(*values)
        if which is not None and isinstance(found, tuple | list):
            found = found[which]
        results = list(found) if isinstance(found, tuple | list) else [found]
        owned = {v.data_ptr() for v in values if isinstance(v, torch.Tensor)} - {0}
        if len(results) != len(wanted):
            raise _wrong(f"{len(results)} results", call, what)
        for i, (result, (shape, dtype)) in enumerate(zip(results, wanted, strict=True)):
            if not isinstance(result, torch.Tensor):
                raise _wrong(type(result).__name__, call, what)
            if result.dtype != dtype or (shape is not None and result.shape != shape):
                raise _wrong(f"{result.dtype} of shape {tuple(result.shape)}", call, what)
            if not result.is_contiguous():
                results[i] = result.contiguous()
            elif result.data_ptr() in owned:
                results[i] = result.clone()
        return _unpacked(results)

    return kernel


def _unpacked(results: list[torch.Tensor]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _wrong(found: str, call: CallValues, what: str) -> BackendError:
    return BackendError(
        f"{what} returns something else than its operator does",
        op=call.op.name, expected=call.out, found=found,
        hint="it must return what ATen's operator returns; until then, exclude it in "
        "CUSTOMIZED_UNUSED_OPS",
    )  # fmt: skip
