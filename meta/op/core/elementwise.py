"""Type functions that elementwise operators share: of a number they give a number at once."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import fill
from typing import Any, TypeVar

from meta.base.dtype import has_gradient
from meta.base.errors import TypeInferError
from meta.base.source import caller_span
from meta.op.core import Op, Scalar, Tensor, TensorType, numbers, op
from meta.op.core.check import (
    broadcast_shapes,
    require,
    require_gradient,
    require_same_dtype,
    shape_of,
)
from meta.op.core.names import NO_NAMES, Names

Function = Callable[[Any, Any], Any]
F = TypeVar("F", bound=Callable[..., Any])
OF_ANY_DTYPE = "``x``: any shape; its dtype is the result's, float32 for ints and bool."
"""What `floating` functions say of their argument."""
OF_X_OR_Y = (
    "``x``, ``y``: argument and result of the forward call; one may be None, ``y`` is used if "
    "given. ``dy``: gradient of the result. All floating, of one type, which the result has. "
    "Raises TypeInferError if x and y are both None or the types differ."
)


def with_docstring(text: str) -> Callable[[F], F]:
    """Give a function a docstring; what comes after the first paragraph is wrapped."""

    def describe(function: F) -> F:
        first, *others = text.split("\n\n")
        function.__doc__ = "\n\n".join([first, *(fill(other, 96) for other in others)])
        return function

    return describe


def floating(on_number: Callable[[Any], Any], x: Any) -> TensorType:
    """Return the type of a function of ``x``: its own if floating or complex, else float32."""
    if not isinstance(x, TensorType):
        return numbers.of_float(on_number, x)  # type: ignore[return-value]
    return x if has_gradient(x.dtype) else x.with_dtype("float32")


def same(on_number: Callable[[Any], Any], x: Any) -> TensorType:
    """Return the type of a function of ``x`` that keeps the dtype."""
    return x if isinstance(x, TensorType) else on_number(x)


def arithmetic(on_numbers: Function, x1: Any, x2: Any, *, of_bools: bool = True) -> TensorType:
    """Return the type of a result in the operands' dtype."""
    if not isinstance(x1, TensorType) and not isinstance(x2, TensorType):
        return on_numbers(x1, x2)  # type: ignore[no-any-return]
    dtype = require_same_dtype(x1, x2)
    fits = of_bools or dtype != "bool"
    expected = "numbers; cast one operand, or use a logical operator"
    require(fits, "not defined for two bool operands", expected=expected)
    return TensorType(broadcast_shapes(shape_of(x1), shape_of(x2)), dtype)


def real(on_numbers: Function, x1: Any, x2: Any) -> TensorType:
    """Return the type of a real function of two operands, which is float32 of ints and bools."""
    result = arithmetic(on_numbers, x1, x2)
    if isinstance(result, TensorType) and not has_gradient(result.dtype):
        return result.with_dtype("float32")
    return result


def comparison(on_numbers: Function, x1: Any, x2: Any) -> TensorType:
    """Return the type of the bool result of comparing operands of one dtype."""
    require_same_dtype(x1, x2)
    return logical(on_numbers, x1, x2)


def logical(on_numbers: Function, x1: Any, x2: Any) -> TensorType:
    """Return the type of a bool result of operands of any dtypes."""
    if not isinstance(x1, TensorType) and not isinstance(x2, TensorType):
        return on_numbers(x1, x2)  # type: ignore[no-any-return]
    return TensorType(broadcast_shapes(shape_of(x1), shape_of(x2)), "bool")


def gradient(
    x: TensorType | None, y: TensorType | None, dy: TensorType, *, use_y: bool = True
) -> TensorType:
    """Return the type of a gradient operator's result, that of x or y, after checking all three."""
    argument = y if x is None and use_y else x
    if argument is None:
        raise TypeInferError(
            "neither x nor y is given" if use_y else "x is not given",
            expected="the argument x or the result y" if use_y else "the argument x",
        )
    given = {n: t for n, t in (("x", x), ("y", y), ("dy", dy)) if t is not None}
    for name, tensor in given.items():
        require_gradient(tensor, name)
        require(tensor.shape == dy.shape, f"{name} does not match dy", expected=list(dy.shape))
    require_same_dtype(*given.values())
    return argument


def gradient_by_x_or_y(forward: Op, formula: str) -> Op:
    """Make the operator ``<forward>_dx``, which is computed from the argument or the result."""

    @op(name=f"{forward.name}_dx", elementwise=True, complex=forward.complex)
    @with_docstring(f"Gradient of `{forward.name}`: {formula}.\n\n{OF_X_OR_Y}")
    def backward(x: Tensor | None, y: Tensor | None, dy: Tensor) -> Tensor:
        return gradient(x, y, dy)

    backward.site = caller_span()
    return backward


def define_real(
    name: str,
    on_number: Callable[[Any], Any],
    summary: str,
    names: Names = NO_NAMES,
    *,
    complex: bool = False,
) -> Op:
    """Make the operator of a real function of one tensor, in the caller's family; with ``complex``
    also of complex numbers, of which it is the holomorphic function. ``names``: see `op`.
    """

    @op(name=name, elementwise=True, complex=complex, names=names)
    @with_docstring(f"{summary}\n\n{OF_ANY_DTYPE}")
    def function(x: Scalar | Tensor) -> Tensor:
        return floating(on_number, x)

    function.site = caller_span()
    return function
