"""The check of binary operators that promote nothing: all operands have one dtype."""

from __future__ import annotations

from typing import Any

from meta.base.dtype import is_float
from meta.base.errors import TypeInferError
from meta.ir.types import TensorType


def require_same_dtype(*operands: Any) -> None:
    """Raise TypeInferError unless the tensors have one dtype and it can hold the Python numbers.

    A float needs floating point tensors and an int tensors of numbers; a bool fits everywhere.
    """
    dtypes = [o.dtype for o in operands if isinstance(o, TensorType)]
    if len(set(dtypes)) > 1:
        raise TypeInferError(
            "the operands differ in dtype",
            expected="one dtype: nothing is promoted",
            found=" and ".join(dtypes),
            hint=f'cast one of them: meta.cast(x, "{dtypes[0]}")',
        )
    for number in operands:
        if not dtypes or isinstance(number, TensorType | bool):
            continue
        dtype = dtypes[0]
        if (isinstance(number, float) and not is_float(dtype)) or dtype == "bool":
            kind = type(number).__name__
            wider = "float32" if kind == "float" else "int64"
            raise TypeInferError(
                f"a Python {kind} does not fit a tensor of {dtype}",
                expected="numbers that need no wider dtype: nothing is promoted",
                found=number,
                hint=f'cast the tensor: meta.cast(x, "{wider}")',
            )
