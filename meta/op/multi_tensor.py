"""Optimizer steps of all parameters of a group in one call, so in one kernel. Add one here.

They share their arguments:

* x: n >= 1 parameters (or the float32 masters of half precision ones) of one floating point dtype,
  updated in place. dx: their gradients, each of any floating point dtype.
* m, v: n running means of the gradient and of its square, zeros at first, updated in place; all of
  one floating point dtype, float32 or wider beside half precision parameters if nothing is to be
  lost. What belongs to a parameter has its shape.
* step: the number of this step, counted from 1; a number, or a tensor with one element.
* learning_rate, weight_decay: a number, a tensor with one element, or one of shape (n,) that has
  its own for each parameter, so that groups that differ in these are one call.
* beta1, beta2, eps: as in `meta.op.adaptive`; numbers given at run time, like all that follows.
* copies: (), or n tensors of one floating point dtype that get the new parameters, rounded: the
  half precision parameters of which x are the masters.
* factor: what the gradients are multiplied by first, a number or a tensor with one element: what
  undoes a loss scale, averages accumulated gradients, clips by the norm, or, being negative,
  makes a step uphill. clip_value: the gradients are then clamped to [-clip_value, clip_value].
* skip: None, or a bool tensor with one element; where it is true, nothing is written.

Everything is computed in float32, of float64 parameters in float64. Below, g stands for the clamped
``factor * dx``. Results are the written arrays, in the order of the arguments. All raise
TypeInferError for tensors that do not fit together.
"""

from __future__ import annotations

from math import inf

from meta.base import dtype as dtypes
from meta.op.adaptive import check_numbers
from meta.op.core import DType, InOut, Scalar, Tensor, TensorType, op
from meta.op.core.check import require, require_float

Tensors = tuple[TensorType, ...]


@op
def multi_tensor_sgd(
    x: tuple[InOut, ...],
    dx: tuple[Tensor, ...],
    v: tuple[InOut, ...],
    learning_rate: Scalar | Tensor,
    momentum: Scalar = 0.0,
    weight_decay: Scalar | Tensor = 0.0,
    copies: tuple[InOut, ...] = (),
    factor: Scalar | Tensor = 1.0,
    clip_value: Scalar = inf,
    skip: Tensor | None = None,
    nesterov: bool = False,
) -> tuple[()]:
    """One step of gradient descent with momentum for several parameters, in place.

    ``g = g + weight_decay * x``, ``v = momentum * v + g``, ``x = x - learning_rate * u``, where
    ``u`` is ``v``, or with ``nesterov`` ``g + momentum * v``.

    v: the velocities, zeros at first; () is without momentum: u is g. The other arguments: see
    `meta.op.multi_tensor`. Raises TypeInferError for tensors that do not fit together. As
    torch.optim.SGD without dampening; Sutskever et al., ICML 2013, for the form of nesterov.
    """
    return _check(x, dx, (v,) if v else (), copies, 1, learning_rate, weight_decay, factor, skip)


@op
def multi_tensor_adam(
    x: tuple[InOut, ...],
    dx: tuple[Tensor, ...],
    m: tuple[InOut, ...],
    v: tuple[InOut, ...],
    step: Scalar | Tensor,
    learning_rate: Scalar | Tensor,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: Scalar | Tensor = 0.0,
    copies: tuple[InOut, ...] = (),
    factor: Scalar | Tensor = 1.0,
    clip_value: Scalar = inf,
    skip: Tensor | None = None,
) -> tuple[()]:
    """One step of Adam for several parameters, in place; the formulas are those of `adam`.

    Arguments: see `meta.op.multi_tensor`. Raises TypeInferError for tensors that do not fit
    together. Kingma and Ba, arXiv:1412.6980, algorithm 1; the weight decay, a part of the gradient,
    is torch.optim.Adam's.
    """
    return _check(x, dx, (m, v), copies, step, learning_rate, weight_decay, factor, skip)


@op
def multi_tensor_adamw(
    x: tuple[InOut, ...],
    dx: tuple[Tensor, ...],
    m: tuple[InOut, ...],
    v: tuple[InOut, ...],
    step: Scalar | Tensor,
    learning_rate: Scalar | Tensor,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: Scalar | Tensor = 0.01,
    copies: tuple[InOut, ...] = (),
    factor: Scalar | Tensor = 1.0,
    clip_value: Scalar = inf,
    skip: Tensor | None = None,
) -> tuple[()]:
    """One step of Adam with decoupled weight decay for several parameters, in place; the formulas
    are those of `adamw`.

    Arguments: see `meta.op.multi_tensor`. Raises TypeInferError for tensors that do not fit
    together. Loshchilov and Hutter, arXiv:1711.05101, algorithm 2, as torch.optim.AdamW.
    """
    return _check(x, dx, (m, v), copies, step, learning_rate, weight_decay, factor, skip)


@op
def multi_tensor_lamb(
    x: tuple[InOut, ...],
    dx: tuple[Tensor, ...],
    m: tuple[InOut, ...],
    v: tuple[InOut, ...],
    step: Scalar | Tensor,
    learning_rate: Scalar | Tensor,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-6,
    weight_decay: Scalar | Tensor = 0.01,
    copies: tuple[InOut, ...] = (),
    factor: Scalar | Tensor = 1.0,
    clip_value: Scalar = inf,
    skip: Tensor | None = None,
) -> tuple[()]:
    """One step of LAMB for several parameters, in place; the formulas are those of `lamb`, with
    norms over each parameter.

    Arguments: see `meta.op.multi_tensor`. Raises TypeInferError for tensors that do not fit
    together. You et al., arXiv:1904.00962, algorithm 2 with phi(z) = z.
    """
    return _check(x, dx, (m, v), copies, step, learning_rate, weight_decay, factor, skip)


@op
def multi_tensor_lans(
    x: tuple[InOut, ...],
    dx: tuple[Tensor, ...],
    m: tuple[InOut, ...],
    v: tuple[InOut, ...],
    step: Scalar | Tensor,
    learning_rate: Scalar | Tensor,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-6,
    weight_decay: Scalar | Tensor = 0.01,
    copies: tuple[InOut, ...] = (),
    factor: Scalar | Tensor = 1.0,
    clip_value: Scalar = inf,
    skip: Tensor | None = None,
) -> tuple[()]:
    """One step of LANS for several parameters, in place; the formulas are those of `lans` with
    bias correction, averaged and normalized gradients, and its mode 1.

    Arguments: see `meta.op.multi_tensor`. Raises TypeInferError for tensors that do not fit
    together. Zheng et al., arXiv:2006.13484, algorithm 2 with phi(z) = z.
    """
    return _check(x, dx, (m, v), copies, step, learning_rate, weight_decay, factor, skip)


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
    _check_lists({"x": x, "y": y}, same_dtype=(y,))
    for name, value in (("alpha", alpha), ("beta", beta)):
        _check_rate(name, value, 1)
    _check_skip(skip)
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


@op
def multi_tensor_cast(x: tuple[Tensor, ...], dtype: DType) -> tuple[Tensor, ...]:
    """Several tensors in another floating point dtype, each rounded as `cast` does.

    x: n >= 1 floating point tensors of any shapes and dtypes. dtype: float16, bfloat16, float32 or
    float64. Returns as many new tensors. It is what the half precision copies of a model's
    parameters cost in one kernel. Raises TypeInferError for no tensors, or others.
    """
    require(len(x) > 0, "there are no tensors", expected="at least one")
    require(dtypes.is_float(dtype), "dtype must be floating point", found=dtype)
    for t in x:
        require_float(t, "x")
    return tuple(t.with_dtype(dtype) for t in x)


def _check(
    x: Tensors,
    dx: Tensors,
    state: tuple[Tensors, ...],
    copies: Tensors,
    step: object,
    learning_rate: object,
    weight_decay: object,
    factor: object,
    skip: TensorType | None,
) -> tuple[()]:
    """Raise TypeInferError unless the arguments fit; an update has no results of its own."""
    lists = {"x": x, "dx": dx, **{f"state {i}": s for i, s in enumerate(state)}}
    if copies:
        lists["copies"] = copies
    _check_lists(lists, same_dtype=(x, tuple(t for s in state for t in s), copies))
    check_numbers(step, 1.0)
    for name, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
        _check_rate(name, value, len(x))
    _check_rate("factor", factor, 1)
    _check_skip(skip)
    return ()


def _check_lists(lists: dict[str, Tensors], same_dtype: tuple[Tensors, ...]) -> None:
    count = len(next(iter(lists.values())))
    lengths = {name: len(tensors) for name, tensors in lists.items()}
    require(
        count > 0 and set(lengths.values()) == {count},
        "the lists differ in length",
        expected="n >= 1 tensors each",
        found=lengths,
    )
    for i, together in enumerate(zip(*lists.values(), strict=True)):
        found = ", ".join(f"{n}={t}" for n, t in zip(lists, together, strict=True))
        require(
            len({t.shape for t in together}) == 1,
            f"the tensors of parameter {i} differ",
            expected="one shape",
            found=found,
        )
        for name, tensor in zip(lists, together, strict=True):
            require_float(tensor, name)
    for tensors in same_dtype:
        present = sorted({t.dtype for t in tensors})
        require(
            len(present) <= 1,
            "a list has several dtypes",
            expected="one dtype; make one call for each",
            found=present,
        )


def _check_rate(name: str, value: object, count: int) -> None:
    if not isinstance(value, TensorType):
        return
    require(dtypes.is_float(value.dtype), f"{name} must be floating point", found=str(value))
    one = all(d == 1 for d in value.shape)
    require(
        one or value.shape == (count,),
        f"{name} has another shape",
        expected=f"one element, or ({count},)" if count > 1 else "one element",
        found=str(value),
    )


def _check_skip(skip: TensorType | None) -> None:
    if skip is not None:
        fits = skip.dtype == "bool" and all(d == 1 for d in skip.shape)
        require(fits, "skip must be one bool", found=str(skip))
