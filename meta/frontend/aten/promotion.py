"""torch's promotion of dtypes, for converters: their operands are cast before base operators see
them, which take one dtype.

Tensors with axes decide; a 0-d tensor, and after it a Python number, counts only where its kind
(bool, integer, floating point, complex) is above that of what decides. Source:
https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import torch

from meta import op
from meta.base.dtype import FROM_TORCH, TO_TORCH
from meta.frontend.core import Unconvertible
from meta.ir.dims import SymbolicDim


def is_number(value: Any) -> bool:
    """Whether an operand is a Python number or a dimension, which is an integer."""
    return isinstance(value, bool | int | float | complex | SymbolicDim)


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def of_number(value: Any) -> torch.dtype:
    """Return the dtype of a Python number where no tensor says another."""
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int | SymbolicDim):
        return torch.int64
    default = torch.get_default_dtype()
    return default.to_complex() if isinstance(value, complex) else default


def _promote_all(dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    found = list(dtypes)
    return reduce(torch.promote_types, found) if found else None


def _promote_weak(strong: torch.dtype | None, weak: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of operands that decide and of others, which raise its kind at most."""
    if strong is None or weak is None or _kind(strong) >= _kind(weak):
        return weak if strong is None else strong
    if strong.is_floating_point:
        return strong.to_complex()
    return torch.promote_types(strong, weak)


def result_dtype(*operands: Any) -> str:
    """Return the dtype that torch computes in for tensors and numbers: "float32", "int64".

    Raises Unconvertible for one that is no dtype of ours: complex32, or bcomplex32, which PyTorch
    2.14 and later compute in for bfloat16 and a complex number.
    """
    tensors = [x for x in operands if x is not None and not is_number(x)]
    levels = (
        _promote_all(TO_TORCH[x.dtype] for x in tensors if len(x.shape)),
        _promote_all(TO_TORCH[x.dtype] for x in tensors if not len(x.shape)),
        _promote_all(of_number(x) for x in operands if is_number(x)),
    )
    # 0-d tensors and numbers are combined first, and then what decides with both.
    chosen = reduce(lambda weak, strong: _promote_weak(strong, weak), reversed(levels))
    assert chosen is not None, "a call without operands"
    if chosen not in FROM_TORCH:
        raise Unconvertible(f"it is computed in {chosen}, which is no dtype here")
    return FROM_TORCH[chosen]


def as_float(dtype: str) -> str:
    """Return a dtype, or torch's default for floating point instead of integers and bool."""
    return dtype if _kind(TO_TORCH[dtype]) >= 2 else FROM_TORCH[torch.get_default_dtype()]


def cast(x: Any, dtype: str) -> Any:
    """Return an operand in a dtype; a number stays one."""
    return x if x is None or is_number(x) or x.dtype == dtype else op.astype(x, dtype)


def promote(*operands: Any, floating: bool = False) -> tuple[Any, ...]:
    """Return operands in the dtype that torch computes in; numbers stay numbers, None stays None.

    floating: integers are computed in torch's default for floating point, as by `torch.sin`.
    """
    dtype = result_dtype(*operands)
    dtype = as_float(dtype) if floating else dtype
    return tuple(cast(x, dtype) for x in operands)
