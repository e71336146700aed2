"""A product by two matrices of weights, one behind the other, whose halves are a gate and what goes
through it: act(first half) * second half, or the other way round.

`join_products` lays the weights of a gated layer so. quack's kernel multiplies neighbouring columns
with each other; it is given the weights as an array in which those of a gate and of what passes it
are neighbours, by strides alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported, decline_if
from meta.dialect.cutlass import cutlass as dialect
from meta.dialect.cutlass.epilogues import ACTIVATIONS
from meta.dialect.cutlass.kernel import LANES
from meta.dialect.cutlass.product import prepared, product
from meta.ir.types import TensorType


def _define(activation: str, first: bool) -> None:
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
        _define(_activation, _first)
