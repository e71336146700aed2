"""Batch normalisation by given statistics, folded into the linear operator before it.

To add an operator that is linear in its weights, name it above `_LINEAR`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

from meta import op
from meta.amp.cast_rule import HALVES
from meta.base.device import CPU, Device
from meta.dialect.core.ir_calls import (
    called_op,
    flat_atoms,
    named_args,
    new_call,
    op_call,
    tensor_of,
    tensor_type,
)
from meta.grad.core import in_dtype
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    operands,
    type_bytes,
    type_of,
)
from meta.ir.visit import uses
from meta.op.core import Op
from meta.op.core.op import by_schema
from meta.op.norm import statistics_dtype
from meta.passes.alias_analysis import AliasSets, AliasSummaries, owning_tuple
from meta.passes.pattern import Match, operator, pattern, rewrite, wildcard
from meta.passes.prepare import run_invariant
from meta.passes.rewrite import with_main

_CONVOLUTIONS = op.conv1d, op.conv2d, op.conv3d
_TRANSPOSED = op.conv_transpose1d, op.conv_transpose2d, op.conv_transpose3d
# The axes of the weights of a product, from I to O.
_PRODUCTS = {op.matmul: "IO", op.matmul_nt: "OI", op.dense: "OI"}
_LINEAR = *_CONVOLUTIONS, *_TRANSPOSED, *_PRODUCTS
_linear = operator(*_LINEAR)


MIN_RESULT_BYTES = 9 << 20
"""Bytes of a result, beyond those of the weights, from which on a pass over it takes longer than
the launches that fold the weights of one convolution: about 4.5 us at 4 TB/s, read and written.
"""
LAUNCH = 1.4e-6
"""Seconds that a pass over a small result takes in a CUDA graph, launch and latency, less what a
layer costs beside its bytes in the launch that folds all weights.
"""
RATE, WEIGHT_RATE = 4e12, 3.6e12
"""Bytes per second of a pass over a result, which is mostly in the L2 cache, and of one more layer
in that launch. Measured in ResNet-50 in float16 on an H100 (2026-11-26, in chunks of 8192), with
the largest layers folded and without: with one image, four of 37 MB, read and written, take 10.1 us
in the launch, and their passes 6; with 64 images, three of 28 MB take 7.9 us, and their passes 8.3.
"""
EARLY = 2 << 20
"""Bytes of weights that are folded at the beginning: those of the layers whose results are large
are few, and the others take room beside these.
"""
_FUSED_READERS = {op.relu, op.add, *_LINEAR, op.max_pool2d, op.avg_pool2d, op.mean}
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

    Where all but x is constant, or the same in every run (`run_invariant`), `fold_constant` or
    `prepare` computes the folded weights once. Others are folded in every run, on ``devices``:
    those of convolutions in two dimensions where a library's kernel computes what follows, too,
    and where this takes less time than the pass over the result. Parameters of main that lie as
    convolutions read them are folded in one call at its beginning, `multi_tensor_fold_batch_norm`,
    which costs little more than reading and writing them (`WEIGHT_RATE`); others by three small
    kernels each (`MIN_RESULT_BYTES`).

    >>> from meta.ir import parse
    >>> print(meta.passes.fold_batch_norm(parse('''
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
    fixed = run_invariant(module)
    every_run = device.kind in devices and "main" in module.functions
    runs = _RunInvariants(module, fixed) if every_run else None
    check = partial(_why_not, fixed, runs)
    found = rewrite(module, replace(_normalized, check=check), partial(_fold_weights, runs))
    return found if runs is None else _join_folds(found, runs)


@pattern
def _normalized(
    x: Any, w: Any, b: Any, mean: Any, var: Any, scale: Any, shift: Any, b_axis: Any, eps: Any,
    axis: Any,
) -> Any:  # fmt: skip
    y = _linear(x, op.astype(w, wildcard()) | w, ...)
    y = op.bias_add(y, b, b_axis) | y
    return op.batch_norm_infer(y, mean, var, scale, shift, wildcard(), eps, axis)


class _RunInvariants:
    """What main is given in every run, and which operators read its values.

    fixed: the values that are the same in every run.
    """

    def __init__(self, module: Module, fixed: frozenset[Var]) -> None:
        self._readers: dict[Expr, set[Op | None]] = {}
        self._values: dict[Expr, Expr] = {}
        self._given: set[Expr] = set()
        for binding in module.main.body.bindings:
            self._values[binding.var] = binding.value
            for atom in uses(binding.value):
                self._readers.setdefault(atom, set()).add(called_op(binding.value))
        written = {owning_tuple(b) for b in AliasSets(module.main, AliasSummaries(module)).written}
        self._given = {p for p in module.main.params if p not in written and p not in fixed}

    def why_not(self, match: Match) -> str | None:
        """Return why weights that differ from run to run are not worth folding."""
        call, args = _linear_call(match)
        y, w = tensor_of(match.root.var), tensor_of(match.captures["w"])
        if called_op(call) is not op.conv2d or args["groups"] != 1:
            return "it is no convolution in two dimensions of one group"
        if not (y.is_static and w.is_static):
            return "its extents are no numbers"
        if not self._pays(match, type_bytes(y), type_bytes(w)):
            return "folding takes as long as the pass over the result"
        if not self._readers.get(match.root.var, set()) <= _FUSED_READERS:
            return "what follows is a kernel of its own, which normalises on the way"
        return None

    def _pays(self, match: Match, result: int, weights: int) -> bool:
        if not self.is_listed(match):
            return result >= weights + MIN_RESULT_BYTES
        cast = tensor_of(match.captures["w"]).dtype != tensor_of(match.root.var).dtype
        # What is cast in every run is read and written, folded or not.
        return cast or 2 * weights / WEIGHT_RATE < LAUNCH + 2 * result / RATE

    def is_listed(self, match: Match) -> bool:
        """Whether a convolution's weights are folded in one call with those of others: parameters
        of main that nobody writes, which lie as the convolution is to read them.
        """
        call, args = _linear_call(match)
        if match.root.var not in self._values or called_op(call) is not op.conv2d:
            return False
        w, axes = self.source(match.captures["w"])
        others = (match.captures[name] for name in ("b", "mean", "var", "scale", "shift"))
        if not self.gives((w, *others)):
            return False
        letters = _of_source(args["kernel_layout"], axes)
        # Half precision is convolved with the channels last.
        last = tensor_of(match.root.var).dtype in HALVES
        shape = tensor_of(w).shape
        ones = all(n == 1 for n, a in zip(shape, letters, strict=True) if a in "HW")
        return letters[0] == "O" and (not last or ones or letters == "OHWI")

    def gives(self, atoms: Iterable[Expr | None]) -> bool:
        """Whether atoms are parameters of main that nobody writes, differing from run to run."""
        return {atom for atom in atoms if atom is not None} <= self._given

    def source(self, w: Expr) -> tuple[Expr, tuple[int, ...] | None]:
        """Return what weights are a permutation of, and its axes; None for themselves."""
        return _permutation_of(self._values.get(w)) or (w, None)


def _permutation_of(value: Expr | None) -> tuple[Expr, tuple[int, ...]] | None:
    """Return what a permutation is of, and its axes; None for another value."""
    call = op_call(value)
    if call is None or call.op is not op.permute_dims:
        return None
    source, axes = call.args
    ndim = tensor_of(source).ndim
    axes = axes or tuple(reversed(range(ndim)))
    return source, tuple(a % ndim for a in axes)


def _of_source(letters: str, axes: tuple[int, ...] | None) -> str:
    """Return the letters of the axes of what a permutation with these letters is of."""
    if axes is None:
        return letters
    return "".join(letters[axes.index(i)] for i in range(len(axes)))


def _why_not(fixed: frozenset[Var], runs: _RunInvariants | None, match: Match) -> str | None:
    """Return why a match cannot be folded; ``fixed`` are the values that are always the same."""
    captured = match.captures
    for name in ("w", "b", "mean", "var", "scale", "shift"):
        atom = captured[name]
        if not (atom is None or isinstance(atom, Constant) or atom in fixed):
            if runs is None:
                return f"{name} is not the same in every run"
            if why := runs.why_not(match):
                return f"{name} is not the same in every run, and {why}"
            break
    y = tensor_of(match.root.var)
    channels = _channels(_linear_call(match)[1]) % y.ndim
    if captured["axis"] % y.ndim != channels:
        return "the channels of the result are another axis"
    if captured["b"] is not None and captured["b_axis"] % y.ndim != channels:
        return "what is added before is no bias of channels"
    return None


def _fold_weights(
    runs: _RunInvariants | None,
    match: Match,
    x: Any,
    w: Any,
    b: Any,
    mean: Any,
    var: Any,
    scale: Any,
    shift: Any,
    eps: float,
) -> Any:
    """Return what takes the place of a match; the last arguments but ``eps`` may be None."""
    y = tensor_of(match.root.var)
    call, args = _linear_call(match)

    def convolved(kernel: Any, bias: Any) -> Any:
        made = by_schema(call.callee)(x, kernel, *call.args[2:])
        return op.bias_add(made, bias, _channels(args) % y.ndim)

    if runs is not None and runs.is_listed(match):
        optional = (() if one is None else (one,) for one in (scale, shift, b))
        return convolved(
            *op.multi_tensor_fold_batch_norm((w,), (mean,), (var,), *optional, eps, y.dtype)
        )
    wide = partial(in_dtype, dtype=statistics_dtype(y.dtype))
    factor = op.rsqrt(op.add(wide(var), eps))
    if scale is not None:
        factor = op.multiply(factor, wide(scale))
    bias = op.negative(wide(mean)) if b is None else op.subtract(wide(b), wide(mean))
    bias = op.multiply(bias, factor)
    if shift is not None:
        bias = op.add(bias, wide(shift))
    kernel = in_dtype(_scaled(call, args, wide(w), factor), y.dtype)
    return convolved(kernel, in_dtype(bias, y.dtype))


@dataclass(frozen=True, slots=True)
class _Fold:
    """A call that folds the weights of one convolution.

    parts: the weights and what goes with them, in order; None for what there is not. axes: of the
    permutation that the convolution reads of these weights, if it is one. fields: the bindings to
    the call's results.
    """

    binding: Binding
    parts: tuple[Expr | None, ...]
    axes: tuple[int, ...] | None
    fields: tuple[Binding, ...]

    @property
    def together(self) -> tuple[Any, ...]:
        """Return what calls have in common that may be one."""
        kinds = tuple(None if a is None else tensor_of(a).dtype for a in self.parts)
        return kinds, self.options

    @property
    def options(self) -> tuple[Any, ...]:
        """Return the last arguments."""
        assert isinstance(self.binding.value, Call)
        return self.binding.value.args[len(self.parts) :]


def _join_folds(module: Module, runs: _RunInvariants) -> Module:
    """Return the module with the calls that fold parameters of main joined at its beginning: one
    for each eps, and for each set of dtypes and of arguments that there are. Where results are
    large, weights of late layers are folded by another one when the first is needed (`EARLY`).
    """
    groups: dict[Any, list[_Fold]] = {}
    for fold in _folds(module.main.body, runs):
        groups.setdefault(fold.together, []).append(fold)
    if not groups:
        return module
    bindings = module.main.body.bindings
    types = (tensor_type(b.var) for b in bindings)
    large = any(t is not None and t.is_static and type_bytes(t) > 8 * EARLY for t in types)
    begun: list[Binding] = []
    late: dict[Binding, list[Binding]] = {}
    for group in groups.values():
        late |= {b: [] for fold in group for b in (fold.binding, *fold.fields)}
        totals = accumulate(type_bytes(tensor_of(fold.parts[0])) for fold in group)
        first = sum(not large or total <= EARLY for total in totals)
        begun += _joined_call(group[:first]) if first else []
        if first < len(group):
            late[group[first].binding] = _joined_call(group[first:])
    return with_main(module, [*begun, *(one for b in bindings for one in late.get(b, [b]))])


def _folds(body: Block, runs: _RunInvariants) -> list[_Fold]:
    """Return the calls of one layer each that may stand at the beginning of main."""
    readers: dict[Expr, list[Binding]] = {}
    for binding in body.bindings:
        for atom in uses(binding.value):
            readers.setdefault(atom, []).append(binding)
    found: list[_Fold] = []
    for binding in body.bindings:
        value = binding.value
        if called_op(value) is not op.multi_tensor_fold_batch_norm or not isinstance(value, Call):
            continue
        *lists, _, _ = map(flat_atoms, value.args)
        fields = tuple(readers.get(binding.var, ()))
        reads = all(isinstance(b.value, TupleGetItem) for b in fields)
        if not reads or max(map(len, lists)) > 1 or binding.var in operands(body.result):
            continue
        w, axes = runs.source(lists[0][0])
        parts = (w, *(one[0] if one else None for one in lists[1:]))
        if runs.gives(parts):
            found.append(_Fold(binding, parts, axes, fields))
    return found


def _joined_call(group: list[_Fold]) -> list[Binding]:
    """Return one call in the place of several, and what becomes of their results."""
    columns = zip(*(fold.parts for fold in group), strict=True)
    lists = [tuple(a for a in column if a is not None) for column in columns]
    _, dtype = group[0].options
    weights, biases = [], []
    for fold in group:
        w = tensor_of(fold.parts[0])
        made = dtype or w.dtype
        weights.append(Var("folded", w.with_dtype(made)))
        biases.append(Var("bias", TensorType(w.shape[:1], made)))
    whole = Var("folded", type_of(Tuple((*weights, *biases))))
    given = (Tuple(one) if one else () for one in lists)
    call = Call(op.multi_tensor_fold_batch_norm, (*given, *group[0].options))
    found = [Binding(whole, call, group[0].binding.span)]
    for i, fold in enumerate(group):
        for field in fold.fields:
            assert isinstance(field.value, TupleGetItem)
            if field.value.index:
                value: Expr = TupleGetItem(whole, len(group) + i)
            elif fold.axes is None:
                value = TupleGetItem(whole, i)
            else:
                found.append(Binding(weights[i], TupleGetItem(whole, i), field.span))
                value = new_call(op.permute_dims, weights[i], fold.axes)
            found.append(Binding(field.var, value, field.span))
    return found


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
