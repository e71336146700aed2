"""Batch normalisation by given statistics, folded into the linear operator before it.

To add an operator that is linear in its weights, name it above `_LINEAR`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from meta import op
from meta.base.device import CPU, Device
from meta.grad.core import in_dtype
from meta.ir import Call, Constant, Expr, Module, Var
from meta.ir.visit import uses
from meta.op.core import Op
from meta.op.core.op import by_schema
from meta.op.norm import statistics_dtype
from meta.passes.calls import called_op, named_args, tensor_of
from meta.passes.lifetimes import type_bytes
from meta.passes.pattern import Match, operator, pattern, rewrite, wildcard
from meta.passes.prepare import steady

_CONVOLUTIONS = op.conv1d, op.conv2d, op.conv3d
_TRANSPOSED = op.conv_transpose1d, op.conv_transpose2d, op.conv_transpose3d
# The axes of the weights of a product, from I to O.
_PRODUCTS = {op.matmul: "IO", op.matmul_nt: "OI", op.dense: "OI"}
_LINEAR = *_CONVOLUTIONS, *_TRANSPOSED, *_PRODUCTS
_linear = operator(*_LINEAR)


WORTH = 9 << 20
"""Bytes of a result, beyond those of the weights, from which on a pass over it takes longer than
the launches that fold the weights: about 4.5 us at 4 TB/s, read and written.
"""
_BEHIND = {op.relu, op.add, *_LINEAR, op.max_pool2d, op.avg_pool2d, op.mean}
"""Operators that kernels of convolutions compute behind a bias, or that read a normalised array as
it is; others become a kernel that normalises on the way.
"""


def fold_batch_norm(
    module: Module, *, device: Device = CPU, devices: tuple[str, ...] = ("cuda",)
) -> Module:
    """Fold batch normalisation by given statistics into the weights before it.

    ``(y - mean) * s + bias`` with ``s = scale / sqrt(var + eps)`` per channel of
    ``y = conv(x, w) + b`` is ``conv(x, w * s) + (b - mean) * s + bias``: a bias, which kernels of
    convolutions add on the way, in the place of a pass over the result. That is done for
    convolutions, transposed ones, and matrix products whose result nobody else uses. The weights
    are folded in float32 (float64 for float64) and rounded once, to the dtype that they had.

    Where all but x is constant, or the same in every run (`steady`), `fold_constant` or `prepare`
    computes the folded weights once. Others are folded in every run, on ``devices``, by three small
    kernels: those of convolutions in two dimensions whose result is so much larger than they are
    that this takes less time (`WORTH`), and where a library's kernel computes what follows, too.

    >>> from meta.ir import parse
    >>> print(fold_batch_norm(parse('''
    ... func @main(%x: float32[2, 3, 8, 8], %w: float32[4, 3, 1, 1], %m: float32[4], %v: float32[4])
    ...     -> float32[2, 4, 8, 8] attrs(arrays=3) {
    ...   %0: float32[2, 4, 8, 8] = conv2d(%x, %w)
    ...   %1: float32[2, 4, 8, 8] = batch_norm_infer(%0, %m, %v)
    ...   return %1
    ... }''')))
    func @main(%x: float32[2, 3, 8, 8], %w: float32[4, 3, 1, 1], %m: float32[4], %v: float32[4]) \
-> float32[2, 4, 8, 8] attrs(arrays=3) {
      %0: float32[4] = add(%v, x2=1e-05)
      %1: float32[4] = rsqrt(%0)
      %2: float32[4] = negative(%m)
      %3: float32[4] = multiply(%2, %1)
      %4: float32[4, 1, 1, 1] = reshape(%1, shape=(-1, 1, 1, 1))
      %5: float32[4, 3, 1, 1] = multiply(%w, %4)
      %6: float32[2, 4, 8, 8] = conv2d(%x, %5)
      %7: float32[2, 4, 8, 8] = bias_add(%6, %3)
      return %7
    }
    """
    readers = _Readers(module) if device.kind in devices else None
    check = partial(_why_not, steady(module), readers)
    return rewrite(module, replace(_normalized, check=check), _folded)


@pattern
def _normalized(
    x: Any, w: Any, b: Any, mean: Any, var: Any, scale: Any, shift: Any, b_axis: Any, eps: Any,
    axis: Any,
) -> Any:  # fmt: skip
    y = _linear(x, op.astype(w, wildcard()) | w, ...)
    y = op.bias_add(y, b, b_axis) | y
    return op.batch_norm_infer(y, mean, var, scale, shift, wildcard(), eps, axis)


class _Readers:
    """Which operators read the values of main."""

    def __init__(self, module: Module) -> None:
        self._found: dict[Expr, set[Op | None]] = {}
        for binding in module.main.body.bindings if "main" in module.functions else ():
            for atom in uses(binding.value):
                self._found.setdefault(atom, set()).add(called_op(binding.value))

    def why_not(self, match: Match) -> str | None:
        """Return why weights that differ from run to run are not worth folding."""
        call, args = _linear_call(match)
        y, w = tensor_of(match.root.var), match.captures["w"]
        if called_op(call) is not op.conv2d or args["groups"] != 1:
            return "it is no convolution in two dimensions of one group"
        if not (y.is_static and tensor_of(w).is_static):
            return "its extents are no numbers"
        if type_bytes(y) < type_bytes(tensor_of(w)) + WORTH:
            return "folding takes as long as the pass over the result"
        if not self._found.get(match.root.var, set()) <= _BEHIND:
            return "what follows is a kernel of its own, which normalises on the way"
        return None


def _why_not(fixed: frozenset[Var], readers: _Readers | None, match: Match) -> str | None:
    """Return why a match cannot be folded; ``fixed`` are the values that are always the same."""
    captured = match.captures
    for name in ("w", "b", "mean", "var", "scale", "shift"):
        atom = captured[name]
        if not (atom is None or isinstance(atom, Constant) or atom in fixed):
            if readers is None:
                return f"{name} is not the same in every run"
            if why := readers.why_not(match):
                return f"{name} is not the same in every run, and {why}"
            break
    y = tensor_of(match.root.var)
    channels = _channels(_linear_call(match)[1]) % y.ndim
    if captured["axis"] % y.ndim != channels:
        return "the channels of the result are another axis"
    if captured["b"] is not None and captured["b_axis"] % y.ndim != channels:
        return "what is added before is no bias of channels"
    return None


def _folded(
    match: Match, x: Any, w: Any, b: Any, mean: Any, var: Any, scale: Any, shift: Any, eps: float
) -> Any:
    """Return what takes the place of a match; the last arguments but ``eps`` may be None."""
    y = tensor_of(match.root.var)
    call, args = _linear_call(match)
    wide = partial(in_dtype, dtype=statistics_dtype(y.dtype))
    factor = op.rsqrt(op.add(wide(var), eps))
    if scale is not None:
        factor = op.multiply(factor, wide(scale))
    bias = op.negative(wide(mean)) if b is None else op.subtract(wide(b), wide(mean))
    bias = op.multiply(bias, factor)
    if shift is not None:
        bias = op.add(bias, wide(shift))
    kernel = in_dtype(_scaled(call, args, wide(w), factor), y.dtype)
    made = by_schema(call.callee)(x, kernel, *call.args[2:])
    return op.bias_add(made, in_dtype(bias, y.dtype), _channels(args) % y.ndim)


def _linear_call(match: Match) -> tuple[Call, dict[str, Any]]:
    """Return the call of the linear operator, and its arguments by name."""
    for binding in match.members:
        called = called_op(binding.value)
        if isinstance(binding.value, Call) and called is not None and called in _LINEAR:
            return binding.value, named_args(called, binding.value)
    raise AssertionError("the pattern has one")


def _channels(args: dict[str, Any]) -> int:
    """Return the axis of the result of a linear operator that O is."""
    return args["out_layout"].index("C") if "out_layout" in args else -1


def _scaled(call: Call, args: dict[str, Any], w: Any, factor: Any) -> Any:
    """Return w with every element times the factor of its channel of the result."""
    called = called_op(call)
    letters, shape = _PRODUCTS.get(called) or args["kernel_layout"], list(w.shape)
    groups = args.get("groups", 1) if called in _TRANSPOSED else 1
    if groups == 1:
        return op.multiply(w, op.reshape(factor, [-1 if a == "O" else 1 for a in letters]))
    # Input channels of one group lead to the output channels of this group only.
    inputs, outputs = letters.index("I"), letters.index("O")
    split = [*shape[:inputs], groups, -1, *shape[inputs + 1 :]]
    factor = op.reshape(factor, (groups, shape[outputs]))
    if outputs < inputs:
        factor = op.permute_dims(factor, (1, 0))
    apart = letters.replace("I", "GI")
    there = [n if a in "GO" else 1 for a, n in zip(apart, split, strict=True)]
    return op.reshape(op.multiply(op.reshape(w, split), op.reshape(factor, there)), shape)
