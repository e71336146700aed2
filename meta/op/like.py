"""Operators that give a tensor the shape or dtype of another. Add one here.

Of ``like_type`` only the type counts.
"""

from meta.base.dtype import is_float
from meta.op.core import DType, Tensor, op
from meta.op.core.check import broadcast_shapes, fit, require
from meta.op.transform import view_of_first


@op(float8=True)
def reshape_like(x: Tensor, like_type: Tensor) -> Tensor:
    """The elements of ``x`` in row-major order, in the shape of ``like_type``. A view.

    TypeInferError if the number of elements differs.
    """
    known = x.is_static and like_type.is_static
    require(
        not known or x.size == like_type.size,
        "the number of elements differs",
        expected=f"a shape of {x.size} elements" if known else None,
        found=like_type,
    )
    return x.with_shape(like_type.shape)


reshape_like.declare(view_of_first)


def _require_broadcast(narrow: Tensor, wide: Tensor) -> None:
    require(
        fit(broadcast_shapes(narrow.shape, wide.shape), wide.shape),
        "one shape does not broadcast to the other",
        expected=f"a shape that broadcasts to {wide}",
        found=narrow,
    )


@op(schema=reshape_like)
def broadcast_to_like(x: Tensor, like_type: Tensor) -> Tensor:
    """``x`` repeated along axes of extent 1, and new leading ones, to the shape of ``like_type``.

    The result has the dtype of x.
    """
    _require_broadcast(x, like_type)
    return x.with_shape(like_type.shape)


@op(schema=reshape_like)
def collapse_sum_like(x: Tensor, like_type: Tensor) -> Tensor:
    """``x`` summed over the axes along which ``like_type`` would be repeated to its shape.

    The adjoint of `broadcast_to_like`. The result has the shape of like_type and the dtype that
    `sum` gives: that of x, int64 of integers and bool. Half precision is added in float32.
    """
    _require_broadcast(like_type, x)
    return Tensor(like_type.shape, x.dtype if is_float(x.dtype) else "int64")


def collapsed_axes(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes over which a tensor of ``shape`` is summed to reach the shape ``target``."""
    lead = len(shape) - len(target)
    return tuple(i for i, d in enumerate(shape) if i < lead or (target[i - lead] == 1 and d != 1))


@op(schema=reshape_like, float8=True)
def cast_like(x: Tensor, like_type: Tensor) -> Tensor:
    """``x`` in the dtype of ``like_type``, converted as by `cast`."""
    return x.with_dtype(like_type.dtype)


@op
def group_cast(tensor_list: tuple[Tensor, ...], dtype: DType) -> tuple[Tensor, ...]:
    """Every tensor of a list in another dtype, converted as by `cast`, in one kernel."""
    require(len(tensor_list) > 0, "tensor_list is empty", expected="at least one tensor")
    return tuple(t.with_dtype(dtype) for t in tensor_list)
