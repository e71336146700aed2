"""The dtype rule of operators that take several tensors: nothing is promoted, all have one dtype.

A Python number has no dtype of its own and takes the tensors', if that can hold its kind; whether
it holds its value is checked by the schema (`Takes`).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from meta.base.dtype import is_real, promote
from meta.base.errors import TypeInferError
from meta.ir.types import TensorType


def require_same_dtype(*operands: Any) -> str:
    """Return the one dtype of the operands: tensors, and Python numbers that take the tensors'.

    A float needs floating point tensors and an int tensors of numbers; a bool fits everywhere.
    Numbers alone have the dtype of an array made of them: float32, int64 or bool.
    Raises TypeInferError, which names the cast that loses least, for anything else.
    """
    tensors = [o for o in operands if isinstance(o, TensorType)]
    if not tensors:
        kinds = {type(o) for o in operands}
        return "float32" if float in kinds else "int64" if int in kinds else "bool"
    dtypes = [t.dtype for t in tensors]
    if len(set(dtypes)) > 1:
        raise TypeInferError(
            "the operands differ in dtype",
            expected="one dtype: nothing is promoted",
            found=" and ".join(map(str, tensors)),
            hint=_cast_of(dtypes),
        )
    for operand in operands:
        if not isinstance(operand, TensorType | bool):
            _require_fits(operand, tensors[0])
    return dtypes[0]


def _require_fits(number: int | float, tensor: TensorType) -> None:
    dtype = tensor.dtype
    if is_real(dtype) or (isinstance(number, int) and dtype != "bool"):
        return
    kind = type(number).__name__
    wider = "float32" if isinstance(number, float) else "int64"
    raise TypeInferError(
        f"a Python {kind} does not fit a tensor of {dtype}",
        expected="a number that needs no wider dtype: nothing is promoted",
        found=f"{number} and {tensor}",
        hint=f'cast the tensor: meta.cast(x, "{wider}")',
    )


def _cast_of(dtypes: list[str]) -> str:
    """Say which tensors to cast so that the least is lost: the narrower ones."""
    common = reduce(promote, dtypes)
    narrow = [d for d in dict.fromkeys(dtypes) if d != common]
    ones = "ones" if len(narrow) > 1 else "one"
    return f'cast the {" and ".join(narrow)} {ones}: meta.cast(x, "{common}")'
