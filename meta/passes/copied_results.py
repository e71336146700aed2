"""Which results of a program NumPy and PyTorch would have as views, of what its caller holds."""

from __future__ import annotations

from meta.dialect.core.ir_calls import base_op, called_op, flat_atoms, view_source
from meta.ir import Call, Constant, Expr, Module, Tuple, TupleType, bindings, type_of
from meta.passes.alias_analysis import AliasSets, AliasSummaries, owning_tuple


def copied_results(module: Module) -> tuple[int, ...]:
    """Return, by number, the results of main that are copies where NumPy and PyTorch have views
    (`Op.view_elsewhere`) of an argument, of a constant, or of what another result is of, too.

    A copy of what only the program knows is like any array that it makes: nobody sees the base.
    """
    main = module.main
    values = (b.value for f in module.functions.values() for b in bindings(f))
    if not any((op := called_op(v)) is not None and op.view_elsewhere for v in values):
        return ()
    result = main.body.result
    leaves = result.fields if isinstance(result, Tuple) else (result,)
    type_ = type_of(result)
    if not isinstance(result, Tuple) and isinstance(type_, TupleType):  # all of one call
        leaves = (result,) * len(type_.fields)
    own = AliasSets(main, AliasSummaries(module))
    elsewhere = AliasSets(main, AliasSummaries(module, _view_elsewhere), _view_elsewhere)
    bases = [elsewhere.sharing({leaf}) for leaf in leaves]
    held = set(main.params)
    return tuple(
        i
        for i, (leaf, found) in enumerate(zip(leaves, bases, strict=True))
        if found != own.sharing({leaf})
        and any(
            owning_tuple(b) in held
            or isinstance(owning_tuple(b), Constant)
            or any(_overlap(b, o) for other in bases if other is not bases[i] for o in other)
            for b in found
        )
    )


def _view_elsewhere(call: Call) -> Expr | None:
    """Return what the result of a call would be a view of."""
    op = base_op(call.callee)
    if op is None or not op.view_elsewhere:
        return view_source(call)
    viewed: Expr = flat_atoms(call.args[0])[0]
    return viewed


def _overlap(a: Expr, b: Expr) -> bool:
    """Whether one is the other, or a field of it."""
    return a is b or owning_tuple(a) is b or a is owning_tuple(b)
