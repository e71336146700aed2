"""Optimizer steps with two moments of the gradient: Adam and its relatives. Add one here.

All write ``x``, ``m`` and ``v`` in place and share their arguments:

* x: the parameter, floating point. dx: its gradient. m, v: running means of the gradient and of its
  square, zeros at first. All of one shape and dtype; half precision is computed in float32.
* step: the number of this step, counted from 1. learning_rate: the step size. Both are numbers, or
  tensors with one element, that may change at every step: no kernel is built per value.
* beta1, beta2: how much of m and v stays, in [0, 1). eps: keeps a division by zero away.
  weight_decay: the pull towards zero. They are given to the kernel at run time too.
"""

from meta.base import dtype as dtypes
from meta.op.core import InOut, Scalar, Tensor, TensorType, op
from meta.op.core.check import require, require_float
from meta.op.core.same_dtype import require_same_dtype


def _check(
    x: Tensor, dx: Tensor, m: Tensor, v: Tensor, step: object, learning_rate: object
) -> tuple[()]:
    """Raise TypeInferError unless the arguments fit; the steps have no results of their own."""
    require_float(x, "x")
    require_same_dtype(x, dx, m, v)
    found = f"x={x}, dx={dx}, m={m}, v={v}"
    require(x == dx == m == v, "x, dx, m and v differ", expected="one shape", found=found)
    check_numbers(step, learning_rate)
    return ()


def check_numbers(step: object, learning_rate: object) -> None:
    """Raise TypeInferError unless each is a number or a tensor that holds one."""
    for name, value in (("step", step), ("learning_rate", learning_rate)):
        if isinstance(value, TensorType):
            one = all(d == 1 for d in value.shape) and value.dtype != "bool"
            require(one, f"{name} must be one number", found=str(value))
    if isinstance(learning_rate, TensorType):
        require(dtypes.is_float(learning_rate.dtype), "learning_rate must be floating point")


@op
def adam(
    x: InOut,
    dx: Tensor,
    m: InOut,
    v: InOut,
    step: Scalar | Tensor,
    learning_rate: Scalar | Tensor,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> tuple[()]:
    """One step of Adam, in place. With ``g = dx + weight_decay * x``:

    ``m = beta1 * m + (1 - beta1) * g``, ``v = beta2 * v + (1 - beta2) * g**2``,
    ``x = x - learning_rate * mhat / (sqrt(vhat) + eps)``, where ``mhat = m / (1 - beta1**step)``
    and ``vhat = v / (1 - beta2**step)``.

    Arguments: see `meta.op.adaptive`. Returns (x, m, v), the arrays that were given. Raises
    TypeInferError for differing shapes or dtypes. Kingma and Ba, arXiv:1412.6980, algorithm 1; the
    weight decay is torch.optim.Adam's.
    """
    return _check(x, dx, m, v, step, learning_rate)


@op
def adamw(
    x: InOut,
    dx: Tensor,
    m: InOut,
    v: InOut,
    step: Scalar | Tensor,
    learning_rate: Scalar | Tensor,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.01,
) -> tuple[()]:
    """One step of Adam with decoupled weight decay, in place: `adam` without decay in ``g``, after

    ``x = x - learning_rate * weight_decay * x``.

    Arguments: see `meta.op.adaptive`. Returns (x, m, v), the arrays that were given. Raises
    TypeInferError for differing shapes or dtypes. Loshchilov and Hutter, arXiv:1711.05101,
    algorithm 2; as torch.optim.AdamW, where the decay is scaled by the learning rate.
    """
    return _check(x, dx, m, v, step, learning_rate)


@op
def lamb(
    x: InOut,
    dx: Tensor,
    m: InOut,
    v: InOut,
    step: Scalar | Tensor,
    learning_rate: Scalar | Tensor,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-6,
    weight_decay: Scalar = 0.01,
) -> tuple[()]:
    """One step of LAMB, in place: Adam's direction, as long as the parameter itself.

    m and v as in `adam` without decay, then ``u = mhat / (sqrt(vhat) + eps) + weight_decay * x``
    and ``x = x - learning_rate * (|x| / |u|) * u``. |.| is the Euclidean norm over the whole of an
    array, which should therefore be one layer's parameter; the quotient is 1 where either is 0.

    Arguments: see `meta.op.adaptive`. Returns (x, m, v), the arrays that were given. Raises
    TypeInferError for differing shapes or dtypes. You et al., "Large batch optimization for deep
    learning: training BERT in 76 minutes", arXiv:1904.00962, algorithm 2 with phi(z) = z.
    """
    return _check(x, dx, m, v, step, learning_rate)
