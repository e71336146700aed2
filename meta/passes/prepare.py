"""Run-invariant code: what is computed of constants and of arrays of a model that the program does
not write is the same in every run (`run_invariant`). `prepare` moves it into a function of its own.

Main's attribute `ARRAYS` says which parameters are such arrays. A pass that would rather compute
more, if only once, asks `run_invariant` what is one.
"""

from __future__ import annotations

from dataclasses import replace

from meta.base.device import Device
from meta.dialect.core import only
from meta.dialect.core.ir_calls import is_pure, leaf_types, op_call
from meta.ir import (
    Binding,
    Block,
    Constant,
    Expr,
    Function,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    Type,
    Var,
    operands,
    type_bytes,
    type_of,
    with_fresh_vars,
)
from meta.ir.visit import uses
from meta.op.core import Op
from meta.passes.alias_analysis import AliasSets, AliasSummaries, owning_tuple
from meta.passes.call_graph import PREPARED_BY
from meta.passes.dispatch import dispatch
from meta.passes.fold_constant import MAX_GROWTH_BYTES
from meta.passes.outline import unused_name

ARRAYS = "arrays"
"""Attribute of main: how many of its last parameters are arrays that others write rarely, and only
between runs: those of a model in infer mode.
"""


def run_invariant(module: Module) -> frozenset[Var]:
    """Return the variables of main whose values are the same in every run: the arrays that it does
    not write, and what its outermost block computes of them.

    What is computed of constants alone is not among them: `fold_constant` has computed what pays.
    """
    count = module.main.attrs.get(ARRAYS, 0) if "main" in module.functions else 0
    if not count:
        return frozenset()
    main = module.main
    buffers = AliasSets(main, AliasSummaries(module))
    written = {owning_tuple(buffer) for buffer in buffers.written}
    found = {p for p in main.params[-count:] if p not in written and _is_static(p.type)}
    for binding in main.body.bindings:
        if _is_computed_of(found, binding) and owning_tuple(buffers.of(binding.var)) not in written:
            found.add(binding.var)
    return frozenset(found)


def _is_computed_of(known: set[Var], binding: Binding) -> bool:
    """Whether a binding is computed of known variables, at least one, and constants."""
    value = binding.value
    if op_call(value) is None and not isinstance(value, Tuple | TupleGetItem):
        return False
    if not is_pure(binding):
        return False
    given = {a for a in operands(value) if not isinstance(a, Constant | Op)}
    return bool(given) and given <= known and _is_static(binding.var.type)


def _is_static(type_: Type | None) -> bool:
    if type_ is None:
        return False
    return all(isinstance(t, TensorType) and t.is_static for t in leaf_types(type_))


def prepare(module: Module, *, device: Device) -> Module:
    """Move what main computes of a model's arrays alone to a function that runs once.

    Weights cast to half precision, transposed, or folded with the statistics of a batch
    normalisation are the same in every call of a model in infer mode. Main gets them as parameters;
    the executable computes them before the first call, and again when an array was written or
    exchanged. That the last n parameters are such arrays is said by main's attribute ``arrays=n``,
    which `meta.vm.compile` sets.

    Views stay with those who need them, and so does what takes more memory than what it is made of,
    such as a wider copy. The function runs on `torch`, so that nothing is compiled for it.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> print(meta.passes.prepare(parse('''
    ... func @main(%x: float16[2, 3], %w: float32[3, 4]) -> float16[2, 4] attrs(arrays=1) {
    ...   %half: float16[3, 4] = astype(%w, "float16")
    ...   %y: float16[2, 4] = matmul(%x, %half)
    ...   return %y
    ... }'''), device=CPU))
    func @main(%x: float16[2, 3], %w: float32[3, 4], %half: float16[3, 4]) -> float16[2, 4] \
attrs(arrays=1, prepared_by="prepare") {
      %y: float16[2, 4] = matmul(%x, %half)
      return %y
    }
    <BLANKLINE>
    func @prepare(%w: float32[3, 4]) -> (float16[3, 4],) {
      %half: float16[3, 4] = torch.astype(%w, dtype="float16")
      return (%half,)
    }
    """
    fixed = run_invariant(module)
    bindings = [b for b in module.main.body.bindings if b.var in fixed] if fixed else []
    if not bindings:
        return module
    main = module.main
    results, moved, left = _split_main(main, bindings, AliasSets(main, AliasSummaries(module)))
    if not results:
        return module
    count = main.attrs[ARRAYS]
    made = Function(
        main.params[-count:],
        Block(tuple(moved), Tuple(tuple(results))),
        type_of(Tuple(tuple(results))),
    )
    with only("torch"):
        made = dispatch(module.with_functions({"main": with_fresh_vars(made)}), device=device).main
    name = unused_name("prepare", module.functions)
    gone = {b.var for b in bindings} - left
    rest = tuple(b for b in main.body.bindings if b.var not in gone)
    main = replace(
        main,
        params=(*main.params, *results),
        body=Block(rest, main.body.result),
        attrs={**main.attrs, PREPARED_BY: name},
    )
    return module.with_functions({**module.functions, "main": main, name: made})


def _split_main(
    main: Function, bindings: list[Binding], buffers: AliasSets
) -> tuple[list[Var], list[Binding], set[Var]]:
    """Return what main is given, what computes that, and what main goes on to compute itself."""
    own = {b.var for b in bindings}
    needed: set[Expr] = set(operands(main.body.result))
    for binding in main.body.bindings:
        if binding.var not in own:
            needed.update(uses(binding.value))
    roots = _roots(main, bindings)
    results: list[Var] = []
    moved: list[Binding] = []
    left: set[Var] = set()
    inside: set[Expr] = set()
    for binding in reversed(bindings):
        var = binding.var
        if var in needed and _pays(var, roots[var], buffers):
            results.append(var)
            inside.add(var)
        elif var in needed:
            left.add(var)
            needed.update(operands(binding.value))
        if var in inside:
            moved.append(binding)
            inside.update(operands(binding.value))
    return results[::-1], moved[::-1], left


def _roots(main: Function, bindings: list[Binding]) -> dict[Expr, frozenset[Var]]:
    """Return the arrays that each variable is computed of."""
    found: dict[Expr, frozenset[Var]] = {p: frozenset({p}) for p in main.params}
    nothing: frozenset[Var] = frozenset()
    for binding in bindings:
        of = (found.get(atom, nothing) for atom in operands(binding.value))
        found[binding.var] = nothing.union(*of)
    return found


def _pays(var: Var, roots: frozenset[Var], buffers: AliasSets) -> bool:
    """Whether a value is a tensor, no view, and not much larger than what it is made of."""
    if not isinstance(var.type, TensorType) or buffers.of(var) is not var:
        return False
    sources = sum(type_bytes(root.type) for root in roots)
    return type_bytes(var.type) <= sources + MAX_GROWTH_BYTES
