"""Gathers of what is cast to a narrower dtype: cast first."""

from __future__ import annotations

from dataclasses import replace

from meta import op
from meta.base.dtype import bits, is_float
from meta.dialect.core.ir_calls import full_view_source, new_call, op_call, tensor_of, tensor_type
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


def narrow_gathers(module: Module) -> Module:
    """Gather values in the dtype that all their users cast them to, if it is a narrower one.

    Under `meta.amp.autocast` around a training step with ``zero=3``, parameters are gathered in
    float32 and cast to half precision where a product uses them. Cast by the ranks that have them
    they are the same numbers, and half as many bytes are exchanged and in memory. Views and
    permutations between the two become narrow, too. What is also used as it is stays.

    >>> from meta.ir import parse
    >>> print(narrow_gathers(parse('''
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
