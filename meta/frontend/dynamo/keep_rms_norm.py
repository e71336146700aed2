"""`keep_rms_norm`: a normalisation by the root mean square that a model writes out becomes one
operator, with one for its gradient, in a graph of Dynamo's.

``weight * (x * rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))``, with casts to and from float32, is
what transformers has for Llama, T5 and their kin. Its gradient is a dozen calls, and under autocast
the statistics are kept beside x. The operators keep x alone; they compute in at least float32 and
round once. Zhang and Sennrich, arXiv:1910.07467.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from meta import op
from meta.frontend.aten import aten
from meta.frontend.aten.arguments import cast
from meta.frontend.aten.definitions import define
from meta.frontend.dynamo.keep_gelu import (
    POWERS,
    PRODUCTS,
    SQUARES,
    SUMS,
    erase,
    is_alone,
    is_call,
    replace_calls,
)

ROOTS = {torch.rsqrt, "rsqrt"}
MEANS = {torch.mean, "mean"}
CASTS = {"to", "float", "type_as"}


def _dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, weight.dtype)


def _normalised(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x, in at least float32, by its root mean square, and the factor."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide * inverse, inverse


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The normalisation, of the dtype to which x and weight are promoted."""
    return (_normalised(x, eps)[0] * weight).to(_dtype(x, weight))


def _fake_forward(x: Tensor, weight: Tensor, _eps: float) -> Tensor:
    return torch.empty_like(x, dtype=_dtype(x, weight))


def _rms_norm_dx(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The gradients by x and weight."""
    xhat, inverse = _normalised(x, eps)
    slope = dy.to(xhat.dtype)
    g = slope * weight
    dx = inverse * (g - xhat * (g * xhat).mean(-1, keepdim=True))
    dw = (slope * xhat).flatten(0, -2).sum(0) if x.ndim > 1 else slope * xhat
    return dx.to(x.dtype), dw.to(weight.dtype)


def _fake_backward(_dy: Tensor, x: Tensor, weight: Tensor, _eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weight = ctx.saved_tensors
    dx, dw = RMS_NORM_DX(dy, x, weight, ctx.eps)
    return dx, dw, None


RMS_NORM_DX = define(
    "rms_norm_dx(Tensor dy, Tensor x, Tensor weight, float eps) -> (Tensor dx, Tensor dw)",
    _rms_norm_dx,
    _fake_backward,
)
RMS_NORM = define(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    _rms_norm,
    _fake_forward,
    (_backward, _save),
)


@aten("meta.rms_norm", op.rms_norm)
def _convert(x: Any, weight: Any, *, eps: float, call: Any) -> Any:
    x, weight = _promoted(x, weight)
    return op.rms_norm(x, (x.shape[-1],), weight, eps)


@aten("meta.rms_norm_dx", op.rms_norm_dx)
def _convert_dx(dy: Any, x: Any, weight: Any, *, eps: float) -> Any:
    wide, scale = _promoted(x, weight)
    dx, dw = op.rms_norm_dx(wide, scale, cast(dy, wide.dtype), -1, eps)
    return cast(dx, x.dtype), cast(dw, weight.dtype)


def _promoted(x: Any, weight: Any) -> tuple[Any, Any]:
    if x.dtype == weight.dtype:
        return x, weight
    wide = "float64" if "float64" in (x.dtype, weight.dtype) else "float32"
    return cast(x, wide), cast(weight, wide)


def keep_rms_norm(graph: fx.GraphModule) -> None:
    """Write one call in the place of each normalisation in a graph, and in graphs within."""
    replace_calls(graph, PRODUCTS, _replaced)


def _fake_value(node: object) -> Tensor | None:
    """Return what Dynamo says of a floating point tensor."""
    said = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return said if isinstance(said, Tensor) and said.dtype.is_floating_point else None


def _behind_casts(node: Any) -> Any:
    """Return what a value is a cast of."""
    while isinstance(node, fx.Node) and node.op == "call_method" and node.target in CASTS:
        args: Any = node.args
        before, after = _fake_value(args[0]), _fake_value(node)
        others = [a for a in (*args[1:], *node.kwargs.values()) if isinstance(a, bool)]
        if before is None or after is None or before.device != after.device or others:
            break
        node = args[0]
    return node


def _wide_source(node: Any) -> Any:
    """Return what a value is a widening cast of, the value if it is none."""
    source = _behind_casts(node)
    before, after = _fake_value(source), _fake_value(node)
    if before is None or after is None:
        return node
    widens = torch.promote_types(before.dtype, after.dtype) == after.dtype
    return source if widens else node


def _factor_of(root: Any) -> tuple[Any, float] | None:
    """Return x and eps of ``rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)``."""
    if not is_call(root, ROOTS):
        return None
    total = root.args[0]
    if not is_call(total, SUMS) or len(total.args) != 2 or not isinstance(total.args[1], float):
        return None
    mean, eps = total.args
    if not isinstance(mean, fx.Node) or mean.target not in MEANS or mean.op == "placeholder":
        return None
    given: Any = mean.args
    options = dict(zip(("dim", "keepdim"), given[1:], strict=False)) | dict(mean.kwargs)
    if options.pop("dim", None) not in (-1, (-1,), [-1]) or options.pop("keepdim", 0) is not True:
        return None
    squares = given[0]
    powers = is_call(squares, POWERS) and squares.args[1] == 2
    products = is_call(squares, PRODUCTS) and squares.args[0] is squares.args[1]
    if not powers and not products and not is_call(squares, SQUARES):
        return None
    source = squares.args[0]
    said = _fake_value(squares)
    if options or said is None or said.dtype not in (torch.float32, torch.float64):
        return None
    return _wide_source(source), eps


def _replaced(root: fx.Node) -> bool:
    """Write a call in the place of a product that is a normalisation; return whether it is."""
    said = _fake_value(root)
    factors: Any = root.args
    if said is None or len(factors) != 2:
        return False
    for weight, value in (factors, factors[::-1]):
        product = _behind_casts(value)
        if not is_call(product, PRODUCTS) or len(product.args) != 2:
            continue
        for factor, other in (product.args, product.args[::-1]):
            found = _factor_of(factor)
            if found is None or found[0] is not _wide_source(other):
                continue
            x, eps = found
            if _fits(x, weight, said) and is_alone(root, (x,)):
                _write(root, x, weight, eps)
                return True
    return False


def _fits(x: fx.Node, weight: Any, said: Tensor) -> bool:
    """Whether the operator gives what is said of x and weight."""
    data, scale = _fake_value(x), _fake_value(weight)
    if data is None or scale is None or data.ndim < 1:
        return False
    shapes = scale.ndim == 1 and scale.shape[0] == data.shape[-1] and data.shape == said.shape
    return shapes and _dtype(data, scale) == said.dtype


def _write(root: fx.Node, x: fx.Node, weight: fx.Node, eps: float) -> None:
    with root.graph.inserting_before(root):
        made = root.graph.call_function(RMS_NORM, (x, weight, eps))
    made.meta = {**root.meta}
    root.replace_all_uses_with(made)
    erase(root, (x, weight))
