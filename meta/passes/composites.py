"""Activations and normalisations that a program writes out become the operators that they are.

To add one, write a pattern and what takes its place, and give `COMPOSITES` a row. torch.compile
finds the same in the graphs of Dynamo (`meta/frontend/dynamo/composites.py`), by these patterns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from meta import op
from meta.base.dtype import promote
from meta.dialect.core.ir_calls import called_op, tensor_of
from meta.grad.core import in_dtype
from meta.ir import Module, bindings
from meta.op.core.check import normalize_axes
from meta.op.core.op import ComposedOp
from meta.op.norm import statistics_dtype
from meta.passes.deduplicate import eliminate_common_subexpressions
from meta.passes.pattern import Match, Pattern, constant, formula, pattern, rewrite, wildcard
from meta.passes.simplify.arithmetic import fill_of


def _broadcasts(match: Match) -> str | None:
    """Return why a result is not made of x element by element, or None."""
    same = tensor_of(match.captures["x"]).shape == tensor_of(match.root.var).shape
    return None if same else "the result has not the shape of x"


def _no_norm(match: Match) -> str | None:
    """Return why a match is no normalisation along one axis of x, or None."""
    captured = match.captures
    if why := _broadcasts(match):
        return why
    if not isinstance(fill_of(captured["eps"], {}), int | float):
        return "epsilon is no number"
    shape = tensor_of(captured["x"]).shape
    named = [captured[name] for name in ("axis", "other") if name in captured]
    axes = {normalize_axes(axis, len(shape)) for axis in named}
    if len(axes) > 1 or len(next(iter(axes))) != 1:
        return "the statistics are not along one axis"
    ((axis,),) = axes
    wanted = tuple(n if i == axis else 1 for i, n in enumerate(shape))
    for name in ("scale", "bias"):
        if captured.get(name) is not None:
            own = tensor_of(captured[name]).shape
            if (1,) * (len(shape) - len(own)) + own != wanted:
                return f"{name} is no vector along the axis of the statistics"
    return None


@pattern(check=_broadcasts)
def exact_gelu(x: Any) -> Any:
    """Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016."""
    return formula(0.5 * x * (1 + op.erf(x * math.sqrt(0.5))))


@pattern(check=_broadcasts)
def tanh_gelu(x: Any) -> Any:
    """Its approximation, as GPT-2 has it."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return formula(0.5 * x * (1 + op.tanh(inner)))


@pattern(check=_no_norm)
def rms_norm(x: Any, scale: Any, eps: Any = constant(), axis: Any = wildcard()) -> Any:
    """Zhang and Sennrich, arXiv:1910.07467."""
    normal = x * op.rsqrt(op.mean(x * x, axis, True) + eps)
    return formula(normal * scale) | formula(normal)


@pattern(check=_no_norm)
def layer_norm(
    x: Any,
    scale: Any,
    bias: Any,
    eps: Any = constant(),
    axis: Any = wildcard(),
    other: Any = wildcard(),
) -> Any:
    """Ba et al., arXiv:1607.06450."""
    centred = x - op.mean(x, axis, True)
    variance = op.mean(centred * centred, other, True) | op.var(x, other, True)
    normal = centred * op.rsqrt(variance + eps)
    return formula(normal * scale + bias) | formula(normal * scale) | formula(normal)


def _as_gelu(approximate: str, match: Match, x: Any) -> Any:
    y = tensor_of(match.root.var).dtype
    return in_dtype(op.gelu(in_dtype(x, promote(x.dtype, y)), approximate), y)


def _as_rms_norm(match: Match, x: Any, scale: Any, eps: Any, axis: Any) -> Any:
    return _normalised(op.rms_norm, match, x, (scale, None), eps, axis)


def _as_layer_norm(match: Match, x: Any, scale: Any, bias: Any, eps: Any, axis: Any) -> Any:
    return _normalised(op.layer_norm, match, x, (scale, bias), eps, axis)


def _normalised(
    base: ComposedOp, match: Match, x: Any, vectors: tuple[Any, Any], eps: Any, axis: Any
) -> Any:
    """Return a normalisation, computed in the wider dtype of x and the result."""
    y = tensor_of(match.root.var).dtype
    x = in_dtype(x, promote(x.dtype, y))
    scale, bias = (_vector(v, x.dtype) for v in vectors)
    (axis,) = normalize_axes(axis, x.ndim)
    number: Any = fill_of(eps, {})
    return in_dtype(base.plain(x, scale, bias, axis, float(number)), y)


def _vector(v: Any, dtype: str) -> Any:
    """Return a scale or a bias with one dimension, in a dtype that goes with data of another."""
    if v is None:
        return None
    v = v if v.ndim == 1 else op.reshape(v, (-1,))
    return v if v.dtype == dtype else in_dtype(v, statistics_dtype(dtype))


COMPOSITES: Mapping[Pattern, Callable[..., Any]] = MappingProxyType(
    {
        exact_gelu: partial(_as_gelu, "none"),
        tanh_gelu: partial(_as_gelu, "tanh"),
        layer_norm: _as_layer_norm,
        rms_norm: _as_rms_norm,  # which the other one is of what is centred
    }
)
"""What is written out, and what takes its place, in the order in which it is looked for."""


def fuse_composites(module: Module, *, trained: Iterable[int] | None = None) -> Module:
    """Call `gelu`, `rms_norm` and `layer_norm` where a program writes them out.

    In any way of writing their formulas: factors in any order, quotients for products, roots as
    powers, casts between floating point dtypes on the way (`meta.passes.pattern.formula`); numbers
    have to be those of the formula but for rounding. One call reads x once, keeps no step for its
    gradient, and rounds once where the steps are rounded each: the result is the same up to that.
    It stays as it is where something else reads a step.

    ``trained``: that gradients will be wanted; the pass has to run before `autodiff`, as
    `meta.model.value_and_grad` sees to, so that the gradient is one call, too.

    >>> from meta.ir import parse
    >>> print(meta.passes.fuse_composites(parse('''
    ... func @main(%x: float32[8, 4], %w: float32[4]) -> float32[8, 4] {
    ...   %0: float32[8, 4] = multiply(%x, %x)
    ...   %1: float32[8, 1] = mean(%0, axis=-1, keepdims=True)
    ...   %2: float32[8, 1] = add(%1, x2=1e-06)
    ...   %3: float32[8, 1] = sqrt(%2)
    ...   %4: float32[8, 4] = divide(%x, %3)
    ...   %5: float32[8, 4] = multiply(%w, %4)
    ...   return %5
    ... }''')))
    func @main(%x: float32[8, 4], %w: float32[4]) -> float32[8, 4] {
      %0: float32[8, 4] = rms_norm(%x, %w, axis=1)
      return %0
    }
    """
    called = {called_op(b.value) for f in module.functions.values() for b in bindings(f)}
    rows = [row for row in COMPOSITES.items() if row[0].operators <= called]
    if not rows:
        return module
    before = after = eliminate_common_subexpressions(module)
    for what, replacement in rows:
        after = rewrite(after, what, replacement)
    changed = any(after.functions[n] is not f for n, f in before.functions.items())
    return after if changed else module
