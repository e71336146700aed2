"""Shape inference: shapes that are known by name only, as the values that a graph computes with.

A graph computes shapes by nodes: `Shape`, `Gather`, `Mul`, `Concat`, `Reshape`. Where extents are
numbers, all of that is known. Where some are symbolic, the value of such a node is an `Extents`,
whose elements are dimensions; what is made of it by the operators in `RULES` is one again, and the
operators in `TAKES_EXTENTS` take it as a shape. All others get a tensor, computed from the shapes
of the tensors that have these extents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from meta import op
from meta.base.device import Device
from meta.base.errors import TypeInferError
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.arguments import constant_ints
from meta.ir.dims import SymbolicDim, product
from meta.op.core.tracing import Symbol
from meta.runtime.ndarray import array, ndarray

Axis = tuple[Any, int]
"""A tensor and one of its axes."""
TAKES_EXTENTS = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Resize": 1, "Slice": 1}
"""Operators whose converters take an `Extents` in the place of a known vector, and the first of
their inputs that may be one: those before are data.
"""


@dataclass(frozen=True)
class Extents:
    """A vector or scalar of extents.

    Attributes
    ----------
    values: ints and symbolic dimensions, an array of objects. places: where the run time finds
    dimensions. dtype: of the tensor that it stands for.
    """

    values: Any
    places: Mapping[SymbolicDim, Axis]
    dtype: str = "int64"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that it stands for."""
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        """The number of its axes: 1, or 0 for a scalar."""
        return int(self.values.ndim)

    def tensor(self, device: Device) -> Any:
        """Return the tensor that it stands for."""
        parts = tuple(_number(v, self.places, device) for v in self.values.reshape(-1))
        y = op.concat(parts, 0) if parts else array([], "int64", device=device)
        y = op.reshape(y, self.shape)
        return y if self.dtype == "int64" else op.astype(y, self.dtype)


def as_tensor(value: Any, device: Device) -> Any:
    """Return a value, of extents the tensor."""
    return value.tensor(device) if isinstance(value, Extents) else value


def extents_of(x: Any, first: int = 0, last: int | None = None) -> Extents | None:
    """Return the extents of a tensor; None if one is not known by name."""
    if not all(isinstance(d, int | SymbolicDim) for d in x.shape):
        return None
    places = {d: (x, i) for i, d in enumerate(x.shape) if isinstance(d, SymbolicDim)}
    return Extents(_objects(x.shape[first:last]), places)


def shape_of(value: Any) -> tuple[Any, ...] | None:
    """Return the extents in a vector that is known, by numbers or by names; None for another."""
    return tuple(value.values.reshape(-1)) if isinstance(value, Extents) else constant_ints(value)


def _objects(values: Sequence[Any]) -> Any:
    """Return a vector of objects, which NumPy does not look into."""
    result = np.empty(len(values), object)
    result[:] = list(values)
    return result


def _number(value: Any, places: Mapping[SymbolicDim, Axis], device: Device) -> Any:
    """Return a dimension as a vector of one element."""
    if isinstance(value, int):
        return array([value], "int64", device=device)
    if value in places:
        x, axis = places[value]
        return op.strided_slice(op.shape_as_tensor(x), (axis,), (axis + 1,))
    total: Any = None
    for atoms, coefficient in value.terms:
        term: Any = array([coefficient], "int64", device=device)
        for atom in atoms:
            if isinstance(atom, str):
                name = SymbolicDim(atom)
                if name not in places:
                    raise Unconvertible(f"no tensor is known that has the extent {atom}")
                factor = _number(name, places, device)
            else:
                factor = op.floor_divide(_number(atom.numerator, places, device), atom.divisor)
            term = op.multiply(term, factor)
        total = term if total is None else op.add(total, term)
    return total


def _elements(value: Any) -> Any:
    """Return the elements of an input as objects."""
    if isinstance(value, Extents):
        return value.values
    values = constant_value(value)
    assert values is not None
    return np.asarray(values.numpy()).astype(object)


def _is_usable(value: Any) -> bool:
    """Whether an input has extents, or whole numbers that are known."""
    if isinstance(value, Extents):
        return True
    if not isinstance(value, ndarray) or value.ndim > 1:
        return False
    return "int" in value.dtype or value.dtype == "bool"


def infer(name: str, inputs: Sequence[Any], attributes: Mapping[str, Any], device: Device) -> Any:
    """Return what an operator makes of extents, None if it has no rule or needs the run time."""
    if name in ("Shape", "Size"):
        return _of_shape(name, inputs[0], attributes)
    rule = RULES.get(name)
    if rule is None or not any(isinstance(i, Extents) for i in inputs):
        return None
    given = [i for i in inputs if i is not None]
    if len(given) != len(inputs) or not all(map(_is_usable, given)):
        return None
    try:
        values = rule(attributes, *map(_elements, given))
    except TypeInferError:
        # It depends on the extents; the run time decides.
        return None
    if values is None:
        return None
    values = np.asarray(values, object)
    places = {d: p for i in given if isinstance(i, Extents) for d, p in i.places.items()}
    dtype = next(i.dtype for i in given if isinstance(i, Extents))
    if all(isinstance(v, int | bool | np.integer) for v in values.reshape(-1)):
        kind = "bool" if name in ("Equal", "Greater", "Less") else dtype
        return array(values.astype(kind), kind, device=device)
    return Extents(values, places, dtype)


def _of_shape(name: str, x: Any, attributes: Mapping[str, Any]) -> Extents | None:
    if not isinstance(x, Symbol) or all(isinstance(d, int) for d in x.shape):
        return None
    first, last, _ = slice(attributes.get("start") or 0, attributes.get("end")).indices(x.ndim)
    found = extents_of(x, first, max(first, last))
    if found is None or name == "Shape":
        return found
    total = np.empty((), object)
    total[()] = product(x.shape)
    return Extents(total, found.places)


def _quotient(_: Any, a: Any, b: Any) -> Any:
    """Division drops the fraction, so of what may be negative nothing is known."""
    return _map_pairs(
        lambda x, y: x // y if x >= 0 and isinstance(y, int) and y > 0 else None, a, b
    )


def _map_pairs(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Return a function of all pairs of elements; None if it gives None for one."""
    pairs = np.broadcast(a, b)
    values = [function(x, y) for x, y in pairs]
    if any(v is None for v in values):
        return None
    return _objects(values).reshape(pairs.shape)


def _equal(x: Any, y: Any) -> bool:
    """Whether extents are equal for all sizes; TypeInferError if that depends on them."""
    difference = x - y
    if isinstance(difference, int):
        return difference == 0
    return not (difference > 0 or difference < 0)


def _gather(attributes: Mapping[str, Any], x: Any, indices: Any) -> Any:
    return np.take(x, indices.astype(np.int64)) if attributes["axis"] in (0, -1) else None


def _slice(
    attributes: Any, x: Any, first: Any = None, last: Any = None, axes: Any = None, step: Any = None
) -> Any:
    if first is None:  # before opset 10
        first, last = attributes["starts"], attributes["ends"]
    bounds = [first, last, step] if step is not None else [first, last]
    if x.ndim != 1 or any(len(b) != 1 or not isinstance(b[0], int) for b in bounds):
        return None
    return x[slice(*(int(b[0]) for b in bounds))]


def _cast(attributes: Mapping[str, Any], x: Any) -> Any:
    return x if attributes["to"] == 7 else None


def _squeezed(_: Any, x: Any, axes: Any = None) -> Any:
    return x.reshape(()) if x.shape == (1,) else x if not x.ndim else None


def _reshaped(_: Any, x: Any, shape: Any) -> Any:
    return x.reshape([int(e) for e in shape]) if len(shape) <= 1 else None


def _where(_: Any, condition: Any, a: Any, b: Any) -> Any:
    if not all(isinstance(c, bool) for c in condition.reshape(-1)):
        return None
    return np.where(condition.astype(bool), a, b)


RULES: Mapping[str, Callable[..., Any]] = {
    "Add": lambda _, a, b: a + b,
    "Cast": _cast,
    "Concat": lambda _, *parts: np.concatenate(parts),
    "Div": _quotient,
    "Equal": lambda _, a, b: _map_pairs(_equal, a, b),
    "Gather": _gather,
    "Greater": lambda _, a, b: _map_pairs(lambda x, y: bool(x > y), a, b),
    "Identity": lambda _, x: x,
    "Less": lambda _, a, b: _map_pairs(lambda x, y: bool(x < y), a, b),
    "Max": lambda _, *each: reduce(partial(_map_pairs, lambda x, y: x if x >= y else y), each),
    "Min": lambda _, *each: reduce(partial(_map_pairs, lambda x, y: x if x <= y else y), each),
    "Mul": lambda _, a, b: a * b,
    "ReduceProd": lambda attributes, x: _product(attributes, x),
    "Reshape": _reshaped,
    "Slice": _slice,
    "Squeeze": _squeezed,
    "Sub": lambda _, a, b: a - b,
    "Unsqueeze": lambda _, x, axes=None: x.reshape((1,)) if not x.ndim else None,
    "Where": _where,
}
"""By operator, a function of the attributes and the inputs, arrays of objects; None if it cannot
tell.
"""


def _product(attributes: Mapping[str, Any], x: Any) -> Any:
    keeps = attributes.get("keepdims", 1)
    result = np.empty((1,) if keeps else (), object)
    result[...] = product(x.reshape(-1))
    return result
