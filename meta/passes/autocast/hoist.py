"""Casts that are hoisted into callers, or moved, once all are there.

`hoist` moves casts of a function's parameters to its callers, where nobody needs another dtype. The
result is the same, bit for bit. A loop is a function that calls itself: what it carries along
unchanged, its weights for one, is then cast once and not at every step.

`narrow` lets sums read what is rounded for others. The gradient of a layer's result goes to
products, in half precision, and is summed for the bias. If it is computed in float32, both are
kept, and the wide one, often the largest array of a program, is written and read for this sum
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from meta import op
from meta.dialect.core.ir_calls import new_call, tensor_of
from meta.ir import (
    Binding,
    Call,
    DefUse,
    Expr,
    Function,
    GlobalVar,
    Module,
    TensorType,
    Var,
    bindings,
    operands,
)
from meta.ir.visit import inner_blocks
from meta.op.core import Op
from meta.passes.alias_analysis import AliasSets, AliasSummaries
from meta.passes.autocast.casts import Cast, CastReason
from meta.passes.call_graph import used_as_values
from meta.passes.deduplicate import deduplicate, eliminate_common_subexpressions
from meta.passes.rewrite import rewrite_function, with_value
from meta.passes.simplify.casts import represents


def hoist(module: Module, made: dict[Expr, Cast]) -> Module:
    """Let callers cast what a function only uses cast to one dtype.

    made: the casts of the program by their variable, to which those of callers are added. Other
    casts are the user's, and stay where they are.
    """
    summaries = AliasSummaries(module)
    while True:
        found = {
            (name, i): dtype
            for name in _with_known_calls(module)
            if not (summaries[name].written or summaries[name].stores)
            for i, dtype in _hoistable_params(name, module.functions[name], made)
        }
        if not found:
            return module
        moved = eliminate_common_subexpressions(_hoist_casts(module, found, made))
        module = deduplicate(moved)  # two versions of a function may be one now


def _with_known_calls(module: Module) -> Iterator[str]:
    """Yield the functions whose calls are all known: they are not main, and no values."""
    handed_on = used_as_values(module)
    for name, function in module.functions.items():
        if name != "main" and name not in handed_on and not function.attrs:
            yield name


def _hoistable_params(
    name: str, function: Function, made: dict[Expr, Cast]
) -> Iterator[tuple[int, str]]:
    """Yield the parameters that are only cast, to one dtype, or handed on to themselves."""
    seen: dict[Var, set[str | None]] = {p: set() for p in function.params}
    results = (block.result for b in bindings(function) for block in inner_blocks(b.value))
    for result in (function.body.result, *results):
        for atom in operands(result):
            if isinstance(atom, Var) and atom in seen:
                seen[atom].add(None)
    for binding in bindings(function):
        value = binding.value
        for atom in operands(value):
            if not isinstance(atom, Var) or atom not in seen:
                continue
            if binding.var in made and isinstance(value, Call) and value.args[0] is atom:
                seen[atom].add(tensor_of(binding.var).dtype)
            elif not _passes_to_itself(name, function, value, atom):
                seen[atom].add(None)
    for i, param in enumerate(function.params):
        if len(seen[param]) == 1 and None not in seen[param]:
            yield i, next(d for d in seen[param] if d is not None)


def _passes_to_itself(name: str, function: Function, value: Expr, atom: Var) -> bool:
    """Whether a call of the function itself gives the parameter to itself, and to no other."""
    if not isinstance(value, Call) or not isinstance(value.callee, GlobalVar):
        return False
    if value.callee.name != name:
        return False
    places = [p for p, a in zip(function.params, value.args, strict=True) if a is atom]
    inside = sum(atom is a for a in operands(value))
    return places == [atom] and inside == 1


def _hoist_casts(
    module: Module, found: dict[tuple[str, int], str], made: dict[Expr, Cast]
) -> Module:
    """Return the module whose functions take cast what was found, and whose calls cast it."""
    mapping: dict[Var, Var] = {}
    signatures, summaries = dict(module.functions), AliasSummaries(module)
    for (name, i), dtype in found.items():
        param = module.functions[name].params[i]
        mapping[param] = Var(param.name, tensor_of(param).with_dtype(dtype))
        params = (mapping.get(p, p) for p in module.functions[name].params)
        signatures[name] = replace(module.functions[name], params=tuple(params))
    done = {}
    for name, function in signatures.items():
        buffers = AliasSets(module.functions[name], summaries)
        moving = _CastHoister(name, found, signatures, set(mapping.values()), made, buffers)
        done[name] = rewrite_function(function, moving.rule, mapping)
    return module.with_functions(done)


class _CastHoister:
    """Leaves out casts of parameters that come cast, and puts them in front of calls instead."""

    def __init__(
        self,
        name: str,
        found: dict[tuple[str, int], str],
        signatures: dict[str, Function],
        params: set[Var],
        made: dict[Expr, Cast],
        buffers: AliasSets,
    ) -> None:
        self.name, self.found, self.signatures = name, found, signatures
        self.params, self.made, self.buffers = params, made, buffers
        # What exact casts were made of.
        self._sources: dict[Expr, Expr] = {}

    def rule(self, binding: Binding) -> list[Binding] | Expr:
        """Return a binding, behind casts of what its call is given."""
        call, new = binding.value, list[Binding]()
        if not isinstance(call, Call):
            return [binding]
        if binding.var in self.made and isinstance(source := call.args[0], Expr):
            if source in self.params:
                return source
            kept = self.buffers.of(source) not in self.buffers.written
            if kept and represents(tensor_of(binding.var).dtype, tensor_of(source).dtype):
                self._sources[binding.var] = source
        if isinstance(call.callee, GlobalVar):
            name, args = call.callee.name, list(call.args)
            for i, argument in enumerate(args):
                dtype = self.found.get((name, i))
                if dtype is not None:
                    args[i] = self._cast(new, name, argument, dtype, binding)
            call = Call(GlobalVar(name, self.signatures[name].type), tuple(args))
        return [*new, with_value(binding, call)]

    def _cast(
        self, new: list[Binding], callee: str, atom: Expr, dtype: str, binding: Binding
    ) -> Expr:
        atom = self._sources.get(atom, atom)
        type_ = tensor_of(atom)
        if type_.dtype == dtype:
            return atom
        var, name = Var("", type_.with_dtype(dtype)), atom.name if isinstance(atom, Var) else ""
        reason = f"all that @{callee} does with it is done in {dtype}"
        why = CastReason(f"an argument of @{callee}", reason, None, binding.span)
        self.made[var] = Cast(self.name, name, type_, dtype, [why])
        new.append(Binding(var, new_call(op.astype, atom, dtype), binding.span))
        return var


NARROW_REASON = "the sum is of the numbers as they are rounded for products"


def narrow(module: Module, made: dict[Expr, Cast]) -> Module:
    """Let sums of a float32 value that all others read in half precision read that, too.

    made: the casts of autocast by their variable, which are brought up to date. The user's own are
    left as they are. The sums themselves are computed in float32.
    """
    summaries = AliasSummaries(module)
    return module.with_functions(
        {n: _narrow_function(n, f, made, summaries) for n, f in module.functions.items()}
    )


@dataclass
class _Readers:
    """Who reads a value: views of it, casts to half precision, and sums; by variable."""

    dtype: str
    views: list[Binding] = field(default_factory=list)
    casts: list[Binding] = field(default_factory=list)
    sums: list[Binding] = field(default_factory=list)


def _narrow_function(
    name: str, function: Function, made: dict[Expr, Cast], summaries: AliasSummaries
) -> Function:
    if function.attrs:
        return function
    uses, own = DefUse(function), {b.var: b for b in function.body.bindings}
    buffers = AliasSets(function, summaries)
    roots = {_root(b, own): made[v].dtype for v, b in own.items() if v in made}
    found = {}
    for root, dtype in roots.items():
        if not isinstance(root, Var) or root not in own or buffers.of(root) in buffers.written:
            continue
        readers = _Readers(dtype)
        if _collect(root, readers, uses, own, made) and readers.sums and readers.casts:
            found[root] = readers
    if not found:
        return function
    return rewrite_function(function, _CastNarrower(name, made, found).rule)


def _root(binding: Binding, own: Mapping[Var, Binding]) -> Expr:
    """Return what a cast is of, views looked through."""
    source = _source(binding)
    while isinstance(source, Var) and source in own and _calls(own[source], op.reshape):
        source = _source(own[source])
    return source


def _source(binding: Binding) -> Expr:
    assert isinstance(binding.value, Call)
    source: Expr = binding.value.args[0]
    return source


def _of(source: Expr, binding: Binding) -> Call:
    """Return the call of a binding with another first argument."""
    assert isinstance(binding.value, Call)
    return replace(binding.value, args=(source, *binding.value.args[1:]))


def _calls(binding: Binding, called: Op) -> bool:
    return isinstance(binding.value, Call) and binding.value.callee is called


def _collect(
    var: Var, readers: _Readers, uses: DefUse, own: Mapping[Var, Binding], made: Mapping[Expr, Cast]
) -> bool:
    """Find the readers of a float32 value; return whether there are no others."""
    if not isinstance(var.type, TensorType) or var.type.dtype != "float32":
        return False
    for user in uses.users(var):
        if not isinstance(user, Binding) or user.var not in own:
            return False
        if user.var in made and made[user.var].dtype == readers.dtype:
            readers.casts.append(user)
        elif _calls(user, op.sum):
            readers.sums.append(user)
        elif _calls(user, op.reshape):
            readers.views.append(user)
            if not _collect(user.var, readers, uses, own, made):
                return False
        else:
            return False
    return True


class _CastNarrower:
    """Puts one cast behind each value found, and lets its readers read that."""

    def __init__(self, name: str, made: dict[Expr, Cast], found: Mapping[Var, _Readers]) -> None:
        self.name, self.made, self.found = name, made, found
        self.views = {b.var for r in found.values() for b in r.views}
        self.casts = {b.var for r in found.values() for b in r.casts}
        self.sums = {b.var for r in found.values() for b in r.sums}
        self._half: dict[Expr, Var] = {}
        self._wide: dict[Expr, Var] = {}

    def rule(self, binding: Binding) -> Binding | list[Binding] | Expr:
        """Return what becomes of a binding; a view or a cast that it reads has become another."""
        var = binding.var
        if var in self.casts:
            del self.made[var]
            return self._read(binding)
        if var in self.views:
            half = self._read(binding)
            type_ = tensor_of(var).with_dtype(tensor_of(half).dtype)
            return Binding(Var(var.name, type_), _of(half, binding), binding.span)
        new = self._sum(binding) if var in self.sums else [binding]
        if var in self.found:
            readers = self.found[var]
            needs = [why for b in readers.casts for why in self.made[b.var].needs]
            new.append(self._cast(var, readers.dtype, needs, binding, self._half))
        return new

    def _read(self, binding: Binding) -> Expr:
        """Return the half precision version of what a binding reads."""
        source = _source(binding)
        return self._half.get(source, source)

    def _sum(self, binding: Binding) -> list[Binding]:
        new, half = list[Binding](), self._read(binding)
        why = CastReason("sum.x", NARROW_REASON, None, binding.span)
        if half in self._wide:
            self.made[self._wide[half]].needs.append(why)
        else:
            new.append(self._cast(half, "float32", [why], binding, self._wide))
        return [*new, with_value(binding, _of(self._wide[half], binding))]

    def _cast(
        self,
        source: Expr,
        dtype: str,
        needs: list[CastReason],
        like: Binding,
        known: dict[Expr, Var],
    ) -> Binding:
        type_ = tensor_of(source)
        var = known[source] = Var("", type_.with_dtype(dtype))
        name = source.name if isinstance(source, Var) else ""
        self.made[var] = Cast(self.name, name, type_, dtype, needs)
        return Binding(var, new_call(op.astype, source, dtype), like.span)
