"""Optimizer steps of several parameters at once by ATen's operators on lists of tensors."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.adaptive import correction, wide
from meta.dialect.torch.optimizer import number

mul, add, div = torch._foreach_mul, torch._foreach_add, torch._foreach_div


@dialect.kernel(op.multi_tensor_sgd)
def multi_tensor_sgd(
    x, dx, v, learning_rate, momentum, weight_decay, copies, factor, clip_value, skip, nesterov
):
    old, g = _wide(x), _gradients(x, dx, factor, clip_value)
    g = add(g, mul(old, _each(weight_decay, x)))
    velocity = add(mul(_wide(v), momentum), g) if v else g
    u = add(g, mul(velocity, momentum)) if v and nesterov else velocity
    new = torch._foreach_sub(old, mul(u, _each(learning_rate, x)))
    _store(skip, (x, new), (copies, new), (v, velocity))


@dialect.kernel(op.multi_tensor_adam)
def multi_tensor_adam(
    x, dx, m, v, step, learning_rate, beta1, beta2, eps, weight_decay, copies, factor, clip_value,
    skip,
):  # fmt: skip
    old = _wide(x)
    g = add(_gradients(x, dx, factor, clip_value), mul(old, _each(weight_decay, x)))
    moments = _moments(g, m, v, beta1, beta2)
    u = _direction(*moments, step, beta1, beta2, eps)
    new = torch._foreach_sub(old, mul(u, _each(learning_rate, x)))
    _store(skip, (x, new), (copies, new), *zip((m, v), moments, strict=True))


@dialect.kernel(op.multi_tensor_adamw)
def multi_tensor_adamw(
    x, dx, m, v, step, learning_rate, beta1, beta2, eps, weight_decay, copies, factor, clip_value,
    skip,
):  # fmt: skip
    old, g = _wide(x), _gradients(x, dx, factor, clip_value)
    moments = _moments(g, m, v, beta1, beta2)
    u = _direction(*moments, step, beta1, beta2, eps)
    u = add(u, mul(old, _each(weight_decay, x)))
    new = torch._foreach_sub(old, mul(u, _each(learning_rate, x)))
    _store(skip, (x, new), (copies, new), *zip((m, v), moments, strict=True))


@dialect.kernel(op.multi_tensor_lamb)
def multi_tensor_lamb(
    x, dx, m, v, step, learning_rate, beta1, beta2, eps, weight_decay, copies, factor, clip_value,
    skip,
):  # fmt: skip
    old, g = _wide(x), _gradients(x, dx, factor, clip_value)
    moments = _moments(g, m, v, beta1, beta2)
    u = _direction(*moments, step, beta1, beta2, eps)
    u = _as_long(add(u, mul(old, _each(weight_decay, x))), old)
    new = torch._foreach_sub(old, mul(u, _each(learning_rate, x)))
    _store(skip, (x, new), (copies, new), *zip((m, v), moments, strict=True))


@dialect.kernel(op.multi_tensor_lans)
def multi_tensor_lans(
    x, dx, m, v, step, learning_rate, beta1, beta2, eps, weight_decay, copies, factor, clip_value,
    skip,
):  # fmt: skip
    old, g = _wide(x), _gradients(x, dx, factor, clip_value)
    lengths = _norms(g)
    g = div(g, [torch.where(n > 0, n, 1.0) for n in lengths])
    moments = _moments(g, m, v, beta1, beta2)
    unbiased = div(moments[1], number(correction(beta2, number(step))))
    divisor = add(torch._foreach_sqrt(unbiased), eps)
    decay = mul(old, _each(weight_decay, x))
    mhat = div(moments[0], number(correction(beta1, number(step))))
    r = _as_long(add(div(mhat, divisor), decay), old)
    c = _as_long(add(div(g, divisor), decay), old)
    u = add(mul(r, beta1), mul(c, 1 - beta1))
    new = torch._foreach_sub(old, mul(u, _each(learning_rate, x)))
    _store(skip, (x, new), (copies, new), *zip((m, v), moments, strict=True))


@dialect.kernel(op.multi_tensor_axpby)
def multi_tensor_axpby(x, y, alpha, beta, skip):
    terms = _times(_wide(x, y[0].dtype), alpha), _times(_wide(y), beta)
    _store(skip, (y, add(*terms)))


@dialect.kernel(op.multi_tensor_norm)
def multi_tensor_norm(x):
    squares = [torch.linalg.vector_norm(t, dtype=torch.float64).square() for t in x]
    return torch.stack(squares).sum().sqrt().float()


@dialect.kernel(op.multi_tensor_cast)
def multi_tensor_cast(x, out):
    torch._foreach_copy_(list(out), list(x))


def _wide(tensors, like=None):
    """Return tensors in the dtype to compute in: float64, or else float32."""
    if like is not None:
        return [t.to(torch.float64 if like == torch.float64 else torch.float32) for t in tensors]
    return [wide(t) for t in tensors]


def _each(value, x):
    """Return a number, or one for each parameter, as what multiplies a list of tensors."""
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        return list(value.unbind())
    return number(value)


def _gradients(x, dx, factor, clip_value):
    """Return the clamped ``factor * dx`` in the dtype to compute in."""
    g = mul(_wide(dx, x[0].dtype), number(factor))
    return torch._foreach_clamp_max(torch._foreach_clamp_min(g, -clip_value), clip_value)


def _moments(g, m, v, beta1, beta2):
    """Return the new running means of the gradients and of their squares."""
    return (
        add(mul(_wide(m), beta1), mul(g, 1 - beta1)),
        add(mul(_wide(v), beta2), mul(mul(g, g), 1 - beta2)),
    )


def _direction(m, v, step, beta1, beta2, eps):
    """Return mhat / (sqrt(vhat) + eps)."""
    step = number(step)
    mhat = div(m, number(correction(beta1, step)))
    return div(mhat, add(torch._foreach_sqrt(div(v, number(correction(beta2, step)))), eps))


def _times(tensors, by):
    """Return multiples of tensors; those by 0 are 0 whatever is in them."""
    if not isinstance(by, torch.Tensor):
        return mul(tensors, by) if by else [torch.zeros_like(t) for t in tensors]
    by = number(by)
    return [torch.where(by == 0, 0.0, t * by) for t in tensors]


def _norms(tensors):
    return [torch.linalg.vector_norm(t) for t in tensors]


def _as_long(u, x):
    """Return each of ``u`` with the norm of its parameter; itself where either norm is 0."""
    ratios = [
        torch.where((a > 0) & (b > 0), a / b, 1.0)
        for a, b in zip(_norms(x), _norms(u), strict=True)
    ]
    return mul(u, ratios)


def _store(skip, *pairs):
    """Write new values over old tensors, unless ``skip`` is true."""
    for tensors, values in pairs:
        for old, new in zip(tensors, values, strict=False):
            old.copy_(new if skip is None else torch.where(skip.reshape(()), old, new.to(old)))
