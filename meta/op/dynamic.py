"""Operators whose result has as many elements as the data say. Add one here.

The type function gives such an extent as unknown (``?``); a kernel returns tensors of its own, and
an eager call or the interpreter takes the extents from them. On a GPU a call waits for the count.
Or (``upper_bound_``) the extent is the largest that there can be, and the actual one is a result.
"""

from math import prod

from meta.ir.types import UNKNOWN
from meta.op.core import Tensor, TensorType, op
from meta.op.core.check import require
from meta.op.core.same_dtype import require_same_dtype
from meta.op.transform import require_index


@op
def argwhere(condition: Tensor) -> Tensor:
    """The indices of the elements that are not 0, in row-major order: int64[?, ndim].

    ``condition``: any shape and dtype; a NaN is not 0.
    """
    return TensorType((UNKNOWN, condition.ndim), "int64")


@op
def upper_bound_argwhere(condition: Tensor) -> tuple[Tensor, Tensor]:
    """`argwhere` without waiting for the count: (indices int64[size, ndim], shape int64[2]).

    ``shape`` is what `argwhere` has; the rows of ``indices`` behind its first extent are -1.
    ``condition``: any known shape and any dtype.
    """
    require(condition.is_static, "condition must have known extents", found=str(condition))
    size = prod(condition.static_shape)
    return TensorType((size, condition.ndim), "int64"), TensorType((2,), "int64")


@op
def nonzero(x: Tensor) -> tuple[Tensor, ...]:
    """The columns of `argwhere` as a tuple: one vector of int64 per axis, all of one length.

    TypeInferError if ``x`` has no axis.
    """
    require(x.ndim >= 1, "x has no axis", expected="ndim 1 or more; see argwhere", found=x)
    return (TensorType((UNKNOWN,), "int64"),) * x.ndim


@op
def unique(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """The distinct elements of ``x``, ascending: a vector of its dtype.

    With ``return_inverse`` also, in the shape of ``x``, the place of every element among them; with
    ``return_counts`` also how often each occurs (both int64; the result is a tuple then, in this
    order). Every NaN is distinct, and last.
    """
    vector = TensorType((UNKNOWN,), x.dtype)
    results = [vector]
    if return_inverse:
        results.append(x.with_dtype("int64"))
    if return_counts:
        results.append(vector.with_dtype("int64"))
    return tuple(results) if len(results) > 1 else vector


@op
def sparse_fill_empty_rows(
    indices: Tensor, values: Tensor, shape: Tensor, default: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A sparse tensor with an entry in every row: (indices, values, which rows had none).

    indices: [entries, axes], integers, the coordinates of ``values`` [entries]; the first is the
    row. shape: a vector of integers, the extents of the whole. default: a scalar of the dtype of
    values, which a row without an entry gets at its beginning. Entries come in the order of their
    rows, those of one row in their own; IndexOutOfRange for a row that is none. The last
    result is bool, an element for each row. TypeInferError for other types.
    """
    fits = indices.ndim == 2 and values.ndim == 1 and shape.ndim == 1 and default.ndim == 0
    found = f"indices={indices}, values={values}, shape={shape}, default={default}"
    require(fits, "the arguments are no sparse tensor", expected="ndim 2, 1, 1 and 0", found=found)
    require_index(indices)
    require_index(shape)
    require_same_dtype(values, default)
    entries = TensorType((UNKNOWN, indices.shape[1]), indices.dtype)
    return entries, TensorType((UNKNOWN,), values.dtype), TensorType((UNKNOWN,), "bool")
