"""Programs of a symbolic number of rows as programs of a few rows each.

Generated kernels are made for extents that are numbers. Where a program computes each row of its
inputs apart from the others, as a network does with the examples of a batch, one for 16 rows and
one for a single row, one after the other, compute any number of them. Whether it does is what
tensor parallelism asks as well: with parts of the rows on two ranks, there is nothing to exchange.
"""

from __future__ import annotations

from collections.abc import Callable

from meta import op
from meta.base.device import Device
from meta.base.errors import DistributedError
from meta.dialect.core.ir_calls import called_op, named_args
from meta.ir import (
    Binding,
    Call,
    Expr,
    Module,
    SymbolicDim,
    TensorType,
    Type,
    bindings,
    structural_equal,
    type_of,
)
from meta.op.core.check import normalize_axis
from meta.passes.dead_code import dead_code
from meta.passes.distributed.sharding import InsertedCollective
from meta.passes.distributed.tensor_parallel import tensor_parallel
from meta.passes.infer_type import infer_type
from meta.passes.rewrite import rewrite_function, with_value
from meta.vm.compiler.calling_convention import DimRange
from meta.vm.compiler.specialize import with_numbers
from meta.vm.compiler.static_sizes import of_sizes

ROWS = 16
"""Rows of the larger program: so many share what is read of weights."""


def block_sizes(range_: DimRange) -> list[int]:
    """Return of how many rows each are the programs that compute any number in a range."""
    most = ROWS
    while range_.largest is not None and most > range_.largest:
        most //= 2
    return [most, 1] if most > 1 else [1]


def program_of_rows(
    module: Module, dim: str, rows: int, device: Device
) -> tuple[Module | None, list[str]]:
    """Return the traced program for so many rows; or None, and what is computed across rows.

    dim: the name of the number of rows, the first extent of the inputs that have it.
    """
    two, problems = _program_of_rank(module, dim, rows, 2, device)
    if two is None:
        return None, problems
    # What is the same, whatever the number of all rows, does not compute with it.
    three, _ = _program_of_rank(module, dim, rows, 3, device)
    if three is None or not structural_equal(two, three):
        return None, [f"computes with the number of rows, {dim}"]
    return two, []


def _program_of_rank(
    module: Module, dim: str, rows: int, ranks: int, device: Device
) -> tuple[Module | None, list[str]]:
    """Return the program of one of so many ranks, which has so many of the rows."""
    main, extents = module.main, {dim: ranks * rows}
    exchanges: list[InsertedCollective] = []
    try:
        made = tensor_parallel(
            infer_type(of_sizes(module, extents)),
            over="rows",
            size=ranks,
            cuts={i: (0, 1) for i, p in enumerate(main.params) if _has_rows(p.type, dim)},
            device=device,
            exchanges=exchanges,
            inference=True,
        )
    except DistributedError as error:  # it writes to rows
        return None, [f"{error.what}  # {error.span}"]
    made = made.with_functions({**made.functions, "main": rewrite_function(made.main, _alike())})
    if any((o := called_op(b.value)) and o.collective for b in bindings(made.main)):
        return None, [
            f"needs several rows of {dim} at once: {e.why}{f'  # {e.span}' if e.span else ''}"
            for e in exchanges
        ]
    if made.main.result_type != with_numbers(main.result_type, {dim: rows}):
        return None, [f"a result of {main.result_type} does not follow from rows of {dim}"]
    return dead_code(made), []


def _alike() -> Callable[[Binding], Binding]:
    """Return a rule that takes the part of what is repeated by repeating less."""
    repeated: dict[Expr, Call] = {}

    def rule(binding: Binding) -> Binding:
        value = binding.value
        called = called_op(value)
        if isinstance(value, Call) and called is op.broadcast_to:
            repeated[binding.var] = value
        if not isinstance(value, Call) or called is not op.scatter_to or called is None:
            return binding
        source, type_ = repeated.get(value.args[0]), binding.var.type
        if source is None or not isinstance(type_, TensorType):
            return binding
        x = type_of(source.args[0])
        axis = normalize_axis(named_args(called, value)["axis"], type_.ndim)
        own = axis - (type_.ndim - x.ndim) if isinstance(x, TensorType) else 0
        if own >= 0 and isinstance(x, TensorType) and x.shape[own] != 1:
            return binding
        return with_value(binding, Call(op.broadcast_to, (source.args[0], type_.shape)))

    return rule


def _has_rows(type_: Type | None, dim: str) -> bool:
    return isinstance(type_, TensorType) and type_.shape[:1] == (SymbolicDim(dim),)


def in_rows(type_: TensorType) -> bool:
    """Whether no extent of a type but the first is symbolic, and that is a name at most."""
    first, others = type_.shape[:1], type_.shape[1:]
    named = all(isinstance(d, int) or (isinstance(d, SymbolicDim) and d.name) for d in first)
    return named and all(isinstance(d, int) for d in others)
