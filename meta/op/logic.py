"""Comparisons, logical operators, bits and classes of floats.

Tensors have one dtype (`op/core/promotion.py` casts those of users' calls), and a Python number
takes a tensor's dtype. A number
that is only compared may be of any size. Python numbers alone give a Python number. Add one here
with a type function of `op/core/elementwise.py`: `comparison`, `logical` or `arithmetic`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from meta.base.dtype import bits, is_float
from meta.base.errors import TypeInferError
from meta.op.core import AnyScalar, DType, Scalar, Tensor, TensorType, op
from meta.op.core.check import broadcast_shapes, require, require_same_dtype, shape_of
from meta.op.core.elementwise import Function, arithmetic, comparison, logical, with_docstring
from meta.op.core.names import EVERYWHERE, NO_NAMES, Names


def _require_integers(*operands: Any, bools: bool) -> None:
    for x in operands:
        is_tensor = isinstance(x, TensorType)
        floating = is_float(x.dtype) if is_tensor else isinstance(x, float)
        if floating or (is_tensor and x.dtype == "bool" and not bools):
            raise TypeInferError(
                "only integers have bits to work on",
                expected="integers or bools" if bools else "integers",
                found=x,
                hint="cast the operand, or use a logical operator",
            )


def _bitwise(function: Function, x1: Any, x2: Any, *, bools: bool = True) -> TensorType:
    _require_integers(x1, x2, bools=bools)
    require_same_dtype(x1, x2)
    return arithmetic(function, x1, x2)


@op(
    elementwise=True,
    commutative=True,
    promotes=("x1", "x2"),
    names=EVERYWHERE,
)
def bitwise_and(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The bits that both have; of bools the logical and.

    ``x1``, ``x2``: integers or bools of one dtype, which is the result's, broadcast against one
    another. Raises TypeInferError for floats, different dtypes, shapes that do not broadcast.
    """
    return _bitwise(operator.and_, x1, x2)


@op(
    elementwise=True,
    commutative=True,
    promotes=("x1", "x2"),
    names=EVERYWHERE,
)
def bitwise_or(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The bits that one or both have; of bools the logical or. Arguments as of `bitwise_and`."""
    return _bitwise(operator.or_, x1, x2)


@op(
    elementwise=True,
    commutative=True,
    promotes=("x1", "x2"),
    names=EVERYWHERE,
)
def bitwise_xor(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The bits that exactly one has; of bools whether they differ. Arguments as `bitwise_and`."""
    return _bitwise(operator.xor, x1, x2)


@op(
    elementwise=True,
    names=Names("array_api", onnx="BitwiseNot", relax="bitwise_not", relay="bitwise_not"),
)
def bitwise_invert(x: Scalar | Tensor) -> Tensor:
    """All bits inverted, -x - 1 for signed integers; of bools the logical not.

    ``x``: integers or bools of any shape; the result has its type. Raises TypeInferError for
    floats.
    """
    _require_integers(x, bools=True)
    if isinstance(x, TensorType):
        return x
    return not x if isinstance(x, bool) else -int(x) - 1  # type: ignore[return-value]


def _left_shift(x1: int, x2: int) -> int:
    """x1 << x2 in 64 bits, as tensors have it."""
    bits = (x1 << x2) % 2**64 if 0 <= x2 < 64 else 0
    return bits - 2**64 if bits >= 2**63 else bits


@op(
    elementwise=True,
    promotes=("x1", "x2"),
    names=Names("array_api", relax="left_shift", relay="left_shift"),
)
def bitwise_left_shift(x1: Scalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """x1 * 2**x2 modulo the dtype's range; 0 for an ``x2`` that is negative or beyond the bits.

    ``x1``, ``x2``: integers of one dtype, which is the result's, broadcast against one another.
    Raises TypeInferError for floats and bools, different dtypes, shapes that do not broadcast.
    """
    return _bitwise(_left_shift, x1, x2, bools=False)


@op(
    elementwise=True,
    promotes=("x1", "x2"),
    names=Names("array_api", relax="right_shift", relay="right_shift"),
)
def bitwise_right_shift(x1: Scalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
    """floor(x1 / 2**x2); for an ``x2`` that is negative or beyond the bits 0, or -1 if x1 < 0.

    ``x1``, ``x2``: integers of one dtype, which is the result's, broadcast against one another.
    Raises TypeInferError for floats and bools, different dtypes, shapes that do not broadcast.
    """
    return _bitwise(lambda a, b: a >> (b if 0 <= b < 64 else 64), x1, x2, bools=False)


@op(elementwise=True, names=Names("relay"))
def reinterpret(x: Tensor, dtype: DType) -> Tensor:
    """The bits of every element of ``x`` read as ``dtype``: 1.0 in float32 is int32 0x3f800000.

    ``x``: any shape. Raises TypeInferError for a dtype of another width, and for bool, whose bits
    may only be 0 and 1.
    """
    require(
        "bool" not in (x.dtype, dtype) and bits(x.dtype) == bits(dtype),
        "the bits cannot be read as the other dtype",
        expected="dtypes of one width, none of them bool",
        found=f"{x.dtype} as {dtype}",
    )
    return x.with_dtype(dtype)


ANSWERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "isnan": (math.isnan, "Whether x is NaN."),
    "isinf": (math.isinf, "Whether x is infinite, of either sign."),
    "isfinite": (math.isfinite, "Whether x is neither infinite nor NaN."),
    "isposinf": (lambda n: n == math.inf, "Whether x is +infinity."),
    "isneginf": (lambda n: n == -math.inf, "Whether x is -infinity."),
    "signbit": (
        lambda n: math.copysign(1, n) < 0,
        "Whether x has the sign of a negative number, as -0.0 has.",
    ),
    "logical_not": (lambda n: not n, "True where ``x`` is zero or False."),
}
"""What is asked of one number."""
OF_COMPLEX = (
    *("isnan", "isinf", "isfinite", "equal", "not_equal"),
    *("logical_not", "logical_and", "logical_or", "logical_xor"),
)
"""What is asked of complex numbers, too."""


def _define_answer(name: str, on_number: Callable[[Any], bool], summary: str) -> None:
    @op(name=name, elementwise=True, complex=name in OF_COMPLEX, names=NAMES.get(name, NO_NAMES))
    @with_docstring(f"{summary} ``x``: any shape and dtype; the result is bool.")
    def answer(x: Scalar | Tensor) -> Tensor:
        if isinstance(x, TensorType):
            return x.with_dtype("bool")
        return on_number(x)  # type: ignore[return-value]


COMMON = Names("array_api relax relay")
NAMES = {
    **dict.fromkeys(("isnan", "isinf", "isfinite", "not_equal"), COMMON),
    **dict.fromkeys(("less", "greater", "equal"), EVERYWHERE),
    "greater_equal": Names("array_api relax relay", onnx="GreaterOrEqual"),
    "less_equal": Names("array_api relax relay", onnx="LessOrEqual"),
    "logical_and": Names("array_api relax", onnx="And"),
    "logical_not": Names("array_api relax", onnx="Not"),
    "logical_or": Names("array_api relax", onnx="Or"),
    "logical_xor": Names("array_api relax", onnx="Xor"),
    "signbit": Names("array_api"),
}
"""What others call them."""
SAME_DTYPE = "for operands of one dtype; the result is bool"
ANY_DTYPES = "Any dtypes; the result is bool."
COMPARISONS: dict[str, tuple[Callable[..., TensorType], Function, str]] = {
    "less": (comparison, operator.lt, f"x1 < x2 {SAME_DTYPE}, False for a NaN."),
    "less_equal": (comparison, operator.le, f"x1 <= x2 {SAME_DTYPE}, False for a NaN."),
    "greater": (comparison, operator.gt, f"x1 > x2 {SAME_DTYPE}, False for a NaN."),
    "greater_equal": (comparison, operator.ge, f"x1 >= x2 {SAME_DTYPE}, False for a NaN."),
    "equal": (comparison, operator.eq, f"x1 == x2 {SAME_DTYPE}, False for a NaN."),
    "not_equal": (comparison, operator.ne, f"x1 != x2 {SAME_DTYPE}, True for a NaN."),
    "logical_and": (
        logical,
        lambda a, b: bool(a) and bool(b),
        f"Whether both are nonzero (a NaN is). {ANY_DTYPES}",
    ),
    "logical_or": (
        logical,
        lambda a, b: bool(a) or bool(b),
        f"Whether one or both are nonzero (a NaN is). {ANY_DTYPES}",
    ),
    "logical_xor": (
        logical,
        lambda a, b: bool(a) != bool(b),
        f"Whether exactly one is nonzero (a NaN is). {ANY_DTYPES}",
    ),
}
"""What is asked of two numbers: the type function, the function of numbers, and what it is."""
COMMUTATIVE = ("equal", "not_equal", "logical_and", "logical_or", "logical_xor")


def _define_comparison(
    name: str, type_of: Callable[..., TensorType], on_numbers: Function, summary: str
) -> None:
    together = ("x1", "x2") if type_of is comparison else ()

    @op(
        name=name,
        elementwise=True,
        commutative=name in COMMUTATIVE,
        complex=name in OF_COMPLEX,
        promotes=together,
        names=NAMES[name],
    )
    @with_docstring(summary)
    def compare(x1: AnyScalar | Tensor, x2: AnyScalar | Tensor) -> Tensor:
        return type_of(on_numbers, x1, x2)


for _name, (_on_number, _summary) in ANSWERS.items():
    _define_answer(_name, _on_number, _summary)
for _name, _row in COMPARISONS.items():
    _define_comparison(_name, *_row)


@op(
    elementwise=True,
    complex=True,
    promotes=("x", "y"),
    unary="nonzero",
    names=Names("array_api onnx relax"),
)
def where(condition: Tensor, x: Scalar | Tensor, y: Scalar | Tensor) -> Tensor:
    """``x`` where ``condition`` is nonzero, else ``y``.

    ``condition`` alone gives its `nonzero`, as NumPy and torch have it.

    All three are broadcast against one another. ``condition``: any dtype. x, y: of one dtype, which
    is the result's (two Python numbers: float32, int64 or bool, which holds both). The branch not
    taken has no influence, be it NaN.
    Raises TypeInferError for different dtypes or shapes that do not broadcast.
    """
    shape = broadcast_shapes(condition.shape, shape_of(x), shape_of(y))
    return TensorType(shape, require_same_dtype(x, y))


def _close(x1: Any, x2: Any, rtol: float, atol: float, equal_nan: bool) -> bool:
    if math.isnan(x1) and math.isnan(x2):
        return equal_nan
    near = math.isfinite(x1 - x2) and abs(x1 - x2) <= atol + rtol * abs(x2)
    return bool(x1 == x2 or near)


@op(elementwise=True, promotes=("x1", "x2"))
def isclose(
    x1: AnyScalar | Tensor,
    x2: AnyScalar | Tensor,
    rtol: AnyScalar = 1e-5,
    atol: AnyScalar = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Whether |x1 - x2| <= atol + rtol * |x2|, or both are the same infinity.

    ``x1``, ``x2``: of one dtype, broadcast against one another; the result is bool. ``equal_nan``:
    whether two NaNs are close. Half precision is compared in float32, integers in float64.
    Raises TypeInferError for different dtypes or shapes that do not broadcast.
    """
    return comparison(lambda a, b: _close(a, b, rtol, atol, equal_nan), x1, x2)
