"""Less to send: the rows of an embedding's gradient are gathered, not the table reduced; and what
is cast to a narrower dtype is cast before it is gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from meta import op
from meta.base.dtype import bits, is_float
from meta.dialect.core.ir_calls import (
    OpCall,
    full_view_source,
    new_call,
    op_call,
    tensor_of,
    tensor_type,
)
from meta.ir import (
    Binding,
    Block,
    Call,
    DefUse,
    Expr,
    Module,
    TensorType,
    Var,
    operands,
    substitute,
)
from meta.op.core.tracing import Trace
from meta.passes.alias_analysis import AliasSets, AliasSummaries, Definitions
from meta.passes.rewrite import bound_to, with_main

REDUCTIONS = ("sum", "mean")


def gather_rows(module: Module, *, narrow: bool = True) -> Module:
    """Gather what ranks add to the rows of a table, where they would reduce the whole of it.

    The gradient of an embedding has as many rows as the batch has tokens, `embedding_dx` puts them
    into a table of zeros, and the table is what `all_reduce` would exchange, as the last of a step:
    its gradient comes last. Instead all ranks gather the rows and their indices and each adds up
    those of all, in the same order. It takes less as long as the rows of all ranks together are no
    more than those of the table; else, and along a mesh of one, nothing changes.

    Where the table is used otherwise, too, as that of GPT-2 by the product at its end, the other
    part of its gradient is reduced by itself, in the dtype that it has, as soon as it is there.

    >>> from meta.ir import parse
    >>> print(meta.passes.gather_rows(parse('''
    ... func @main(%dy: float32[4, 8], %i: int64[4], %g: float32[512, 8]) -> float32[512, 8] {
    ...   %t: float32[512, 8] = embedding_dx(%dy, %i, num_weight=(512, 8))
    ...   %x: float32[512, 8] = add(%g, %t)
    ...   %y: float32[512, 8] = all_reduce(%x, over="dp", size=2, reduction="sum")
    ...   return %y
    ... }''')))
    func @main(%dy: float32[4, 8], %i: int64[4], %g: float32[512, 8]) -> float32[512, 8] {
      %0: int64[8] = all_gather(%i, over="dp", size=2)
      %1: float32[8, 8] = all_gather(%dy, over="dp", size=2)
      %2: float32[512, 8] = embedding_dx(%1, %0, num_weight=(512, 8))
      %3: float32[512, 8] = all_reduce(%g, over="dp", size=2)
      %y: float32[512, 8] = add(%3, %2)
      return %y
    }
    """
    main = module.main
    if not any(_reduction(b) for b in main.body.bindings):
        return module
    known, uses = Definitions(main, AliasSets(main, AliasSummaries(module))), DefUse(main)
    made: list[Binding] = []
    gone: set[Var] = set()
    for binding in main.body.bindings:
        found = _find(binding, known, uses, narrow)
        known.add(binding)
        if found is None:
            made.append(binding)
            continue
        made += _emit(binding, found)
        gone |= found.members
    return with_main(module, [b for b in made if b.var not in gone])


@dataclass(frozen=True, slots=True)
class _ReducedSum:
    """A reduced sum: the calls of `embedding_dx` in it, and what else, by atom; ``members`` are the
    variables between. dtype: in which it is reduced, of which the other atoms are or become.
    """

    tables: tuple[OpCall, ...]
    rest: tuple[Expr, ...]
    over: str
    size: int
    reduction: str
    dtype: str
    cast: bool
    members: frozenset[Var]

    def emit(self, trace: Trace) -> Any:
        """Return the reduced sum, by calls of operators."""
        total: Any = None
        for table in self.tables:
            dy, indices = map(trace.symbols, table.args[:2])
            dy = _as(dy, self.dtype)
            dy = dy / self.size if self.reduction == "mean" else dy
            places = op.all_gather(indices, self.over, self.size)  # they are there first
            rows = op.all_gather(dy, self.over, self.size)
            one = op.embedding_dx(rows, places, table.args[2])
            total = one if total is None else op.add(total, one)
        for atom in self.rest:
            x = trace.symbols(atom)
            x = _as(x, self.dtype) if self.cast else x
            mean = op.all_reduce(x, self.over, self.size, self.reduction)
            total = op.add(_as(mean, self.dtype), total)
        return total


def _emit(binding: Binding, found: _ReducedSum) -> list[Binding]:
    """Return the bindings that take the place of a sum; its variable stays."""
    trace = Trace()
    trace.site = lambda: binding.span
    return bound_to(binding.var, trace.finish(trace.run(found.emit, trace)))


def _as(x: Any, dtype: str) -> Any:
    return x if x.dtype == dtype else op.astype(x, dtype)


def _reduction(binding: Binding) -> OpCall | None:
    """Return the call that a binding is, if it reduces over several ranks."""
    call = op_call(binding.value)
    if call is None or call.op is not op.all_reduce:
        return None
    _, _, size, reduction = call.args
    return call if size > 1 and reduction in REDUCTIONS else None


def _find(binding: Binding, known: Definitions, uses: DefUse, narrow: bool) -> _ReducedSum | None:
    """Return the sum that a binding reduces, if tables are in it of which that pays."""
    call = _reduction(binding)
    whole = None if call is None else tensor_type(call.args[0])
    if call is None or whole is None or not is_float(whole.dtype):
        return None
    atom, over, size, reduction = call.args
    tables: list[OpCall] = []
    rest: list[Expr] = []
    members: set[Var] = set()
    cast = False
    pending = [atom]
    while pending:
        one = pending.pop(0)
        made = op_call(known.get(one))
        if made is None or not isinstance(one, Var) or len(uses.users(one)) != 1:
            rest.append(one)
            continue
        if made.op is op.astype and one is atom:
            cast = True  # whoever reduces chose the dtype
            pending.insert(0, made.args[0])
        elif made.op is op.add and all(_is_like(a, whole) for a in made.args[:2]):
            pending[:0] = made.args[:2]
        elif made.op is op.embedding_dx and _pays(made, size):
            tables.append(made)
        elif made.op is op.astype and narrow and not cast and _is_float(made.args[0]):
            rest.append(made.args[0])
        else:
            rest.append(one)
            continue
        members.add(one)
    if not tables:
        return None
    return _ReducedSum(
        *(tuple(tables), tuple(rest), over, size, reduction, whole.dtype, cast),
        frozenset(members),
    )


def _is_float(atom: Expr) -> bool:
    type_ = tensor_type(atom)
    return type_ is not None and is_float(type_.dtype)


def _is_like(atom: Any, whole: TensorType) -> bool:
    """Whether an atom is a tensor of the same shape, of numbers that are no integers."""
    type_ = tensor_type(atom)
    return type_ is not None and type_.shape == whole.shape and is_float(type_.dtype)


def _pays(table: OpCall, size: int) -> bool:
    """Whether the rows of all ranks are no more than those of the table."""
    indices, whole = tensor_of(table.args[1]), table.args[2]
    rows = whole if isinstance(whole, int) else whole[0]
    if not (indices.is_static and indices.ndim and isinstance(rows, int)):
        return False
    return 0 < size * prod(indices.static_shape) <= rows


def narrow_gathers(module: Module) -> Module:
    """Gather values in the dtype that all their users cast them to, if it is a narrower one.

    Under `meta.amp.autocast` around a training step with ``zero=3``, parameters are gathered in
    float32 and cast to half precision where a product uses them. Cast by the ranks that have them
    they are the same numbers, and half as many bytes are exchanged and in memory. Views and
    permutations between the two become narrow, too. What is also used as it is stays.

    >>> from meta.ir import parse
    >>> print(meta.passes.narrow_gathers(parse('''
    ... func @main(%x: bfloat16[2, 3], %w: float32[6]) -> bfloat16[2, 4] {
    ...   %a: float32[12] = all_gather(%w, over="dp", size=2)
    ...   %b: float32[3, 4] = reshape(%a, shape=(3, 4))
    ...   %c: bfloat16[3, 4] = astype(%b, dtype="bfloat16")
    ...   %y: bfloat16[2, 4] = matmul(%x, %c)
    ...   return %y
    ... }''')))
    func @main(%x: bfloat16[2, 3], %w: float32[6]) -> bfloat16[2, 4] {
      %narrow: bfloat16[6] = astype(%w, dtype="bfloat16")
      %a: bfloat16[12] = all_gather(%narrow, over="dp", size=2)
      %b: bfloat16[3, 4] = reshape(%a, shape=(3, 4))
      %y: bfloat16[2, 4] = matmul(%x, %b)
      return %y
    }
    """
    main = module.main
    if not any(_is_gather(binding) for binding in main.body.bindings):
        return module
    uses, outermost = DefUse(main), {binding.var for binding in main.body.bindings}
    made: list[Binding] = []
    dtypes: dict[Expr, str] = {}
    stands_for: dict[Expr, Expr] = {}

    def narrowed(binding: Binding, call: Call, dtype: str) -> None:
        var = Var(binding.var.name, tensor_of(binding.var).with_dtype(dtype))
        made.append(Binding(var, call, binding.span))
        dtypes[binding.var], stands_for[binding.var] = dtype, var

    for binding in main.body.bindings:
        call = binding.value
        source = _source(binding)
        if source is not None and source in dtypes:
            assert isinstance(call, Call)
            if call.callee is op.astype:
                stands_for[binding.var] = stands_for[source]
            else:
                narrowed(binding, call, dtypes[source])
            continue
        dtype = _narrower_dtype(binding.var, uses, outermost) if _is_gather(binding) else None
        if dtype is None:
            made.append(binding)
            continue
        assert isinstance(call, Call)
        whole, *options = call.args
        narrow = Var("narrow", tensor_of(whole).with_dtype(dtype))
        made.append(Binding(narrow, new_call(op.astype, whole, dtype), binding.span))
        narrowed(binding, Call(call.callee, (narrow, *options)), dtype)
    body = substitute(Block(tuple(made), main.body.result), stands_for)
    return module.with_functions({**module.functions, "main": replace(main, body=body)})


def _is_gather(binding: Binding) -> bool:
    """Whether a binding gathers floating point numbers of several ranks."""
    call = op_call(binding.value)
    if call is None or call.op is not op.all_gather or call.args[2] == 1:
        return False
    type_ = tensor_type(call.args[0])
    return type_ is not None and is_float(type_.dtype)


def _source(binding: Binding) -> Var | None:
    """Return what a binding is a cast, a view or a permutation of, and of nothing else."""
    call = binding.value
    if not isinstance(call, Call) or op_call(call) is None:
        return None
    copies = call.callee in (op.astype, op.permute_dims, op.strided_slice)
    source = call.args[0] if copies else full_view_source(call)
    atoms = [atom for atom in operands(call) if isinstance(atom, Var)]
    return source if isinstance(source, Var) and atoms == [source] else None


def _narrower_dtype(var: Var, uses: DefUse, outermost: set[Var]) -> str | None:
    """Return the one narrower dtype to which all users cast a variable; None if there is none."""
    found: set[str] = set()
    pending = [var]
    while pending:
        one = pending.pop()
        for user in uses.users(one):
            known = isinstance(user, Binding) and user.var in outermost and _source(user) is one
            if not known:
                return None
            assert isinstance(user, Binding) and isinstance(user.value, Call)
            type_ = user.var.type
            if not isinstance(type_, TensorType):
                return None
            if user.value.callee is op.astype:
                found.add(type_.dtype)
            else:
                pending.append(user.var)
    (dtype,) = found if len(found) == 1 else ("",)
    narrows = bool(dtype) and is_float(dtype) and bits(dtype) < bits(tensor_of(var).dtype)
    return dtype if narrows else None
