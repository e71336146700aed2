"""Steps of optimizers, and what they need beside: norm, average and cast of lists of tensors.

A step is stated once, as a formula (`meta/op/core/formula.py`) under `@optimizer`, from which come
the operator of all parameters of a group, ``multi_tensor_<name>``, its kernels on every dialect and
its cast rule. `single_step_op` makes the operator of one parameter. See docs/howto/optimizer.md to
add one.

The steps of several parameters share their arguments:

* x: n >= 1 parameters (or the float32 masters of half precision ones) of one floating point dtype,
  updated in place. dx: their gradients, each of any floating point dtype.
* the state, such as m and v: n tensors each, zeros at first, updated in place; all of one floating
  point dtype, float32 or wider beside half precision parameters if nothing is to be lost. What
  belongs to a parameter has its shape.
* step: the number of this step, counted from 1; a number, or a tensor with one element.
* learning_rate, weight_decay: a number, a tensor with one element, or one of shape (n,) that has
  its own for each parameter, so that groups that differ in these are one call.
* beta1, beta2: how much of m and v stays, in [0, 1). eps: keeps a division by zero away. Like all
  that follows they are given to the kernel at run time: no kernel is built per value.
* copies: (), or n tensors of one floating point dtype that get the new parameters, rounded: the
  half precision parameters of which x are the masters.
* factor: what the gradients are multiplied by first, a number or a tensor with one element: what
  undoes a loss scale, averages accumulated gradients, clips by the norm, or, being negative,
  makes a step uphill. clip_value: the gradients are then clamped to [-clip_value, clip_value].
* skip: None, or a bool tensor with one element; where it is true, nothing is written.

Everything is computed in float32, of float64 parameters in float64. In the formulas ``g`` stands
for the clamped ``factor * dx`` and ``|.|`` for the Euclidean norm over the whole of a parameter; a
quotient of norms is 1 where either is 0. Results are the written arrays, in the order of the
arguments. All raise TypeInferError for tensors that do not fit together.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from meta.base import dtype as dtypes
from meta.op.core import DType, InOut, Scalar, Tensor, TensorType, op
from meta.op.core.check import is_single_element, require, require_float, require_same_dtype
from meta.op.core.formula import (
    Expr,
    Formula,
    Numbers,
    Stores,
    constant,
    equal,
    ratio,
    sqrt,
    total,
    where,
)
from meta.op.core.update import (
    FORMULAS,
    SINGLE_STEPS,
    SingleStep,
    check_lists,
    check_numbers,
    check_rate,
    check_single,
    check_skip,
    optimizer,
    single_step_op,
)


def correction(beta: Expr, step: Expr) -> Expr:
    """What makes a running mean of zeros at first one of what came since."""
    return constant(1) / (1 - beta**step)


def _number(name: str) -> Expr:
    return Expr("number", (name,))


# In float64: 1 - beta2 and 1 - beta2**step lose digits in float32.
BIAS = {
    "new1": 1 - _number("beta1"),
    "new2": 1 - _number("beta2"),
    "unbias1": correction(_number("beta1"), _number("step")),
    "unbias2": correction(_number("beta2"), _number("step")),
}


@optimizer(momentum=0.0, weight_decay=0.0)
def multi_tensor_sgd(
    k: Numbers, x: Expr, g: Expr, v: Expr | None = None, *, nesterov: bool = False
) -> Stores:
    """One step of gradient descent with momentum for several parameters, in place.

    ``g = g + weight_decay * x``, ``v = momentum * v + g``, ``x = x - learning_rate * u``, where
    ``u`` is ``v``, or with ``nesterov`` ``g + momentum * v``.

    v: the velocities, zeros at first; () is without momentum: u is g. As torch.optim.SGD without
    dampening; Sutskever et al., ICML 2013, for the form of nesterov.
    """
    g = g + k.weight_decay * x
    if v is None:
        return {"x": x - k.learning_rate * g}
    v = k.momentum * v + g
    u = g + k.momentum * v if nesterov else v
    return {"x": x - k.learning_rate * u, "v": v}


adaptive = partial(optimizer, derived=BIAS, beta1=0.9, beta2=0.999)


def moments(k: Numbers, g: Expr, m: Expr, v: Expr) -> tuple[Expr, Expr, Expr]:
    """Return the new m and v, and the divisor ``sqrt(vhat) + eps``."""
    v = k.beta2 * v + k.new2 * g * g
    return k.beta1 * m + k.new1 * g, v, sqrt(v * k.unbias2) + k.eps


@adaptive(eps=1e-8, weight_decay=0.0)
def multi_tensor_adam(k: Numbers, x: Expr, g: Expr, m: Expr, v: Expr) -> Stores:
    """One step of Adam for several parameters, in place. With ``g = g + weight_decay * x``:

    ``m = beta1 * m + (1 - beta1) * g``, ``v = beta2 * v + (1 - beta2) * g**2``,
    ``x = x - learning_rate * mhat / (sqrt(vhat) + eps)``, where ``mhat = m / (1 - beta1**step)``
    and ``vhat = v / (1 - beta2**step)``.

    Kingma and Ba, arXiv:1412.6980, algorithm 1; the weight decay, a part of the gradient, is
    torch.optim.Adam's.
    """
    m, v, divisor = moments(k, g + k.weight_decay * x, m, v)
    return {"x": x - k.learning_rate * (m * k.unbias1 / divisor), "m": m, "v": v}


@adaptive(eps=1e-8, weight_decay=0.01)
def multi_tensor_adamw(k: Numbers, x: Expr, g: Expr, m: Expr, v: Expr) -> Stores:
    """One step of Adam with decoupled weight decay for several parameters, in place.

    `multi_tensor_adam` without decay in ``g``, after ``x = x - learning_rate * weight_decay * x``.

    Loshchilov and Hutter, arXiv:1711.05101, algorithm 2; as torch.optim.AdamW, where the decay is
    scaled by the learning rate.
    """
    m, v, divisor = moments(k, g, m, v)
    u = m * k.unbias1 / divisor + k.weight_decay * x
    return {"x": x - k.learning_rate * u, "m": m, "v": v}


@adaptive(eps=1e-6, weight_decay=0.01)
def multi_tensor_lamb(k: Numbers, x: Expr, g: Expr, m: Expr, v: Expr) -> Stores:
    """One step of LAMB for several parameters, in place: Adam's direction, as long as a parameter.

    m and v as in `multi_tensor_adamw`, then ``u = mhat / (sqrt(vhat) + eps) + weight_decay * x``
    and ``x = x - learning_rate * (|x| / |u|) * u``. A parameter should be of one layer.

    You et al., "Large batch optimization for deep learning: training BERT in 76 minutes",
    arXiv:1904.00962, algorithm 2 with phi(z) = z.
    """
    m, v, divisor = moments(k, g, m, v)
    u = m * k.unbias1 / divisor + k.weight_decay * x
    longer = ratio(total(x * x), total(u * u))
    return {"x": x - k.learning_rate * longer * u, "m": m, "v": v}


@adaptive(eps=1e-6, weight_decay=0.01)
def multi_tensor_lans(
    k: Numbers,
    x: Expr,
    g: Expr,
    m: Expr,
    v: Expr,
    *,
    bias_correction: bool = True,
    grad_averaging: bool = True,
    decoupled: bool = True,
    normalize_grad: bool = True,
) -> Stores:
    """One step of LANS for several parameters, in place. With ``g = g / |g|``, where 0 stays 0:

    ``m = beta1 * m + (1 - beta1) * g``, ``v = beta2 * v + (1 - beta2) * g**2``,
    ``r = mhat / (sqrt(vhat) + eps) + weight_decay * x``,
    ``c = g / (sqrt(vhat) + eps) + weight_decay * x``,
    ``x = x - learning_rate * |x| * (beta1 * r / |r| + (1 - beta1) * c / |c|)``, where
    ``mhat = m / (1 - beta1**step)`` and ``vhat = v / (1 - beta2**step)``.

    bias_correction: False takes m and v for mhat and vhat. grad_averaging: False adds g to m
    without the factor 1 - beta1. decoupled: False adds weight_decay * x to g instead of to r and c.
    normalize_grad: False takes g as it is. Zheng et al., "Accelerated large batch optimization of
    BERT pretraining in 54 minutes", arXiv:2006.13484, algorithm 2 with phi(z) = z.
    """
    if normalize_grad:
        square = total(g * g)
        g = g / sqrt(where(square > 0, square, 1))
    decay = k.weight_decay * x
    if not decoupled:
        g, decay = g + decay, constant(0)
    m = k.beta1 * m + (k.new1 * g if grad_averaging else g)
    v = k.beta2 * v + k.new2 * g * g
    divisor = sqrt(v * k.unbias2 if bias_correction else v) + k.eps
    r = (m * k.unbias1 if bias_correction else m) / divisor + decay
    c = g / divisor + decay
    square = total(x * x)
    along = k.beta1 * ratio(square, total(r * r)) * r + k.new1 * ratio(square, total(c * c)) * c
    return {"x": x - k.learning_rate * along, "m": m, "v": v}


@optimizer(
    derived={"rest": 1 - _number("alpha")}, alpha=0.99, eps=1e-8, momentum=0.0, weight_decay=0.0
)
def multi_tensor_rmsprop(
    k: Numbers,
    x: Expr,
    g: Expr,
    v: Expr,
    m: Expr | None = None,
    velocity: Expr | None = None,
) -> Stores:
    """One step of RMSprop for several parameters, in place. With ``g = g + weight_decay * x``:

    ``v = alpha * v + (1 - alpha) * g**2``, ``u = g / (sqrt(v) + eps)``,
    ``x = x - learning_rate * u``.

    m: means of the gradient; with them ``m = alpha * m + (1 - alpha) * g``, and ``v - m**2``, a
    variance, takes the place of ``v`` in ``u``; one that rounding makes negative is 0. () is
    without. velocity: with them ``velocity = momentum * velocity + u`` is subtracted in place of
    ``u``; () is without. alpha: how much of v and m stays, in [0, 1).

    Tieleman and Hinton, "Neural networks for machine learning", lecture 6.5, 2012; centered as
    Graves, arXiv:1308.0850, with the epsilon of torch.optim.RMSprop.
    """
    g = g + k.weight_decay * x
    v = k.alpha * v + k.rest * g * g
    stores = {"v": v}
    variance = v
    if m is not None:
        m = k.alpha * m + k.rest * g
        difference = v - m * m
        variance = where(difference < 0, 0, difference)
        stores["m"] = m
    u = g / (sqrt(variance) + k.eps)
    if velocity is not None:
        u = k.momentum * velocity + u
        stores["velocity"] = u
    return {"x": x - k.learning_rate * u, **stores}


@optimizer(
    derived={"slower": constant(1) / ((_number("step") - 1) * _number("learning_rate_decay") + 1)},
    learning_rate_decay=0.0,
    eps=1e-10,
    weight_decay=0.0,
)
def multi_tensor_adagrad(k: Numbers, x: Expr, g: Expr, v: Expr) -> Stores:
    """One step of Adagrad for several parameters, in place. With ``g = g + weight_decay * x``:

    ``v = v + g**2``, ``x = x - rate * g / (sqrt(v) + eps)``, where
    ``rate = learning_rate / (1 + (step - 1) * learning_rate_decay)``.

    Duchi et al., "Adaptive subgradient methods for online learning and stochastic optimization",
    JMLR 12, 2011; rate and epsilon as in torch.optim.Adagrad.
    """
    g = g + k.weight_decay * x
    v = v + g * g
    return {"x": x - k.learning_rate * k.slower * (g / (sqrt(v) + k.eps)), "v": v}


@optimizer(beta1=0.9, beta2=0.99, weight_decay=0.0)
def multi_tensor_lion(k: Numbers, x: Expr, g: Expr, m: Expr) -> Stores:
    """One step of Lion for several parameters, in place.

    ``u = sign(beta1 * m + (1 - beta1) * g) + weight_decay * x``, ``x = x - learning_rate * u``,
    ``m = beta2 * m + (1 - beta2) * g``.

    Chen et al., "Symbolic discovery of optimization algorithms", arXiv:2302.06675, program 1.
    """
    c = k.beta1 * m + (1 - k.beta1) * g
    u = where(c > 0, 1, where(c < 0, -1, c)) + k.weight_decay * x  # a NaN stays
    return {"x": x - k.learning_rate * u, "m": k.beta2 * m + (1 - k.beta2) * g}


STEP = """One step of {0} for one parameter, in place: `multi_tensor_{1}` of lists with one tensor.

    The arguments are those of `multi_tensor_{1}`, of one shape and one floating point dtype; half
    precision is computed in float32. Returns (x, m, v), the arrays that were given. Raises
    TypeInferError for differing shapes or dtypes.
    """
adam = single_step_op(multi_tensor_adam, STEP.format("Adam", "adam"))
adamw = single_step_op(multi_tensor_adamw, STEP.format("Adam with decoupled weight decay", "adamw"))
lamb = single_step_op(multi_tensor_lamb, STEP.format("LAMB", "lamb"))


@op
def sgd(
    x: InOut, dx: Tensor, v: InOut, learning_rate: Scalar | Tensor, mu: Scalar | Tensor
) -> tuple[()]:
    """One step of gradient descent with momentum, in place.

    ``v = mu * v + dx``, then ``x = x - learning_rate * v``.

    x: the parameter, floating point. dx: its gradient. v: the velocity, zeros at first; all of one
    shape and dtype. learning_rate, mu: numbers, or floating point tensors with one element; either
    may change at every step, no kernel is built per value.
    Returns (x, v), the arrays that were given. Half precision is computed in float32.
    Raises TypeInferError for differing shapes or dtypes. Polyak, 1964; the form of torch's SGD.
    """
    check_single({"x": x, "dx": dx, "v": v})
    for name, value in (("learning_rate", learning_rate), ("mu", mu)):
        if isinstance(value, TensorType):
            require_float(value, name)
            require(is_single_element(value), f"{name} must be one number", found=str(value))
    return ()


def _of_sgd(x: Any, dx: Any, v: Any, learning_rate: Any, mu: Any) -> dict[str, Any]:
    lists = {"x": (x,), "dx": (dx,), "v": (v,)}
    return {**lists, "learning_rate": learning_rate, "momentum": mu}


SINGLE_STEPS[sgd] = SingleStep(multi_tensor_sgd, _of_sgd)

PER_BLOCK = 4  # gradient, parameter and two moments


@op
def lans(
    tensor_list: tuple[InOut, ...],
    step: Scalar | Tensor,
    learning_rate: Scalar | Tensor,
    beta1: Scalar,
    beta2: Scalar,
    eps: Scalar,
    bias_correction: bool | int,
    weight_decay: Scalar,
    grad_averaging: bool | int,
    mode: bool | int,
    normalize_grad: bool,
) -> tuple[()]:
    """One step of LANS for several parameters, in place: `multi_tensor_lans` of one list.

    tensor_list: all gradients, then as many parameters, first and second moments (zeros at first),
    in one order: 4n tensors. All of one floating point dtype, and the four of a parameter of one
    shape; half precision is computed in float32. The gradients are left as they are.
    step: the number of this step, from 1; step and learning_rate are numbers, or tensors with one
    element. mode: 0 adds weight_decay * x to the gradient, `multi_tensor_lans`'s ``decoupled``. The
    others: see there.

    Returns the 4n arrays that were given. Raises TypeInferError for a list that is no such list, or
    a mode or switch other than 0 and 1.
    """
    count = len(tensor_list) // PER_BLOCK
    fits = count > 0 and len(tensor_list) % PER_BLOCK == 0
    expected = "4n tensors: gradients, parameters, first and second moments"
    require(fits, "tensor_list has the wrong length", expected=expected, found=len(tensor_list))
    require_same_dtype(*tensor_list)
    require_float(tensor_list[0], "tensor_list")
    for i in range(count):
        block = tensor_list[i::count]
        require(
            len({t.shape for t in block}) == 1,
            f"gradient, parameter and moments of block {i} differ",
            expected="one shape",
            found=", ".join(map(str, block)),
        )
    check_numbers(step, learning_rate)
    for name, switch in (
        ("bias_correction", bias_correction),
        ("grad_averaging", grad_averaging),
        ("mode", mode),
    ):
        require(switch in (0, 1), f"{name} must be 0 or 1", found=switch)
    return ()


def _of_lans(
    tensor_list: Any, bias_correction: Any, grad_averaging: Any, mode: Any, **others: Any
) -> dict[str, Any]:
    count = len(tensor_list) // PER_BLOCK
    lists = [tuple(tensor_list[i * count : (i + 1) * count]) for i in range(PER_BLOCK)]
    switches = {"bias_correction": bias_correction, "grad_averaging": grad_averaging}
    return {
        **dict(zip(("dx", "x", "m", "v"), lists, strict=True)),
        **others,
        **{name: bool(value) for name, value in {**switches, "decoupled": mode}.items()},
    }


SINGLE_STEPS[lans] = SingleStep(multi_tensor_lans, _of_lans)


@op
def multi_tensor_axpby(
    x: tuple[Tensor, ...],
    y: tuple[InOut, ...],
    alpha: Scalar | Tensor,
    beta: Scalar | Tensor,
    skip: Tensor | None = None,
) -> tuple[()]:
    """``y = alpha * x + beta * y`` for several tensors, in place: sums and running averages.

    x: n >= 1 floating point tensors of any dtypes. y: as many of one floating point dtype and the
    same shapes. alpha, beta: numbers, or tensors with one element; what is multiplied by 0 does not
    count, even if it is no number. skip: None, or a bool tensor with one element; where it is true,
    nothing is written. Computed in float32, of float64 y in float64. Returns y, the arrays that
    were given. Raises TypeInferError for tensors that do not fit together.
    """
    check_lists({"x": x, "y": y}, same_dtype=(y,))
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_rate(name, value, 1)
    check_skip(skip)
    return ()


def _axpby(k: Numbers, x: Expr, y: Expr) -> Stores:
    terms = [where(equal(by, 0), 0, by * t) for by, t in ((k.alpha, x), (k.beta, y))]
    return {"y": terms[0] + terms[1]}


FORMULAS[multi_tensor_axpby] = Formula(_axpby, ("x", "y"), ("alpha", "beta"))


@op
def multi_tensor_increment(x: tuple[InOut, ...], by: Scalar) -> tuple[()]:
    """``x += by`` for several tensors of integers, in place: counters of steps and batches.

    x: n >= 1 tensors of one signed integer dtype, of any shapes. by: an int; sums beyond
    the dtype wrap, as those of `add` do. Returns x, the arrays that were given. Raises
    TypeInferError for other tensors or numbers.
    """
    require(len(x) > 0, "there are no tensors", expected="at least one")
    found = sorted({t.dtype for t in x})
    fits = len(found) == 1 and found[0] in dtypes.SIGNED
    require(fits, "x must be signed integers", expected="one dtype of int8 to int64", found=found)
    require(type(by) is int, "by must be an int", expected="an int", found=by)
    return ()


@op
def multi_tensor_norm(x: tuple[Tensor, ...]) -> Tensor:
    """The Euclidean norm of all elements of several tensors together.

    x: n >= 1 floating point tensors of any shapes and dtypes. Returns float32[]: the sum of squares
    is taken in float64, so that the result is finite if, and only if, all elements are and the norm
    itself is a float32. Raises TypeInferError for no tensors, or others.
    """
    require(len(x) > 0, "there are no tensors", expected="at least one")
    for t in x:
        require_float(t, "x")
    return TensorType((), "float32")


# A kernel adds the totals of all tensors, and takes the root.
FORMULAS[multi_tensor_norm] = Formula(lambda k, x: {"": total(x * x)}, ("x",), ())


@op
def multi_tensor_cast(x: tuple[Tensor, ...], dtype: DType) -> tuple[Tensor, ...]:
    """Several tensors in another floating point dtype, each rounded as `astype` does.

    x: n >= 1 floating point tensors of any shapes and dtypes. dtype: float16, bfloat16, float32 or
    float64. Returns as many new tensors. It is what the half precision copies of a model's
    parameters cost in one kernel. Raises TypeInferError for no tensors, or others.
    """
    require(len(x) > 0, "there are no tensors", expected="at least one")
    require(dtypes.is_float(dtype), "dtype must be floating point", found=dtype)
    for t in x:
        require_float(t, "x")
    return tuple(t.with_dtype(dtype) for t in x)


# The results are the list y.
FORMULAS[multi_tensor_cast] = Formula(lambda k, x, y: {"y": x}, ("x", "y"), ())
