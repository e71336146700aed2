"""Normalisations, the softmax family and losses."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tools.fuzz_models.rows.reduction import rounds_of_sum, variance
from tools.fuzz_models.rows.row import Call, Row, add


def _axis(d: Any, least: int = 1, *fits: Any) -> tuple[Any, Any, int]:
    x = d.pick(lambda v: v.ndim >= least and v.size > 0, *fits, dtype="float")
    value = d.value(x)
    return x, value, d.int(-value.ndim, value.ndim - 1)


def _along_axis(d: Any) -> Call:
    x, _, axis = _axis(d)
    return (x,), {"axis": axis}


def _softmax_slope(shake: Any, x: Tensor, axis: int) -> Tensor:
    """dx = y * (dy - sum(dy * y)): with a y near 1 it cancels."""
    y = x.detach().softmax(axis)
    return y * (shake(x) + (y * shake(x)).sum(axis, keepdim=True))


def _log_softmax_slope(shake: Any, x: Tensor, axis: int) -> Tensor:
    """dx = dy - exp(y) * sum(dy)"""
    return shake(x) + (x.detach().softmax(axis) * shake(x)).sum(axis, keepdim=True)


add(
    Row(
        "softmax", _along_axis, lambda x, axis: x.softmax(axis), smooth=True, weight=1.5,
        slope=_softmax_slope,
    )
)  # fmt: skip
add(
    Row(
        "log_softmax", _along_axis, lambda x, axis: x.log_softmax(axis), smooth=True,
        inner=lambda x, axis: 1.0, slope=_log_softmax_slope,
    )
)  # fmt: skip


def _softmax_dx(d: Any) -> Call:
    (y,), kwargs = _along_axis(d)
    value = d.value(y)
    return (y, d.like(value.shape, value.dtype)), kwargs


add(
    Row(
        "softmax_dx", _softmax_dx,
        lambda y, dy, axis: y * (dy - (dy * y).sum(axis, keepdim=True)), weight=0.4,
    )
)  # fmt: skip


def _glu(d: Any) -> Call:
    x, value, axis = _axis(d)
    if value.shape[axis] % 2:
        raise d.missing
    return (x,), {"axis": axis}


def _glu_slope(shake: Any, x: Tensor, axis: int) -> Tensor:
    """Of the half whose sigmoid s is taken: s * (1 - s) times the other."""
    left, right = x.chunk(2, axis)
    return left.detach().abs() * shake(right)


def _glu_inner(x: Tensor, axis: int) -> Tensor:
    """A sigmoid below the normal numbers of float32 may be 0, whatever it is multiplied by."""
    return 1e-30 * x.chunk(2, axis)[0].abs()


add(
    Row(
        "glu", _glu, lambda x, axis: F.glu(x, axis), smooth=True, weight=0.7, inner=_glu_inner,
        slope=_glu_slope,
    )
)  # fmt: skip


def _bias_add(d: Any) -> Call:
    x, value, axis = _axis(d)
    return (x, d.like((value.shape[axis],), value.dtype)), {"axis": axis}


def along(p: Tensor | None, x: Tensor, axis: int) -> Tensor:
    """Return a vector shaped to go along an axis of x."""
    assert p is not None
    if p.shape != (x.shape[axis],):
        raise ValueError("a parameter of an axis does not broadcast along it")
    shape = [1] * x.ndim
    shape[axis] = -1
    return p.reshape(shape)


add(
    Row("bias_add", _bias_add, lambda x, b, axis: x + along(b, x, axis), "same", "add", smooth=True)
)


def _scale_bias(d: Any, value: Any, extent: int, count: int = 2) -> list[Any]:
    how = d.random.random()
    if how < 0.3:
        return []
    dtype = value.dtype
    if "16" in dtype and d.chance(0.3):
        dtype = "float32"
    return [d.like((extent,), dtype) for _ in range(count if how > 0.4 else 1)]


def _layer_call(d: Any) -> Call:
    x, value, axis = _axis(d, 1, _varied)
    return (x, *_scale_bias(d, value, value.shape[axis])), {"axis": axis}


def _varied(v: Any) -> bool:
    return v.size > 1


def _scaled(y: Tensor, scale: Any, bias: Any, axis: int) -> Tensor:
    y = y if scale is None else y * along(scale, y, axis)
    return y if bias is None else y + along(bias, y, axis)


def layer_norm(
    x: Tensor, scale: Any = None, bias: Any = None, axis: int = -1, eps: float = 1e-5
) -> Tensor:
    """Return what the name says."""
    mean = x.mean(axis, keepdim=True)
    var = variance(x, axis, keepdim=True)
    return _scaled((x - mean) / (var + eps).sqrt(), scale, bias, axis)


def _of_scale(inner: Tensor, scale: Any, axis: int) -> Tensor:
    return inner if scale is None else inner * along(scale, inner, axis).abs()


def _layer_inner(
    x: Tensor, scale: Any = None, bias: Any = None, axis: int = -1, eps: float = 1e-5
) -> Tensor:
    """x / sqrt(var), of which mean / sqrt(var) is subtracted."""
    inv = (variance(x, axis, keepdim=True) + eps).rsqrt()
    return _of_scale(with_mean(x.abs(), axis) * inv, scale, axis)


def with_mean(sizes: Tensor, axis: int) -> Tensor:
    """Return how large x and what its mean is a sum of are: the mean rounds as they do."""
    rounds = 1 + rounds_of_sum(sizes, axis)
    return rounds * (sizes + sizes.mean(axis, keepdim=True))


def _norm_slope(shake: Any, x: Tensor, w: Any, axis: int, centred: bool, eps: float) -> Any:
    """dx = inv * (w dy - mean(w dy) - y * mean(w dy y)), in which everything may cancel. y is off
    by what the mean is off, too.
    """
    still = x.detach()
    mean = still.mean(axis, keepdim=True) if centred else torch.zeros(())
    inv = ((still - mean).square().mean(axis, keepdim=True) + eps).rsqrt()
    y = (still - mean) * inv
    whole = shake(x).mean(axis, keepdim=True) if centred else 0.0
    across = y * (y * shake(x)).mean(axis, keepdim=True)
    sizes = with_mean(still.abs(), axis) if centred else still.abs()
    if centred:
        off = sizes * inv
        across = across + off * (y * shake(x)).mean(axis, keepdim=True)
        across = across + y * (off * shake(x)).mean(axis, keepdim=True)
    size = 1.0 if w is None else w.detach().abs()
    of_x = size * inv * (shake(x) + whole + across)
    return of_x if w is None else of_x + sizes * inv * shake(w)


def _layer_slope(
    shake: Any, x: Tensor, scale: Any = None, bias: Any = None, axis: int = -1, eps: float = 1e-5
) -> Any:
    w = None if scale is None else along(scale, x, axis)
    return _norm_slope(shake, x, w, axis, True, eps)


add(
    Row(
        "layer_norm", _layer_call, layer_norm, smooth=True, weight=1.5, inner=_layer_inner,
        slope=_layer_slope,
    )
)  # fmt: skip


def _layer_train(
    x: Tensor, scale: Any = None, bias: Any = None, axis: int = -1, eps: float = 1e-5
) -> Any:
    var = variance(x, axis)
    return layer_norm(x, scale, bias, axis, eps), x.mean(axis), (var + eps).rsqrt()


def _layer_dtypes(o: Any, a: Any, k: Any) -> list[str]:
    wide = "float64" if o[0] == "float64" else "float32"
    return [o[0], wide, wide]


def _layer_train_call(d: Any) -> Call:
    """A mean is of the distances from the first element, which may be infinite."""
    (x, *rest), kwargs = _layer_call(d)
    if not finite(d.value(x)):
        raise d.missing
    return (x, *rest), kwargs


add(
    Row(
        "layer_norm_train", _layer_train_call, _layer_train, _layer_dtypes, weight=0.6,
        inner=lambda x, *args, axis: [
            _layer_inner(x, *args, axis=axis), with_mean(x.abs(), axis).mean(axis), None
        ],
    )
)  # fmt: skip


def _rms(
    x: Tensor, scale: Any = None, bias: Any = None, axis: int = -1, eps: float = 1e-6
) -> Tensor:
    inv = (x.square().mean(axis, keepdim=True) + eps).rsqrt()
    return _scaled(x * inv, scale, bias, axis)


def _rms_slope(
    shake: Any, x: Tensor, scale: Any = None, bias: Any = None, axis: int = -1, eps: float = 1e-6
) -> Any:
    w = None if scale is None else along(scale, x, axis)
    return _norm_slope(shake, x, w, axis, False, eps)


add(Row("rms_norm", _layer_call, _rms, smooth=True, slope=_rms_slope))


def _group_call(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim >= 2 and v.size > 1, dtype="float")
    value = d.value(x)
    groups = d.choice([k for k in (1, 2, 3, 4, value.shape[1]) if value.shape[1] % k == 0])
    if d.style.smooth and value.size <= value.shape[0] * value.shape[1]:
        # The gradient of one element is 0: of what rounds to another number, where a maximum has
        # several places, evaluations beside it know nothing.
        raise d.missing
    return (x, groups, *_scale_bias(d, value, value.shape[1])), {}


def _group(
    x: Tensor, groups: int, scale: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    parts = x.reshape(x.shape[0], groups, -1)
    mean, var = parts.mean(-1, keepdim=True), variance(parts, keepdim=True)
    return _scaled(((parts - mean) / (var + eps).sqrt()).reshape(x.shape), scale, bias, 1)


def _group_inner(
    x: Tensor, groups: int, scale: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    parts = x.reshape(x.shape[0], groups, -1)
    inv = (variance(parts, keepdim=True) + eps).rsqrt()
    return _of_scale((with_mean(parts.abs(), -1) * inv).reshape(x.shape), scale, 1)


def _group_slope(
    shake: Any, x: Tensor, groups: int, scale: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    shape = (x.shape[0], groups, -1)
    w = None if scale is None else along(scale, x, 1).expand(x.shape).reshape(shape)
    return _norm_slope(shake, x.reshape(shape), w, -1, True, eps).reshape(x.shape)


add(Row("group_norm", _group_call, _group, smooth=True, inner=_group_inner, slope=_group_slope))


def _instance_call(d: Any) -> Call:
    (x, _, *rest), kwargs = _group_call(d)
    return (x, *rest), kwargs


add(
    Row(
        "instance_norm", _instance_call,
        lambda x, scale=None, bias=None: _group(x, x.shape[1], scale, bias),
        smooth=True, weight=0.6,
        inner=lambda x, scale=None, bias=None: _group_inner(x, x.shape[1], scale),
        slope=lambda s, x, scale=None, bias=None: _group_slope(s, x, x.shape[1], scale),
    )
)  # fmt: skip


def _batch_infer(d: Any) -> Call:
    x, value, axis = _axis(d, 2)
    dtype, c = value.dtype, value.shape[axis]
    mean, var = d.input(dtype, (c,)), d.input(dtype, (c,), 0.5, 3.0)
    given = (mean, *_scale_bias(d, value, c))
    if not all(finite(d.value(p)) for p in given):
        raise d.missing  # it is x * scale + (bias - mean * scale), too
    return (x, mean, var, *given[1:]), {"axis": axis}


def _batch_infer_reference(
    x: Tensor, mean: Tensor, var: Tensor, w: Any = None, b: Any = None, axis: int = 1
) -> Tensor:
    y = (x - along(mean, x, axis)) / (along(var, x, axis) + 1e-5).sqrt()
    return _scaled(y, w, b, axis)


add(Row("batch_norm_infer", _batch_infer, _batch_infer_reference, smooth=True))


def _l2_call(d: Any) -> Call:
    x, _, axis = _axis(d)
    return (x,), {"axis": axis}


add(
    Row(
        "l2_normalize", _l2_call,
        lambda x, axis: x / x.square().sum(axis, keepdim=True).clamp_min(1e-12).sqrt(), weight=0.6,
    )
)  # fmt: skip


def _lrn_call(d: Any) -> Call:
    x, _, axis = _axis(d, 2)
    return (x,), {"size": d.choice((1, 2, 3, 5)), "axis": axis, "alpha": 0.5}


def _lrn(x: Tensor, size: int, axis: int, alpha: float) -> Tensor:
    moved = x.movedim(axis, -1)
    padded = F.pad(moved.square(), (size // 2, (size - 1) // 2))
    total = padded.unfold(-1, size, 1).sum(-1)
    return (moved / (1.0 + alpha / size * total) ** 0.75).movedim(-1, axis)


# dx = dy / d**beta - 2 c beta x W(dy x / d**(beta + 1)): at most dy and 2 beta dy.
add(
    Row(
        "lrn", _lrn_call, _lrn, smooth=True, weight=0.5,
        slope=lambda shake, x, size, axis, alpha: 2.5 * shake(x),
    )
)  # fmt: skip


# Attention.


def _attention_call(d: Any) -> Call:
    # The largest score is subtracted from the others, which an infinite one cannot be.
    x = d.pick(lambda v: v.ndim == 4 and 0 < v.size <= 2000 and finite(v), dtype="float")
    value = d.value(x)
    b, h, s, e = value.shape
    keys = d.choice((s, 3, 17))
    k = d.like((b, h, keys, e), value.dtype)
    v = d.like((b, h, keys, e), value.dtype)
    if not finite(d.value(k)):
        raise d.missing
    causal = keys >= s and d.chance(0.4)
    return (x, k, v), {"causal": True} if causal and keys == s else {}


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Any:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


add(
    Row(
        "fused_attention", _attention_call, _attention,
        lambda o, a, k: [o[0], "float64" if o[0] == "float64" else "float32"], weight=1.0,
        # ATen's exponentials of half precision are good to 5e-5 on the CPU.
        inner=lambda q, k, v, causal=False: [None, ("operand", 0.05)],
    )
)  # fmt: skip


# Losses.


def finite(v: Any) -> bool:
    """Whether a value has neither infinities nor NaN."""
    return bool(v.tensor.isfinite().all())


def _pair(d: Any) -> tuple[Any, Any]:
    """Of infinities x - x * y and (1 - y) * x are not the same."""
    x = d.pick(lambda v: v.size > 0 and finite(v), dtype="float")
    y = d.like(d.value(x).shape, d.value(x).dtype)
    if not finite(d.value(y)):
        raise d.missing
    return x, y


def _reduced(x: Tensor, reduction: str) -> Tensor:
    return x if reduction == "none" else x.mean() if reduction == "mean" else x.sum()


def _reduction(d: Any) -> dict[str, Any]:
    return {"reduction": d.choice(("none", "mean", "sum"))} if d.chance(0.7) else {}


def _loss(
    name: str, function: Any, weight: float = 0.5, inner: Any = None, slope: Any = None
) -> None:
    add(
        Row(
            name, lambda d: (_pair(d), _reduction(d)),
            lambda x, y, reduction="mean": _reduced(function(x, y), reduction),
            smooth=True, weight=weight, inner=inner, slope=slope,
        )
    )  # fmt: skip


_loss("mse_loss", lambda x, y: (x - y).square())
_loss("l1_loss", lambda x, y: (x - y).abs())
_loss("huber_loss", lambda x, y: F.huber_loss(x, y, reduction="none"))
_loss(
    "binary_cross_entropy_with_logits",
    lambda x, y: x.clamp_min(0) - x * y + torch.log1p(torch.exp(-x.abs())),
    inner=lambda x, y, reduction="mean": _reduced(1 + x.abs() * (1 + y.abs()), reduction),
    slope=lambda shake, x, y, reduction="mean": _reduced(shake(x), reduction),
)


def _kl_call(d: Any) -> Call:
    x = d.pick(lambda v: v.size > 0 and finite(v), dtype="float")
    value = d.value(x)
    return (x, d.input(value.dtype, value.shape, 0.25, 3.0)), _reduction(d)


def _kl_slope(shake: Any, x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """log(y) + 1 - x"""
    size = 1 + y.detach().log().abs() + x.detach().abs()
    return _reduced(size * shake(y), reduction)


add(
    Row(
        "kl_div", _kl_call,
        lambda x, y, reduction="mean": _reduced(torch.xlogy(y, y) - y * x, reduction),
        smooth=True, weight=0.4, slope=_kl_slope,
        inner=lambda x, y, reduction="mean": _reduced(
            torch.xlogy(y, y).abs() + (y * x).abs(), reduction
        ),
    )
)  # fmt: skip
add(
    Row(
        "smooth_l1_loss", lambda d: (_pair(d), {}),
        F.smooth_l1_loss, smooth=True, weight=0.4,
    )
)  # fmt: skip


def _classes(d: Any) -> Call:
    x = d.pick(lambda v: v.size > 0, dtype="float", ndim=2)
    rows, classes = d.value(x).shape
    return (x, d.input("int64", (rows,), 0, classes - 1)), {}


add(
    Row(
        "nll_loss",
        _classes,
        F.nll_loss,
        lambda o, a, k: o[0],
        smooth=True,
        weight=0.5,
    )
)
add(
    Row(
        "cross_entropy",
        _classes,
        F.cross_entropy,
        lambda o, a, k: o[0],
        smooth=True,
        inner=lambda x, y: 1.0 + x.abs().max(),
        slope=lambda shake, x, y: shake(x).sum(1).mean(),  # softmax - 1
        weight=0.5,
    )
)
