"""Tensor parallelism: a program for one device becomes one in which each rank has parts of its
parameters. `Sharder` writes it anew, binding by binding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from meta.base.device import CPU, Device
from meta.base.dtype import is_float
from meta.base.errors import DistributedError
from meta.dialect.core.ir_calls import named_args, written_atoms
from meta.ir import (
    Binding,
    Block,
    Call,
    Expr,
    Function,
    GlobalVar,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    type_of,
)
from meta.ir.visit import substitute, uses
from meta.op.core import Op
from meta.op.core.tracing import Trace
from meta.passes.autodiff.custom_rule import custom_rule
from meta.passes.call_graph import reached_from, recursive, remove_unreachable
from meta.passes.deduplicate import eliminate_common_subexpressions
from meta.passes.distributed.sharding import (
    InsertedCollective,
    Ranks,
    ShardAxis,
    ShardedValue,
    Site,
    leaves,
    map_shards,
)
from meta.passes.distributed.sharding_rules import sharded_call
from meta.runtime.placement import Joined


class Sharder:
    """Writes functions of a module for some ranks; see `block`.

    Attributes
    ----------
    trace: the function under construction. known: by atom of the program a `ShardedValue`, or a
    nested tuple of them.
    """

    def __init__(self, module: Module, trace: Trace, ranks: Ranks) -> None:
        self.module, self.trace, self.ranks, self._main = module, trace, ranks, trace
        self.known: dict[Expr, Any] = {}
        self._recursive = recursive(module)
        self._written: dict[Any, tuple[Function, GlobalVar, Any, list[InsertedCollective]]] = {}
        trace.site = lambda: ranks.span
        for name in module.functions:
            if name != "main":
                trace.global_names.unique(name)

    def block(self, block: Block) -> Any:
        """Write the bindings; return what the result is."""
        for binding in block.bindings:
            self.ranks.span = binding.span
            self.known[binding.var] = self._value(binding)
        return self._atom(block.result)

    def _atom(self, atom: Any) -> Any:
        """Return what an atom is; a literal as it is."""
        if isinstance(atom, Tuple):
            return tuple(self._atom(f) for f in atom.fields)
        if not isinstance(atom, Expr):
            return atom
        if atom not in self.known:  # a constant, or a function
            self.known[atom] = ShardedValue(self.trace.symbols(atom), type_of(atom))
        return self.known[atom]

    def _value(self, binding: Binding) -> Any:
        value = binding.value
        if value in self.known or isinstance(value, Tuple):
            return self._atom(value)
        if isinstance(value, TupleGetItem) and isinstance(owner := self._atom(value.value), tuple):
            return owner[value.index]
        if isinstance(value, Call) and isinstance(value.callee, Op):
            return self._call(binding, value.callee, value)
        if isinstance(value, Call) and isinstance(value.callee, GlobalVar):
            name = value.callee.name
            args = [self._atom(a) for a in value.args]
            whole = name in self._recursive or custom_rule(self.module, name) is not None
            if not whole and any(p.cut for a in args for p in leaves(a)):
                return self._function(name, args)
        return self._with_whole(binding)

    def _call(self, binding: Binding, called: Op, call: Call) -> Any:
        args = {n: self._atom(a) for n, a in named_args(called, call).items()}
        site = Site(self.ranks, called, args, binding.var.type)
        over = self.ranks.over
        if called.collective and args.get("over") == over:
            raise DistributedError(
                f"the model calls {called.name} along {over!r} itself",
                expected="a model that is written for one device",
                span=self.ranks.span,
            )
        written = [p for atom in written_atoms(called, call) for p in leaves(self._atom(atom))]
        cut = any(p.cut is not None for p in site.parts())
        found = sharded_call(site) if cut else None
        own = self.trace is self._main  # behind a call, what was made of an argument is not known
        if any(p.cut is not None for p in written) and (found is None or not own):
            raise DistributedError(
                f"{called.name} writes to an array of which each rank has a part",
                expected="an array that is whole on all ranks, or an operator whose axes say that "
                "what it writes is cut alike",
                found=", ".join(str(p.type) for p in written if p.cut is not None),
                span=self.ranks.span,
            )
        if found is None:
            given = (self._whole(a, called.name) for a in args.values())
            atoms = [self._argument(a) for a in given]
            found = self._emitted(Call(called, tuple(atoms)), binding, site.parts())
        for part in written:
            part.was_written()
        return found

    def _argument(self, value: Any) -> Any:
        """Return an argument as a program has it."""
        if isinstance(value, ShardedValue) or (isinstance(value, tuple) and any(leaves(value))):
            return self.trace.atom(map_shards(value, lambda p: p.value))
        return value

    def _whole(self, value: Any, name: str) -> Any:
        """Return an argument of which all ranks have the whole."""
        return map_shards(
            value, lambda p: self.ranks.whole(p, f"{name} has no rule for such parts")
        )

    def _with_whole(self, binding: Binding) -> Any:
        """Evaluate what is no call of an operator with whole values."""
        value, name = binding.value, type(binding.value).__name__.lower()
        if isinstance(value, Call) and isinstance(value.callee, GlobalVar):
            name = value.callee.name
        used = {a: self._whole(self.known[a], name) for a in uses(value) if a in self.known}
        self._take_along(value)
        atoms = {a: self._argument(v) for a, v in used.items()}
        new = substitute(Block((binding,), binding.var), atoms).bindings[0].value
        return self._emitted(new, binding, [p for v in used.values() for p in leaves(v)])

    def _emitted(self, value: Expr, binding: Binding, of: Iterable[ShardedValue]) -> Any:
        """Append a binding of whole values; return what it is."""
        type_ = binding.var.type
        assert type_ is not None
        return _replicated(self.trace.emit(value, type_), type_, any(p.grad for p in of))

    def _take_along(self, value: Expr) -> None:
        """Keep the functions that a value refers to, as they are."""
        names = list(_names(value))
        for name in (*names, *reached_from(self.module, *names)):
            self.trace.functions[name] = self.module.functions[name]

    def _function(self, name: str, args: list[Any]) -> Any:
        """Call a function that is written for these parts, at its first call."""
        key = name, tuple((p.cut, p.grad) for a in args for p in leaves(a))
        if key not in self._written:
            self._written[key] = self._write(name, args)
        function, callee, result, exchanges = self._written[key]
        self.ranks.exchanges += exchanges
        assert function.result_type is not None
        call = Call(callee, tuple(self._argument(a) for a in args))
        made = self.trace.emit(call, function.result_type)
        return _with_values(result, made)

    def _write(
        self, name: str, args: list[Any]
    ) -> tuple[Function, GlobalVar, Any, list[InsertedCollective]]:
        function, outer = self.module.functions[name], self.trace
        before = self.known, self.ranks.exchanges, self.ranks.span
        inner = Trace(outer.device)
        inner.functions, inner.types = outer.functions, outer.types
        inner.global_names, inner.site = outer.global_names, outer.site
        self.trace, self.known, self.ranks.exchanges = inner, {}, []
        self.ranks.begin()
        variables = []
        for var, arg in zip(function.params, args, strict=True):
            new, symbols = inner.parameter(_local_type(arg), var.name)
            variables.append(new)
            self.known[var] = _with_values(arg, symbols)
        result = inner.run(self.block, function.body)
        body = inner.finish(map_shards(result, lambda p: p.value))
        exchanges = self.ranks.exchanges
        self.trace = outer
        self.known, self.ranks.exchanges, self.ranks.span = before
        self.ranks.begin()
        made = Function(tuple(variables), body, type_of(body.result), dict(function.attrs))
        unique = inner.global_names.unique(name)
        inner.functions[unique] = made
        return made, GlobalVar(unique, made.type), result, exchanges


def _names(value: Expr) -> Iterator[str]:
    """Yield the functions that a value refers to."""
    return (a.name for a in uses(value) if isinstance(a, GlobalVar))


def _replicated(made: Any, type_: Type, grad: bool) -> Any:
    """Return values that all ranks have as parts."""
    if isinstance(type_, TupleType):
        return tuple(_replicated(m, t, grad) for m, t in zip(made, type_.fields, strict=True))
    floats = not isinstance(type_, TensorType) or is_float(type_.dtype)
    return ShardedValue(made, type_, None, grad and floats)


def _with_values(like: Any, made: Any) -> Any:
    """Return other values of the same types, cuts and gradients."""
    if isinstance(like, tuple):
        return tuple(map(_with_values, like, made))
    return ShardedValue(made, like.type, like.cut, like.grad)


def _local_type(arg: Any) -> Type:
    """Return the type of what a rank has."""
    if isinstance(arg, tuple):
        return TupleType(tuple(map(_local_type, arg)))
    found: Type = arg.value.type
    return found


def tensor_parallel(
    module: Module,
    *,
    over: str,
    size: int,
    cuts: Mapping[int, tuple[int, Joined]],
    device: Device = CPU,
    exchanges: list[InsertedCollective] | None = None,
    inference: bool = False,
) -> Module:
    """Compute with the parts of parameters that a rank has, and exchange what must be whole.

    over, size: the axis of the mesh, and its ranks. cuts: by the number of a parameter of main that
    is cut, its axis, and how many arrays lie one after the other along it, of which each is cut.
    The others are the same on all ranks, and so are the results. exchanges: what was put in is
    added to it. inference: there are no gradients, and results that are cut along their first axis
    stay so. All ranks draw the same random numbers, but for those of parts. Raises
    DistributedError for a program that writes to what is cut, or exchanges along the axis itself.

    >>> from meta.ir import parse
    >>> print(tensor_parallel(parse('''
    ... func @main(%x: float32[2, 4], %a: float32[8, 4], %b: float32[4, 8]) -> float32[2, 4] {
    ...   %h: float32[2, 8] = dense(%x, %a)
    ...   %r: float32[2, 8] = relu(%h)
    ...   %y: float32[2, 4] = dense(%r, %b)
    ...   return %y
    ... }'''), over="tp", size=2, cuts={1: (0, 1), 2: (1, 1)}))
    func @main(%x: float32[2, 4], %a: float32[4, 4], %b: float32[4, 4]) -> float32[2, 4] {
      %0: float32[2, 4] = copy_to(%x, over="tp", size=2)
      %1: float32[2, 4] = dense(%0, %a)
      %2: float32[2, 4] = relu(%1)
      %3: float32[2, 4] = dense(%2, %b)
      %4: float32[2, 4] = reduce_from(%3, over="tp", size=2)
      return %4
    }
    """
    # What several layers are given is one value: its gradients are summed over the ranks once.
    module = eliminate_common_subexpressions(module)
    trace, ranks = Trace(device), Ranks(over, size, str(device))
    sharder = Sharder(module, trace, ranks)
    params = []
    for number, param in enumerate(module.main.params):
        type_ = whole = param.type
        cut = ShardAxis(*cuts[number]) if number in cuts else None
        if cut is not None:
            assert isinstance(whole, TensorType)
            type_ = whole.with_shape(cut.local(whole.shape, size))
        assert type_ is not None
        var, value = trace.parameter(type_, param.name)
        params.append(var)
        floats = isinstance(whole, TensorType) and is_float(whole.dtype) and not inference
        tuples = isinstance(value, tuple)
        sharder.known[param] = value if tuples else ShardedValue(value, whole, cut, floats)
    result = trace.run(sharder.block, module.main.body)

    def returned(part: ShardedValue) -> Any:
        stays = inference and part.cut == ShardAxis(0)
        return part.value if stays else ranks.whole(part, "it is a result").value

    wholes = trace.run(map_shards, result, returned)
    body = trace.finish(wholes)
    main = Function(tuple(params), body, type_of(body.result), dict(module.main.attrs))
    if exchanges is not None:
        exchanges += ranks.exchanges
    return remove_unreachable(Module({"main": main, **trace.functions}, module.types))
