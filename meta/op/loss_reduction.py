"""What losses that are composed of operators have in common: reductions, precision and checks."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.call_context import mixed_precision
from meta.base.dtype import is_float
from meta.base.dtype_info import result_type
from meta.base.errors import TypeInferError
from meta.op.core.check import broadcast_shapes, shapes_compatible
from meta.op.core.function import as_operand, device_of
from meta.op.loss import REDUCTIONS

HALF_DTYPES = ("float16", "bfloat16")


def loss_error(name: str, what: str, **more: Any) -> TypeInferError:
    """Return the error of the loss of a name."""
    return TypeInferError(what, op=name, **more)


def check_reduction(name: str, reduction: Any) -> None:
    """Raise TypeInferError unless there is such a reduction."""
    if isinstance(reduction, str) and reduction in REDUCTIONS:
        return
    raise loss_error(
        name,
        "there is no such reduction",
        expected=", ".join(REDUCTIONS),
        found=reduction if isinstance(reduction, str) else type(reduction).__name__,
        hint=None if isinstance(reduction, str) else "give weights by their name: weight=w",
    )


def require_floating(name: str, **given: Any) -> list[Any]:
    """Return tensor arguments, or raise TypeInferError for one that is not floating point."""
    found = []
    for argument, x in given.items():
        x = as_operand(x)
        if not is_float(x.dtype):
            what = f"{argument} must be floating point"
            raise loss_error(name, what, expected="float16 to float64", found=type_text(x))
        found.append(x)
    return found


def check_broadcastable(name: str, **given: Any) -> None:
    """Raise TypeInferError unless tensors have as many axes, of one extent or of 1."""
    fits = len({x.ndim for x in given.values()}) == 1
    try:
        broadcast_shapes(*(x.shape for x in given.values()))
    except TypeInferError:
        fits = False
    if not fits:
        found = ", ".join(f"{n}={type_text(x)}" for n, x in given.items())
        raise loss_error(name, f"{' and '.join(given)} differ", expected="one shape", found=found)


def check_broadcast(name: str, argument: str, x: Any, shape: tuple[Any, ...]) -> None:
    """Raise TypeInferError unless a tensor is broadcast to a shape, and not the other way round."""
    try:
        fits = shapes_compatible(broadcast_shapes(x.shape, shape), shape)
    except TypeInferError:
        fits = False
    if not fits:
        expected = f"what is broadcast to {list(shape)}"
        raise loss_error(name, f"{argument} does not fit", expected=expected, found=type_text(x))


def type_text(x: Any) -> str:
    """Return the type of a tensor, as errors write it."""
    return f"{x.dtype}{list(x.shape)}"


def result_dtype(*tensors: Any) -> str:
    """Return the dtype of the loss of these tensors. Where mixed precision casts, a loss is not in
    half precision, as those which are operators.
    """
    found = result_type(*(x.dtype for x in tensors))
    return "float32" if found in HALF_DTYPES and mixed_precision() else found


def in_compute_dtype(x: Any) -> Any:
    """Return a tensor in a dtype to compute in: half precision as float32."""
    return op.astype(x, "float32") if x.dtype in HALF_DTYPES else x


def class_indices(labels: Any, classes: Any) -> Any:
    """Return int64 labels as indices of classes, of which there are as many as said, a number or a
    dimension. A negative label is out of range, and does not count from the end.
    """
    device = device_of(labels)
    if isinstance(classes, int):
        numbers = op.arange(0, classes, 1, "int64", device)
    else:
        numbers = op.cumsum(op.full((classes,), 1, "int64", device), 0) - 1
    return op.embedding(labels, numbers)


def reduce_loss(loss: Any, reduction: str, dtype: str) -> Any:
    """Return the elements of a loss, reduced, in a dtype."""
    if reduction != "none":
        loss = op.mean(loss) if reduction == "mean" else op.sum(loss)
    return loss if loss.dtype == dtype else op.astype(loss, dtype)
