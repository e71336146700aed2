"""What losses that are composed of operators have in common: reductions, precision and checks."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.base.dtype_info import result_type
from meta.base.errors import TypeInferError
from meta.op.core.check import broadcast_shapes, fit
from meta.op.core.function import device_of, operand
from meta.op.core.handler import mixed_precision
from meta.op.loss import REDUCTIONS

HALVES = ("float16", "bfloat16")


def refused(name: str, what: str, **more: Any) -> TypeInferError:
    """Return the error of the loss of a name."""
    return TypeInferError(what, op=name, **more)


def check_reduction(name: str, reduction: Any) -> None:
    """Raise TypeInferError unless there is such a reduction."""
    if isinstance(reduction, str) and reduction in REDUCTIONS:
        return
    raise refused(
        name,
        "there is no such reduction",
        expected=", ".join(REDUCTIONS),
        found=reduction if isinstance(reduction, str) else type(reduction).__name__,
        hint=None if isinstance(reduction, str) else "give weights by their name: weight=w",
    )


def floating(name: str, **given: Any) -> list[Any]:
    """Return tensor arguments, or raise TypeInferError for one that is not floating point."""
    found = []
    for argument, x in given.items():
        x = operand(x)
        if not is_float(x.dtype):
            what = f"{argument} must be floating point"
            raise refused(name, what, expected="float16 to float64", found=described(x))
        found.append(x)
    return found


def check_alike(name: str, **given: Any) -> None:
    """Raise TypeInferError unless tensors have as many axes, of one extent or of 1."""
    fits = len({x.ndim for x in given.values()}) == 1
    try:
        broadcast_shapes(*(x.shape for x in given.values()))
    except TypeInferError:
        fits = False
    if not fits:
        found = ", ".join(f"{n}={described(x)}" for n, x in given.items())
        raise refused(name, f"{' and '.join(given)} differ", expected="one shape", found=found)


def check_broadcast(name: str, argument: str, x: Any, shape: tuple[Any, ...]) -> None:
    """Raise TypeInferError unless a tensor is broadcast to a shape, and not the other way round."""
    try:
        fits = fit(broadcast_shapes(x.shape, shape), shape)
    except TypeInferError:
        fits = False
    if not fits:
        expected = f"what is broadcast to {list(shape)}"
        raise refused(name, f"{argument} does not fit", expected=expected, found=described(x))


def described(x: Any) -> str:
    """Return the type of a tensor, as errors write it."""
    return f"{x.dtype}{list(x.shape)}"


def result_dtype(*tensors: Any) -> str:
    """Return the dtype of the loss of these tensors. Where mixed precision casts, a loss is not in
    half precision, as those which are operators.
    """
    found = result_type(*(x.dtype for x in tensors))
    return "float32" if found in HALVES and mixed_precision() else found


def wide(x: Any) -> Any:
    """Return a tensor in a dtype to compute in: half precision as float32."""
    return op.astype(x, "float32") if x.dtype in HALVES else x


def as_classes(labels: Any, classes: Any) -> Any:
    """Return int64 labels as indices of classes, of which there are as many as said, a number or a
    dimension. A negative label is out of range, and does not count from the end.
    """
    device = device_of(labels)
    if isinstance(classes, int):
        numbers = op.arange(0, classes, 1, "int64", device)
    else:
        numbers = op.cumsum(op.full((classes,), 1, "int64", device), 0) - 1
    return op.embedding(labels, numbers)


def reduced(loss: Any, reduction: str, dtype: str) -> Any:
    """Return the elements of a loss, reduced, in a dtype."""
    if reduction != "none":
        loss = op.mean(loss) if reduction == "mean" else op.sum(loss)
    return loss if loss.dtype == dtype else op.astype(loss, dtype)
