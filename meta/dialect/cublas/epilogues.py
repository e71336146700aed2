"""Products with what follows them: bias, activation, a sum with another tensor.

Each pattern is there for `dense` and for `matmul`, and with a reshape after the product, as layers
of arrays with several leading axes have it. Rounding is once, at the end. The tanh form of gelu is
cuBLASLt's; the exact one has no epilogue.

On an H200, float16, in us, beside a product with bias and a generated kernel:

=====================  ============  ==================
rows x in -> out       bias, gelu    bias, gelu, kept
=====================  ============  ==================
4096 x 768 -> 3072     36 (32 + 21)  42 (32 + 21)
1024 x 3072 -> 768     10 (9 + 3.5)  10 (9 + 3.5)
128 x 768 -> 768       3.8 (3.7 + 2) 4.2 (3.7 + 2)
=====================  ============  ==================
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported, decline_if
from meta.dialect.cublas import cublas as dialect
from meta.dialect.cublas.product import FusedProduct, prepared, problem
from meta.ir.types import TensorType

PRODUCTS = {"dense": (op.dense, True), "matmul": (op.matmul, False)}
"""By the name that patterns begin with: the operator, and whether the second operand is stored
transposed."""


def rows(product: Any, x: Any, w: Any) -> Any:
    """Return a product, or what a reshape makes of it, as a part of a pattern."""
    y = product(x, w)
    return y | op.reshape(y, ...)


def require_last(axis: int, b: TensorType, y: TensorType) -> None:
    """Decline a bias along another axis than the columns of the product."""
    decline_if(axis % y.ndim != y.ndim - 1, "the bias is not along the last axis")
    decline_if(b.dtype != y.dtype, f"a bias of {b.dtype} beside a product of {y.dtype}")


def require_columns(columns: int, y: TensorType) -> None:
    """Decline a reshape that changes what a row is."""
    if y.ndim == 0 or y.static_shape[-1] != columns:
        raise Unsupported("the reshape between changes the rows of the product")


def _define(name: str, describes: Callable[..., Any], transposed: bool, epilogue: str) -> None:
    """Register a pattern of x and w, a bias b along an axis or none, and a tensor c that is added
    or none. With "aux" the result is one of two: the other is what the activation was of.
    """
    kept = epilogue.endswith("aux")

    def make(
        x: TensorType, w: TensorType, result: Any, device: Device, b: TensorType | None = None,
        axis: int = 0, c: TensorType | None = None,
    ) -> OpEnv:  # fmt: skip
        y = result[0] if kept else result
        if "gelu" in epilogue and x.dtype == "float64":
            raise Unsupported("cuBLASLt's gelu of float64 has 11 digits")
        if c is not None and c != y:
            raise Unsupported(f"what is added, {c}, is not of the product's type {y}")
        of = problem(x, w, False, transposed, epilogue=epilogue, addend=c is not None)
        roles = ["x1", "x2"]
        if b is not None:
            require_columns(of.n, y)
            require_last(axis, b, y)
            roles.append("vector")
        if kept and of.n % 8:
            raise Unsupported("cuBLASLt keeps what is before the activation in rows of 8 elements")
        roles += ["addend", "out"] if c is not None else ["out"]
        roles += ["matrix"] if kept else []
        return prepared(partial(FusedProduct, of, tuple(roles), device.ordinal))

    dialect.pattern_op(describes, name=name)(make)


def _define_all(name: str, product: Any, transposed: bool) -> None:
    """Register what follows a product."""

    def alone(x: Any, w: Any) -> Any:
        return rows(product, x, w)

    def biased(x: Any, w: Any, b: Any, axis: Any) -> Any:
        return op.bias_add(rows(product, x, w), b, axis)

    def gelu_kept(x: Any, w: Any, b: Any, axis: Any) -> Any:
        y = biased(x, w, b, axis)
        return op.gelu(y, "tanh"), y

    def added(x: Any, w: Any, c: Any) -> Any:
        return op.add(alone(x, w), c)

    def biased_added(x: Any, w: Any, b: Any, axis: Any, c: Any) -> Any:
        return op.add(biased(x, w, b, axis), c)

    for suffix, epilogue, describes in (
        ("bias", "bias", biased),
        ("bias_relu", "bias_relu", lambda x, w, b, axis: op.relu(biased(x, w, b, axis))),
        ("bias_gelu", "bias_gelu", lambda x, w, b, axis: op.gelu(biased(x, w, b, axis), "tanh")),
        ("bias_gelu_kept", "bias_gelu_aux", gelu_kept),
        ("relu", "relu", lambda x, w: op.relu(alone(x, w))),
        ("gelu", "gelu", lambda x, w: op.gelu(alone(x, w), "tanh")),
        ("add", "none", added),
        ("bias_add", "bias", biased_added),
    ):
        _define(f"{name}_{suffix}", describes, transposed, epilogue)


for _name, _of in PRODUCTS.items():
    _define_all(_name, *_of)
