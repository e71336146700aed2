"""Sums of what is rounded for others: they read the rounded values, so that no others are stored.

The gradient of a layer's result goes to products, in half precision, and is summed for the bias. If
it is computed in float32, both are kept, and the wide one, often the largest array of a program, is
written and read for this sum alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meta import op
from meta.ir import (
    Binding,
    Block,
    Call,
    DefUse,
    Expr,
    Function,
    Module,
    TensorType,
    Var,
)
from meta.op.core import Op
from meta.passes.autocast.casts import cast_call
from meta.passes.autocast.report import Cast, Why
from meta.passes.buffers import Buffers, Summaries
from meta.passes.rewrite import rewrite_function

REASON = "the sum is of the numbers as they are rounded for products"


def narrow(module: Module, made: dict[Var, Cast]) -> Module:
    """Let sums of a float32 value that all others read in half precision read that, too.

    made: the casts of autocast by their variable, which are brought up to date. The user's own are
    left as they are. The sums themselves are computed in float32.
    """
    summaries = Summaries(module)
    return module.with_functions(
        {n: _narrowed(n, f, made, summaries) for n, f in module.functions.items()}
    )


@dataclass
class _Readers:
    """Who reads a value: views of it, casts to half precision, and sums; by variable."""

    dtype: str
    views: list[Binding] = field(default_factory=list)
    casts: list[Binding] = field(default_factory=list)
    sums: list[Binding] = field(default_factory=list)


def _narrowed(
    name: str, function: Function, made: dict[Var, Cast], summaries: Summaries
) -> Function:
    if function.attrs:
        return function
    uses, own = DefUse(function), {b.var: b for b in function.body.bindings}
    buffers = Buffers(function, summaries)
    roots = {_root(b, own): made[v].dtype for v, b in own.items() if v in made}
    found = {}
    for root, dtype in roots.items():
        if root not in own or buffers.of(root) in buffers.written:
            continue
        readers = _Readers(dtype)
        if _collect(root, readers, uses, own, made) and readers.sums and readers.casts:
            found[root] = readers
    if not found:
        return function
    rewriting = _Rewriting(name, made, found)
    body = Block(tuple(rewriting.bindings(function.body)), function.body.result)
    return rewrite_function(replace(function, body=body), lambda b: b, rewriting.replaced)


def _root(binding: Binding, own: Mapping[Var, Binding]) -> Var:
    """Return what a cast is of, views looked through."""
    source = _source(binding)
    while source in own and _calls(own[source], op.reshape):
        source = _source(own[source])
    return source


def _source(binding: Binding) -> Expr:
    assert isinstance(binding.value, Call)
    return binding.value.args[0]


def _calls(binding: Binding, called: Op) -> bool:
    return isinstance(binding.value, Call) and binding.value.callee is called


def _collect(
    var: Var,
    readers: _Readers,
    uses: DefUse,
    own: Mapping[Var, Binding],
    made: Mapping[Var, Cast],
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


class _Rewriting:
    """Puts one cast behind each value found, and lets its readers read that.

    Attributes
    ----------
    replaced: what stands for the casts that are no more.
    """

    def __init__(self, name: str, made: dict[Var, Cast], found: Mapping[Var, _Readers]) -> None:
        self.name, self.made, self.found = name, made, found
        self.views = {b.var: r for r in found.values() for b in r.views}
        self.casts = {b.var for r in found.values() for b in r.casts}
        self.sums = {b.var for r in found.values() for b in r.sums}
        self.replaced: dict[Var, Expr] = {}
        self._half: dict[Expr, Var] = {}
        self._wide: dict[Expr, Var] = {}

    def bindings(self, block: Block) -> list[Binding]:
        """Return the bindings of a block with half precision versions of what is found."""
        new: list[Binding] = []
        for binding in block.bindings:
            if binding.var in self.casts:
                self.replaced[binding.var] = self._half[_source(binding)]
                del self.made[binding.var]
            elif binding.var in self.views:
                new.append(self._view(binding))
            elif binding.var in self.sums:
                new += self._sum(binding)
            else:
                new.append(binding)
            if binding.var in self.found:
                new.append(self._rounded(binding))
        return new

    def _rounded(self, binding: Binding) -> Binding:
        readers = self.found[binding.var]
        needs = [why for b in readers.casts for why in self.made[b.var].needs]
        return self._cast(binding.var, readers.dtype, needs, binding, self._half)

    def _view(self, binding: Binding) -> Binding:
        assert isinstance(binding.value, Call) and isinstance(binding.var.type, TensorType)
        type_ = binding.var.type.with_dtype(self.views[binding.var].dtype)
        var = self._half[binding.var] = Var(binding.var.name, type_)
        source = self._half[_source(binding)]
        value = replace(binding.value, args=(source, *binding.value.args[1:]))
        return Binding(var, value, binding.span)

    def _sum(self, binding: Binding) -> list[Binding]:
        assert isinstance(binding.value, Call)
        new, half = [], self._half[_source(binding)]
        why = Why("sum.x", REASON, None, binding.span)
        if half in self._wide:
            self.made[self._wide[half]].needs.append(why)
        else:
            new.append(self._cast(half, "float32", [why], binding, self._wide))
        value = replace(binding.value, args=(self._wide[half], *binding.value.args[1:]))
        return [*new, Binding(binding.var, value, binding.span)]

    def _cast(
        self, source: Var, dtype: str, needs: list[Why], like: Binding, known: dict[Expr, Var]
    ) -> Binding:
        assert isinstance(source.type, TensorType)
        var = known[source] = Var("", source.type.with_dtype(dtype))
        self.made[var] = Cast(self.name, source.name, source.type, dtype, needs)
        return Binding(var, cast_call(source, dtype), like.span)
