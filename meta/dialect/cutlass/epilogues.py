"""Products with what follows them: activations, sums, factors, and the gradients of these.

Each pattern is there for `dense` and for `matmul`, with a reshape after the product or without.
Rounding is once, at the end. What cuBLASLt has is left to it: relu and the tanh form of gelu.

A product by two matrices of weights, one behind the other, whose halves are a gate and what goes
through it: act(first half) * second half, or the other way round.

`join_products` lays the weights of a gated layer so. quack's kernel multiplies neighbouring columns
with each other; it is given the weights as an array in which those of a gate and of what passes it
are neighbours, by strides alone.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported, decline_if
from meta.dialect.cutlass import cutlass as dialect
from meta.dialect.cutlass.kernel import LANES
from meta.dialect.cutlass.product import prepared, product, require_tile
from meta.ir.types import TensorType

Describes = Callable[..., Any]
PRODUCTS = {"dense": (op.dense, True), "matmul": (op.matmul, False)}
"""By the name that patterns begin with: the operator, and whether the second operand is stored
transposed."""
ROLES = {"x": "x1", "w": "x2", "b": "b", "c": "c", "s": "s", "g": "g"}
"""What is captured, and what it is to a kernel; see `kernel.FORMS`."""
ACTIVATIONS: dict[str, Describes] = {
    "silu": op.silu,
    "gelu": op.gelu,
    "gelu_tanh": lambda y: op.gelu(y, "tanh"),
    "relu": op.relu,
    "sigmoid": op.sigmoid,
}
BY_LIBRARY = ("relu", "gelu_tanh", "sigmoid")
"""Activations whose epilogue cuBLASLt has, or that no layer ends with."""
GRADIENTS: dict[str, Describes] = {
    "silu": op.silu_dx,
    "gelu": lambda h, dy: op.gelu_dx(h, None, dy),
    "gelu_tanh": lambda h, dy: op.gelu_dx(h, None, dy, "tanh"),
    "relu": lambda y, dy: op.relu_dx(None, y, dy),
}
"""Of the activation's argument (for relu, its result) and the gradient of its result."""


def rows(operator: Any, x: Any, w: Any) -> Any:
    """Return a product, or what a reshape makes of it, as a part of a pattern."""
    y = operator(x, w)
    return y | op.reshape(y, ...)


def define(name: str, describes: Describes, transposed: bool, form: str, activation: str) -> None:
    """Register a pattern of a product and a form of epilogue."""
    order = [ROLES[capture] for capture in signature(describes).parameters if capture in ROLES]

    def make(
        x: TensorType, w: TensorType, result: Any, device: Device, b: TensorType | None = None,
        axis: int = -1, c: TensorType | None = None, s: TensorType | None = None,
        g: TensorType | None = None,
    ) -> OpEnv:  # fmt: skip
        of = product(x, w, False, transposed)
        results = result if isinstance(result, tuple) else (result,)
        for y in results:
            require_tile(of, y)
        last = axis % results[0].ndim == results[0].ndim - 1
        decline_if(not last, "the bias is not along the last axis")
        given = {"x1": x, "x2": w, "b": b, "c": c, "s": s, "g": g}
        tensors: dict[str, Any] = {role: given[role] for role in order}
        tensors |= dict(zip(("out", "kept"), results, strict=False))
        return prepared(of, form, activation, tensors, device)

    describes.__name__ = name
    dialect.pattern_op(describes, name=name)(make)


def _define_scaled(name: str, describes: Describes, transposed: bool) -> None:
    """Register a product whose rows or columns, or both, are each multiplied by a number."""
    captures = [capture for capture in signature(describes).parameters if capture not in "xw"]

    def make(
        x: TensorType, w: TensorType, result: TensorType, device: Device, v: TensorType,
        u: TensorType | None = None,
    ) -> OpEnv:  # fmt: skip
        of = product(x, w, False, transposed)
        require_tile(of, result)
        roles = [_side(vector, result) for vector in (v, u) if vector is not None]
        if len(roles) != len(set(roles)):
            raise Unsupported("both factors are for rows, or both for columns")
        form = {"r": "rows", "b": "columns", "br": "rows_columns"}["".join(sorted(roles))]
        vectors = dict(zip(roles, (v, u), strict=False))
        tensors: dict[str, Any] = {"x1": x, "x2": w, **vectors, "out": result}
        return prepared(of, form, "identity", tensors, device)

    assert captures == ["v", "u"][: len(captures)]
    describes.__name__ = name
    dialect.pattern_op(describes, name=name)(make)


def _side(vector: TensorType, y: TensorType) -> str:
    """Return the role of a factor of y: "r", a number for each row, or "b", for each column."""
    shape = vector.static_shape if vector.is_static else ()
    if shape == (*y.static_shape[:-1], 1):
        return "r"
    if shape and shape[-1] == y.static_shape[-1] and all(n == 1 for n in shape[:-1]):
        return "b"
    raise Unsupported(f"{vector} has not a number for each row or each column")


def _define_activation(
    name: str, activation: str, product_of: Describes, bias_of: Describes, transposed: bool
) -> None:
    """Register what an activation is in: at the end of a layer, or before a factor."""
    act = ACTIVATIONS[activation]

    def kept(x: Any, w: Any) -> Any:
        y = product_of(x, w)
        return act(y), y

    def bias_kept(x: Any, w: Any, b: Any, axis: Any) -> Any:
        y = bias_of(x, w, b, axis)
        return act(y), y

    def times(c: Any, x: Any, w: Any) -> Any:
        return op.multiply(act(c), product_of(x, w))

    define(f"{name}_times_{activation}", times, transposed, "times", activation)
    if activation in BY_LIBRARY:
        return
    for suffix, form, describes in (
        (activation, "act", lambda x, w: act(product_of(x, w))),
        (f"bias_{activation}", "bias_act", lambda x, w, b, axis: act(bias_of(x, w, b, axis))),
        (f"{activation}_kept", "act_saved", kept),
        (f"bias_{activation}_kept", "bias_act_saved", bias_kept),
    ):
        define(f"{name}_{suffix}", describes, transposed, form, activation)


def _define_gradient(name: str, activation: str, product_of: Describes, transposed: bool) -> None:
    """Register gradients by what an activation was of: of the product, and of act(g) * c."""
    gradient = GRADIENTS[activation]

    def dx(c: Any, x: Any, w: Any) -> Any:
        return gradient(c, product_of(x, w))

    def gated_dx(x: Any, w: Any, c: Any, s: Any, g: Any) -> Any:
        dy = product_of(x, w)
        return op.multiply(dy, s), gradient(g, op.multiply(dy, c))

    def gated_result_dx(x: Any, w: Any, c: Any, s: Any) -> Any:
        dy = product_of(x, w)
        return op.multiply(dy, s), gradient(s, op.multiply(dy, c))

    define(f"{name}_{activation}_dx", dx, transposed, "act_dx", activation)
    by_result = activation == "relu"
    describes: Describes = gated_result_dx if by_result else gated_dx
    form = "gated_result_dx" if by_result else "gated_dx"
    define(f"{name}_gated_{activation}_dx", describes, transposed, form, activation)


def _define_all(name: str, operator: Any, transposed: bool) -> None:
    """Register what follows a product."""

    def alone(x: Any, w: Any) -> Any:
        return rows(operator, x, w)

    def biased(x: Any, w: Any, b: Any, axis: Any) -> Any:
        return op.bias_add(alone(x, w), b, axis)

    def times_saved(x: Any, w: Any, c: Any) -> Any:
        y = alone(x, w)
        return op.multiply(c, y), y

    for activation in ACTIVATIONS:
        _define_activation(name, activation, alone, biased, transposed)
    for activation in GRADIENTS:
        _define_gradient(name, activation, alone, transposed)
    for form, describes in (
        ("add", lambda x, w, c: op.add(alone(x, w), c)),
        ("bias_add", lambda x, w, b, axis, c: op.add(biased(x, w, b, axis), c)),
        ("times", lambda x, w, c: op.multiply(alone(x, w), c)),
        ("bias_times", lambda x, w, b, axis, c: op.multiply(biased(x, w, b, axis), c)),
        ("times_saved", times_saved),
    ):
        define(f"{name}_{form}", describes, transposed, form, "identity")
    _define_scaled(f"{name}_scaled", lambda x, w, v: op.multiply(alone(x, w), v), transposed)
    _define_scaled(
        f"{name}_scaled_twice",
        lambda x, w, v, u: op.multiply(op.multiply(alone(x, w), v), u),
        transposed,
    )


for _name, _of in PRODUCTS.items():
    _define_all(_name, *_of)


def _define_gated(activation: str, first: bool) -> None:
    """Register a gated product; ``first``: whether the first half is the gate."""
    act: Callable[..., Any] = ACTIVATIONS[activation]

    def describes(x: Any, w: Any, shape: Any, parts: Any, axis: Any) -> Any:
        y = op.dense(x, w)
        both = op.split(y | op.reshape(y, shape), parts, axis)
        gate, other = (both[i] | op.reshape(both[i], ...) for i in ((0, 1) if first else (1, 0)))
        return op.multiply(act(gate), other)

    def make(
        x: TensorType, w: TensorType, parts: Any, axis: int, result: TensorType, device: Device,
        shape: Any = None,
    ) -> OpEnv:  # fmt: skip
        of = product(x, w, False, True)
        cut = (of.m, of.n) if shape is None else shape
        if axis % len(cut) != len(cut) - 1 or cut[-1] != of.n:
            raise Unsupported("the product is not cut along its columns")
        if parts != 2 and parts != (of.n // 2,):
            raise Unsupported("the product is not cut into two halves")
        half = of.n // 2
        odd = of.n % 2 or half % LANES
        decline_if(odd, f"halves of {of.n} columns are no multiples of {LANES}")
        whole = result.ndim > 0 and result.static_shape[-1] == half and result.size == of.m * half
        decline_if(not whole, f"{result} has not the rows of the product")
        tensors = {"x1": x, "x2": w, "out": result}
        return prepared(of, "gated" if first else "gated_second", activation, tensors, device)

    name = f"dense_gated_{activation}" + ("" if first else "_second")
    describes.__name__ = name
    dialect.pattern_op(describes, name=name)(make)


for _activation in ACTIVATIONS:
    for _first in (True, False):
        _define_gated(_activation, _first)
