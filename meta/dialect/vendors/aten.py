"""Functions with ATen's names and arguments as kernels of our operators; see `aten_names.py`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from meta.base.dtype import COMPLEX, FLOATS, TO_TORCH, UNSIGNED
from meta.base.errors import BackendError, FormatError
from meta.base.registry import OPERATORS
from meta.dialect.core.openv import OpEnv, Unsupported
from meta.dialect.vendors.aten_names import ROWS
from meta.ir.types import TensorType
from meta.op.core.call import CallValues, slot_positions
from meta.op.core.op import Op

AT = "at"
"""Of an argument that a kernel receives: where."""
Bound = tuple[str, Any]
"""An argument of ATen's: `AT` and a place among the run-time values, or "is" and a value."""


@dataclass(frozen=True, slots=True)
class Form:
    """How ATen calls one of our operators.

    Attributes
    ----------
    text: as in the table. op: the operator. args, keywords: what stands for ATen's arguments, as
    syntax. result: which of several results is the operator's, None for the only one.
    """

    text: str
    op: str
    args: tuple[ast.expr, ...]
    keywords: tuple[tuple[str, ast.expr], ...]
    result: int | None

    @property
    def slots(self) -> set[str]:
        """The slots of the operator that it has something of."""
        found: set[str] = set()
        for node in (*self.args, *(value for _, value in self.keywords)):
            named = node.args if isinstance(node, ast.Call) else [node]
            found.update(one.id for one in named if isinstance(one, ast.Name))
        return found


@cache
def forms_of(name: str) -> tuple[Form, ...]:
    """Return the forms of a function's name, none if the table does not have it."""
    return tuple(map(_form, ROWS.get(name, ())))


def _form(text: str) -> Form:
    node: Any = ast.parse(text, mode="eval").body
    result = None
    if isinstance(node, ast.Subscript):
        node, result = node.value, ast.literal_eval(node.slice)
    keywords = tuple((k.arg, k.value) for k in node.keywords)
    return Form(text, node.func.id, tuple(node.args), keywords, result)


def check_signature(function: Callable[..., Any], name: str, form: Form) -> None:
    """Raise FormatError for a function that cannot be called with ATen's arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Triton's launchers, for one, do not say
        return
    try:
        signature.bind(*(None for _ in form.args), **{k: None for k, _ in form.keywords})
    except TypeError as error:
        raise FormatError(
            f"the function {name!r} does not take ATen's arguments: {error}",
            expected=f"those of {form.text}, in this order",
            found=f"{name}{signature}",
        ) from None


def kernel_maker(
    implementations: Sequence[tuple[str, Form, Callable[..., Any]]],
    who: str,
    launching: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda run: run,
) -> Callable[[CallValues], OpEnv]:
    """Return the maker of an operator's kernels from functions with the forms in which they take
    it, of which the first that fits a call runs it. ``who``: whose they are. ``launching``: gives a
    function as it is run on the machine.
    """

    def make(call: CallValues) -> OpEnv:
        refusals = []
        for name, form, function in implementations:
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


def operators_of(forms: Sequence[Form]) -> list[tuple[Op, Form]]:
    """Return the forms with their operators."""
    return [(OPERATORS[form.op], form) for form in forms]


_RARE = COMPLEX | UNSIGNED - {"uint8"}


def _bound(form: Form, call: CallValues) -> tuple[list[Bound], dict[str, Bound]]:
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
    args = [_argument(node, call) for node in form.args]
    return args, {key: _argument(node, call) for key, node in form.keywords}


def _argument(node: ast.expr, call: CallValues) -> Bound:
    if isinstance(node, ast.Constant):
        return "is", node.value
    if isinstance(node, ast.Name):
        return _slot(node.id, call)
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    given = [one.id if isinstance(one, ast.Name) else ast.literal_eval(one) for one in node.args]
    return _TAKEN[node.func.id](call, *given)


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


def _of(known: frozenset[str], text: str, others: bool = False) -> Callable[..., Bound]:
    """Return what takes a tensor of some dtypes, or of all others."""

    def taken(call: CallValues, name: str) -> Bound:
        bound = _slot(name, call)
        dtype = getattr(call.args, name).dtype
        if (dtype in known) == others:
            raise Unsupported(f"{name} is {dtype}, not {text}")
        return bound

    return taken


_floating = _of(FLOATS, "floating point")


def _rank(call: CallValues, name: str, ndim: int) -> Bound:
    bound = _floating(call, name)
    if getattr(call.args, name).ndim != ndim:
        raise Unsupported(f"{name} has not {ndim} axes")
    return bound


def _batch(call: CallValues, name: str, other: str) -> Bound:
    bound = _rank(call, name, 3)
    if getattr(call.args, name).shape[0] != getattr(call.args, other).shape[0]:
        raise Unsupported("batches of different extent")
    return bound


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


def _each(call: CallValues, name: str, count: int) -> Bound:
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


def _dims(call: CallValues, name: str) -> Bound:
    axes = getattr(call.args, name)
    if axes is None or axes == ():
        raise Unsupported(f"{name} is {axes}")
    return "is", list(axes) if isinstance(axes, tuple) else [axes]


def _dim(call: CallValues, name: str) -> Bound:
    axes = _dims(call, name)[1]
    if len(axes) != 1:
        raise Unsupported(f"{name} is {axes}, not one axis")
    return "is", axes[0]


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


_BOOL = frozenset({"bool"})
_TAKEN: dict[str, Callable[..., Bound]] = {
    "f": _floating, "whole": _of(FLOATS, "whole numbers", others=True),
    "number": _of(_BOOL, "a number", others=True), "b": _of(_BOOL, "bool"),
    "signed": _of(UNSIGNED, "signed", others=True), "rank": _rank, "batch": _batch,
    "n": _number, "dims": _dims, "dim": _dim, "ints": _ints, "each": _each, "along": _along,
    "reps": _reps, "reduction": _reduction, "device": _device, "flag": _flag, "dtype": _dtype,
    "dtype_of": _dtype_of, "last": _last,
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
        return lambda *_: _one([torch.empty(s, dtype=d, device=device) for s, d in empty])

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
        return _one(results)

    return kernel


def _one(results: list[torch.Tensor]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _wrong(found: str, call: CallValues, what: str) -> BackendError:
    return BackendError(
        f"{what} returns something else than its operator does",
        op=call.op.name, expected=call.out, found=found,
        hint="it must return what ATen's operator returns; until then, exclude it in "
        "CUSTOMIZED_UNUSED_OPS",
    )  # fmt: skip
