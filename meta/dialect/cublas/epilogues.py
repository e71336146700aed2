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
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported
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
    if axis % y.ndim != y.ndim - 1:
        raise Unsupported("the bias is not along the last axis")
    if b.dtype != y.dtype:
        raise Unsupported(f"a bias of {b.dtype} beside a product of {y.dtype}")


def require_columns(columns: int, y: TensorType) -> None:
    """Decline a reshape that changes what a row is."""
    if y.ndim == 0 or y.static_shape[-1] != columns:
        raise Unsupported("the reshape between changes the rows of the product")


def _require_exact(epilogue: str, x: TensorType) -> None:
    """Decline what cuBLASLt rounds to less than the dtype."""
    if "gelu" in epilogue and x.dtype == "float64":
        raise Unsupported("cuBLASLt's gelu of float64 has 11 digits")


def _register(name: str, describes: Callable[..., Any], make: Callable[..., OpEnv]) -> None:
    make.__name__ = name
    dialect.pattern_op(describes)(make)


def _with_bias(
    name: str, product: Any, transposed: bool, suffix: str, epilogue: str, then: Callable[..., Any]
) -> None:
    """Register what ``then`` makes of a product with bias; a tuple is the result and the sum."""
    kept = epilogue.endswith("aux")

    def make(x: TensorType, w: TensorType, b: TensorType, axis: int, result: Any,
             device: Device) -> OpEnv:  # fmt: skip
        y = result[0] if kept else result
        _require_exact(epilogue, x)
        of = problem(x, w, False, transposed, epilogue=epilogue)
        require_columns(of.n, y)
        require_last(axis, b, y)
        if kept and of.n % 8:
            raise Unsupported("cuBLASLt keeps what is before the activation in rows of 8 elements")
        roles = ("x1", "x2", "vector", "out", "matrix")[: 4 + kept]
        return prepared(FusedProduct(of, roles, device.ordinal))

    def describes(x: Any, w: Any, b: Any, axis: Any) -> Any:
        return then(op.bias_add(rows(product, x, w), b, axis))

    _register(f"{name}_bias{suffix}", describes, make)


def _without_bias(
    name: str, product: Any, transposed: bool, epilogue: str, then: Callable[..., Any]
) -> None:
    """Register what ``then`` makes of a product alone."""

    def make(x: TensorType, w: TensorType, result: TensorType, device: Device) -> OpEnv:
        _require_exact(epilogue, x)
        of = problem(x, w, False, transposed, epilogue=epilogue)
        return prepared(FusedProduct(of, ("x1", "x2", "out"), device.ordinal))

    _register(f"{name}_{epilogue}", lambda x, w: then(rows(product, x, w)), make)


def _with_addend(name: str, product: Any, transposed: bool) -> None:
    """Register the sum of a product, with bias or without, and another tensor."""

    def same(c: TensorType, y: TensorType) -> None:
        if c != y:
            raise Unsupported(f"what is added, {c}, is not of the product's type {y}")

    def add(x: TensorType, w: TensorType, c: TensorType, result: TensorType,
            device: Device) -> OpEnv:  # fmt: skip
        same(c, result)
        of = problem(x, w, False, transposed, addend=True)
        roles = "x1", "x2", "addend", "out"
        return prepared(FusedProduct(of, roles, device.ordinal))

    def bias_add(x: TensorType, w: TensorType, b: TensorType, axis: int, c: TensorType,
                 result: TensorType, device: Device) -> OpEnv:  # fmt: skip
        same(c, result)
        of = problem(x, w, False, transposed, epilogue="bias", addend=True)
        require_columns(of.n, result)
        require_last(axis, b, result)
        roles = "x1", "x2", "vector", "addend", "out"
        return prepared(FusedProduct(of, roles, device.ordinal))

    _register(f"{name}_add", lambda x, w, c: op.add(rows(product, x, w), c), add)
    _register(
        f"{name}_bias_add",
        lambda x, w, b, axis, c: op.add(op.bias_add(rows(product, x, w), b, axis), c),
        bias_add,
    )


for _name, (_product, _transposed) in PRODUCTS.items():
    _of = _name, _product, _transposed
    _with_bias(*_of, "", "bias", lambda y: y)
    _with_bias(*_of, "_relu", "bias_relu", op.relu)
    _with_bias(*_of, "_gelu", "bias_gelu", lambda y: op.gelu(y, "tanh"))
    _with_bias(*_of, "_gelu_kept", "bias_gelu_aux", lambda y: (op.gelu(y, "tanh"), y))
    _without_bias(*_of, "relu", op.relu)
    _without_bias(*_of, "gelu", lambda y: op.gelu(y, "tanh"))
    _with_addend(*_of)
