"""The dtypes of sums of products: convolutions, matrix products and their ``out_dtype``.

TVM casts both operands to ``out_dtype`` before it multiplies. Integers are exact here as there:
they wrap around only where the result's own dtype does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.base.dtype import bits, canonical, is_float, promote
from meta.frontend.core.arithmetic import cast_to


def product_dtype(x: Any, out_dtype: str | None) -> str:
    """Return the dtype of an operator's result: ``out_dtype``, or x's if that says nothing."""
    return canonical(out_dtype) if out_dtype and out_dtype != "void" else str(x.dtype)


def product(multiply: Callable[[Any, Any], Any], a: Any, b: Any, out_dtype: str | None) -> Any:
    """Return ``multiply(a, b)`` in ``out_dtype`` (None or "": that of a).

    multiply: a function of two tensors of one dtype, linear in both. Integers are multiplied as
    int32, or as int64 where the result or an operand has 64 bits, and then cast, which is the
    result modulo its range. Floats are multiplied in the widest dtype of the three.
    """
    result = product_dtype(a, out_dtype)
    dtypes = (a.dtype, b.dtype, result)
    if any(map(is_float, dtypes)):
        wide = promote(promote(a.dtype, b.dtype), result)
    else:
        wide = "int64" if max(map(bits, dtypes)) > 32 else "int32"
    return cast_to(multiply(cast_to(a, wide), cast_to(b, wide)), result)
