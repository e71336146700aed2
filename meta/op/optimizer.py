"""Optimizer steps: operators that update parameters and state in place. Add one here."""

from meta.op.core import InOut, Scalar, Tensor, TensorType, op
from meta.op.core.check import require, require_float
from meta.op.core.same_dtype import require_same_dtype


@op
def sgd(
    x: InOut,
    dx: Tensor,
    v: InOut,
    learning_rate: Scalar | Tensor,
    mu: Scalar | Tensor,
) -> tuple[()]:
    """One step of gradient descent with momentum, in place.

    ``v = mu * v + dx``, then ``x = x - learning_rate * v``.

    x: the parameter, floating point. dx: its gradient. v: the velocity, zeros at first; all of one
    shape and dtype. learning_rate, mu: numbers, or floating point tensors with one element; either
    may change at every step, no kernel is built per value.
    Returns (x, v), the arrays that were given. Half precision is computed in float32.
    Raises TypeInferError for differing shapes or dtypes. Polyak, 1964; the form of torch's SGD.
    """
    require_float(x, "x")
    require_same_dtype(x, dx, v)
    found = f"x={x}, dx={dx}, v={v}"
    require(x == dx == v, "x, dx and v differ", expected="one shape", found=found)
    for name, value in (("learning_rate", learning_rate), ("mu", mu)):
        if isinstance(value, TensorType):
            require_float(value, name)
            require(
                all(d == 1 for d in value.shape), f"{name} must be one number", found=str(value)
            )
    return ()
