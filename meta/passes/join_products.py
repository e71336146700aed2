"""Products of one matrix by several matrices of weights: one product, cut into parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

from meta import op
from meta.base import config
from meta.base.device import Device
from meta.dialect.core.ir_calls import called_op, new_call, tensor_of
from meta.ir import (
    Binding,
    Constant,
    Expr,
    Function,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    operands,
    type_of,
)
from meta.passes.alias_analysis import owning_tuple
from meta.passes.canonicalize import canonicalize
from meta.passes.deduplicate import eliminate_common_subexpressions
from meta.passes.fold_constant import fold_constant
from meta.passes.manager import Pass
from meta.passes.pad_products import COLUMNS
from meta.passes.pattern import Match, match, named, operator, pattern, wildcard
from meta.passes.pattern.scope import Facts
from meta.passes.prepare import run_invariant
from meta.passes.profitability import cheaper
from meta.passes.rewrite import with_main
from meta.runtime import gpu_properties

DTYPES: tuple[str, ...] = "float16", "bfloat16", "float32"
TILE = 128
"""Rows and columns of the piece of a product that one multiprocessor computes at a time."""
GAIN = 0.9
"""The share of the time, at most, that a joined product takes."""
MOST = 4
"""Products that are joined: all results are there at once, wherever they are needed."""
LANES = 8
"""Columns of a part come in multiples of so many, lest its rows begin at odd addresses."""


def join_products(
    module: Module,
    *,
    device: Device,
    devices: tuple[str, ...] = ("cuda",),
    trained: Iterable[int] | None = None,
    lower: Pass | None = None,
) -> Module:
    """Make one product of those of one matrix by weights that stay the same, on ``devices``.

    Query, key and value of an attention are such products, and the two halves of a gated layer. A
    small one does not occupy the device, and its launch takes as long as its work; of larger ones
    the last pieces leave multiprocessors idle, which one product does once. What is to be gained is
    estimated from the number of pieces; weights of equal shape are joined, each with its bias.

    The weights are those of a model in infer mode (`run_invariant`), or constants: they are laid
    one behind the other once, by `prepare` or here. While a model is trained they change with every
    step, and to join them costs a copy of all. In half precision there is little to gain from it
    where a batch has thousands of rows: 4096 rows of 768 make 96 pieces of 128 x 256, which 132
    multiprocessors compute at once, and three times as many still take three turns. In float32 with
    META_TF32 pieces are of 128 x 128, and weights are joined that are ``trained``: the parameters
    of main, by number, that gradients will be wanted of. To be run before `autodiff` then: the
    gradients of the weights, and that of the matrix, are one product each, too. Of a step of
    BERT-base, B32 S128, on an H200, 12.0 ms of products become 11.2, and copies take 0.2 more.

    Where all that changes was measured, that decides (`cheaper`), but for ``trained`` weights;
    ``lower`` are the passes that follow.

    What is left of the cut where a library writes the parts as arrays of their own is nothing: see
    `meta.dialect.cublas.gemm`. To be run where equal views are one value.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> print(meta.passes.join_products(parse('''
    ... func @main(%x: float16[4, 16], %v: float16[8, 16], %w: float16[8, 16]) -> float16[4, 8] \
attrs(arrays=2) {
    ...   %a: float16[4, 8] = dense(%x, %v)
    ...   %b: float16[4, 8] = dense(%x, %w)
    ...   %c: float16[4, 8] = add(%a, %b)
    ...   return %c
    ... }'''), device=CPU, devices=("cpu",)))
    func @main(%x: float16[4, 16], %v: float16[8, 16], %w: float16[8, 16]) -> float16[4, 8] \
attrs(arrays=2) {
      %weights: float16[16, 16] = concat((%v, %w))
      %joined: float16[4, 16] = dense(%x, %weights)
      %parts: (float16[4, 8], float16[4, 8]) = split(%joined, indices_or_sections=2, axis=-1)
      %a: float16[4, 8] = %parts.0
      %b: float16[4, 8] = %parts.1
      %c: float16[4, 8] = add(%a, %b)
      return %c
    }
    """
    if device.kind not in devices or "main" not in module.functions:
        return module
    given = module
    if trained is None:
        fixed, dtypes = run_invariant(module), DTYPES
    else:
        fixed = frozenset(module.main.params[i] for i in trained)
        dtypes = DTYPES[2:] if config.get("META_TF32") else ()
        module = eliminate_common_subexpressions(canonicalize(module))
    processors = gpu_properties.target_of(device).processors
    found = [group for group in _groups(module, fixed, dtypes) if _gains(group, processors)]
    if not found:
        return given
    module = with_main(module, _joined(module.main, found))
    constants = any(isinstance(one.captures["weights"], Constant) for g in found for one in g)
    module = fold_constant(module) if constants else module
    # What will be differentiated is not the program that runs.
    return cheaper(module, [given], device=device, lower=lower if trained is None else None)


@pattern
def _biased_product(x: Any, weights: Any, bias: Any, axis: Any = wildcard()) -> Any:
    product = named("product", operator(*COLUMNS)(x, weights))
    return op.bias_add(op.reshape(product, ...) | product, bias, axis) | product


def _why_not(
    fixed: frozenset[Var],
    dtypes: tuple[str, ...],
    match: Match,
    x: Any,
    weights: Any,
    product: Any,
    axis: Any,
) -> str | None:
    """Return why a match is no product of changing rows by weights that stay, with its bias."""
    captured = match.captures
    types = (x, weights, *(b.var.type for b in match.members))
    if not all(isinstance(t, TensorType) and t.is_static and t.dtype in dtypes for t in types):
        return "it is of another dtype, or of extents that are known at run time only"
    columns = product.static_shape[-1]
    if columns % LANES or not columns:
        return "its rows do not begin at multiples of 16 bytes"
    if not _stays(captured["weights"], fixed) or _stays(captured["x"], fixed):
        return "the weights change, or nothing else does"
    if captured["bias"] is None:
        return None
    if not _stays(captured["bias"], fixed):
        return "the bias changes"
    shapes = [tensor_of(b.var).static_shape for b in match.members]
    same = axis in (-1, len(shapes[-1]) - 1) and {shape[-1:] for shape in shapes} == {(columns,)}
    return None if same else "the bias is not one of its columns"


def _stays(atom: object, fixed: frozenset[Var]) -> bool:
    return isinstance(atom, Constant) or atom in fixed


def _groups(
    module: Module, fixed: frozenset[Var], dtypes: tuple[str, ...]
) -> Iterator[list[Match]]:
    """Yield the products by ``fixed`` weights that can be joined, in program order."""
    main = module.main
    place = {b: i for i, b in enumerate(main.body.bindings)}
    facts = Facts(main, module)
    check = partial(_why_not, fixed, dtypes)
    found = match(replace(_biased_product, check=check), main, facts=facts)
    products = [one for one in found if one.root in place]
    if len(products) < 2:
        return
    buffers = facts.buffers
    written = {owning_tuple(buffer) for buffer in buffers.written}
    groups: dict[tuple[Any, ...], list[Match]] = {}
    for one in sorted(products, key=lambda one: place[one.members[0]]):
        read = {owning_tuple(buffers.of(v)) for v in (one.captures["x"], one.root.var)}
        if written.isdisjoint(read):
            groups.setdefault(_key(one), []).append(one)
    for group in groups.values():
        for begin in range(0, len(group), MOST):
            yield group[begin : begin + MOST]


def _key(one: Match) -> tuple[Any, ...]:
    """Return what products have in common that are joined."""
    types = tuple(b.var.type for b in one.members)
    return (
        called_op(one.members[0].value),
        one.captures["x"],
        one.types["weights"],
        (one.types["bias"]),
        types,
    )


def _gains(group: list[Match], processors: int) -> bool:
    """Whether one product takes fewer turns of the device than several."""
    rows, columns = tensor_of(group[0].members[0].var).static_shape
    apart = len(group) * _turns(rows, columns, processors)
    joined = _turns(rows, len(group) * columns, processors)
    return len(group) > 1 and joined <= GAIN * apart


def _turns(rows: int, columns: int, processors: int) -> int:
    return ceil(ceil(rows / TILE) * ceil(columns / TILE) / processors)


def _joined(main: Function, groups: list[list[Match]]) -> list[Binding]:
    """Put one product in the place of the first of each group."""
    first = {group[0].members[0]: group for group in groups}
    gone = {m for group in groups for one in group for m in one.members}
    definitions = {b.var: b for b in main.body.bindings}
    made: list[Binding] = []
    there: set[Expr] = set()

    def add(binding: Binding) -> None:
        if binding.var not in there:
            there.add(binding.var)
            made.append(binding)

    for binding in main.body.bindings:
        for earlier in _needed(first.get(binding, ()), definitions, there):
            add(earlier)
        if binding in first:
            for new in _joined_product(first[binding]):
                add(new)
        elif binding not in gone:
            add(binding)
    return made


def _needed(group: Any, definitions: dict[Var, Binding], there: set[Expr]) -> list[Binding]:
    """Return what computes the weights and biases of a group and is not there yet, in order."""
    pending = [one.captures[name] for one in group for name in ("weights", "bias")]
    found: list[Binding] = []
    while pending:
        binding = definitions.get(pending.pop())
        if binding is not None and binding.var not in there:
            found.append(binding)
            pending += operands(binding.value)
    return list(dict.fromkeys(reversed(found)))


def _joined_product(group: list[Match]) -> Iterator[Binding]:
    """Yield one product for a group, and its parts under the names of the results."""
    model, count = group[0], len(group)
    span, called = model.members[0].span, called_op(model.members[0].value)
    assert called is not None
    weights = _side_by_side("weights", [one.captures["weights"] for one in group], COLUMNS[called])
    yield weights
    y = Var("joined", _wider(model.members[0].var, count))
    yield Binding(y, new_call(called, model.captures["x"], weights.var), span)
    for member in model.members[1:]:
        before, y = y, Var("joined", _wider(member.var, count))
        if member is model.root:
            biases = _side_by_side("biases", [one.captures["bias"] for one in group], 0)
            yield biases
            call = new_call(op.bias_add, before, biases.var, model.captures["axis"])
        else:
            call = new_call(op.reshape, before, y.type.static_shape)  # type: ignore[union-attr]
        yield Binding(y, call, member.span)
    parts = Var("parts", type_of(Tuple(tuple(one.root.var for one in group))))
    yield Binding(parts, new_call(op.split, y, count, -1), span)
    for i, one in enumerate(group):
        yield Binding(one.root.var, TupleGetItem(parts, i), one.root.span)


def _side_by_side(name: str, atoms: list[Expr], axis: int) -> Binding:
    type_ = tensor_of(atoms[0])
    shape = list(type_.static_shape)
    shape[axis] *= len(atoms)
    call = new_call(op.concat, Tuple(tuple(atoms)), axis)
    return Binding(Var(name, type_.with_shape(tuple(shape))), call)


def _wider(var: Var, count: int) -> TensorType:
    """Return the type of a result with so many times the columns."""
    type_ = tensor_of(var)
    *lead, columns = type_.static_shape
    return type_.with_shape((*lead, columns * count))
