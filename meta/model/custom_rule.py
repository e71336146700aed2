"""`custom_vjp` and `custom_jvp`: functions whose derivative is what their author says."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meta import op
from meta.base.call_context import current
from meta.base.dtype import has_gradient
from meta.base.errors import ArgumentError, GradientError
from meta.base.registry import nearest
from meta.base.source import definition_span
from meta.grad.core import run_with_rule
from meta.grad.core.arguments import Argument, Arrays, bind_arguments, is_leaf
from meta.grad.core.custom_rule import transposed_gradients
from meta.ir import BWD, FWD, JVP, Module, TensorType, Type
from meta.ir.dims import differ
from meta.model.traced_rule import OpenFunction, RuleScope, call_with_rule
from meta.op.core import tree
from meta.op.core.call import array_type
from meta.op.core.tracing import Trace, Value
from meta.passes.autodiff import require_linear
from meta.runtime.ndarray import as_array, ndarray


def custom_vjp(f: Callable[..., Any] | None = None, *, static: Any = ()) -> Any:
    """Let a function go backwards by a rule of yours; a decorator.

    ``f.defvjp(fwd, bwd)`` states the rule. ``fwd`` takes what f takes, and returns f's result and
    residuals, which the way back needs: any container of arrays. ``bwd(residuals, dy)`` takes these
    and a cotangent like the result, None for integers in it, and returns a tuple with one for each
    argument, of its structure, shapes and dtypes; None stands for zeros. A call that nobody
    differentiates computes f, another one ``fwd``.

    f takes arrays, or nested containers of them, by position. static: arguments that are other
    values, by position or name: ``bwd`` is given them first. The rule holds on the tape, in traced
    and compiled programs and their text, and within all transforms. Derivatives of derivatives
    differentiate ``bwd`` and residuals; that of f's result is always the rule's. Forward mode
    (`meta.grad.jvp`, `hessian`) is by the transpose of ``bwd``: an error if that is not linear in
    ``dy``, as where it clips. To differentiate by what f closes over is an error, too: hand it in.

    Raises ArgumentError for a call that does not fit or without a rule, and GradientError for what
    the rule returns, which says what was expected.

    >>> import meta
    >>> @meta.custom_vjp
    ... def log1pexp(x):
    ...     return meta.log(1.0 + meta.exp(x))
    >>> log1pexp.defvjp(
    ...     lambda x: (log1pexp(x), x),
    ...     lambda x, dy: (dy * meta.sigmoid(x),),  # right where exp(x) is infinite
    ... )
    >>> meta.grad(log1pexp)(meta.array(1000.0)).item()
    1.0
    """
    return _decorated(_CustomVjp, f, static)


def custom_jvp(f: Callable[..., Any] | None = None, *, static: Any = ()) -> Any:
    """Let a function go forwards by a rule of yours, and backwards by its transpose; a decorator.

    ``f.defjvp(rule)`` states it: ``rule(primals, tangents)`` takes f's arguments, and their changes
    in the same structure, None for integers, and returns f's result and its change, which must be
    linear in the tangents. That is of the structure, shapes and dtypes of the result; None stands
    for zeros, and for integers. For arguments, static ones, which the rule is given first, and
    errors see `custom_vjp`. On the tape, only the arguments are kept.

    >>> import meta
    >>> @meta.custom_jvp
    ... def root(x):
    ...     return meta.sqrt(x)
    >>> @root.defjvp
    ... def rule(primals, tangents):
    ...     (x,), (dx,) = primals, tangents
    ...     y = root(x)
    ...     return y, dx * meta.where(x > 0.0, 0.5 / y, 0.0)  # 0 at 0, where it is infinite
    >>> meta.grad(root)(meta.array(0.0)).item(), meta.grad.jvp(root, (4.0,), (1.0,))[1].item()
    (0.0, 0.25)
    """
    return _decorated(_CustomJvp, f, static)


def _decorated(kind: type[_Custom], f: Callable[..., Any] | None, static: Any) -> Any:
    if f is None:
        return functools.partial(_decorated, kind, static=static)
    made = kind(f, static)

    @functools.wraps(f, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return made.call(args, kwargs)

    for name in ("defvjp", "defjvp"):
        if hasattr(made, name):
            setattr(call, name, getattr(made, name))
    return call


class _Call:
    """A call: its static arguments, and the leaves and structure of a tuple of the others."""

    def __init__(self, owner: _Custom, values: tuple[Any, ...]) -> None:
        self.owner = owner
        self.statics = tuple(v for i, v in enumerate(values) if i in owner.static)
        given = tuple(v for i, v in enumerate(values) if i not in owner.static)
        self.leaves, self.structure = tree.flatten(given, is_leaf)
        self._count = len(values)
        for value in _plain_values(self.structure):
            raise ArgumentError(
                f"{owner.name} is given what is no array, so it has no derivative",
                found=repr(value),
                hint=f"meta.{owner.decorator}(static=...) names such arguments",
            )

    def given(self, leaves: Arrays) -> Any:
        """Return the tuple of all arguments but static ones, with these leaves."""
        return tree.unflatten(self.structure, leaves)

    def args(self, leaves: Arrays) -> list[Any]:
        """Return all arguments, with these leaves."""
        given, static = iter(self.given(leaves)), iter(self.statics)
        return [next(static if i in self.owner.static else given) for i in range(self._count)]


class _Custom:
    """A function and its rule."""

    decorator: str

    def __init__(self, f: Callable[..., Any], static: Any) -> None:
        if not callable(f):
            raise ArgumentError(f"{self.decorator} is of a function", found=type(f).__name__)
        self.f, self.signature = f, inspect.signature(f)
        self.name = getattr(f, "__name__", type(f).__name__)
        kinds = [p.kind for p in self.signature.parameters.values()]
        if any(k in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD) for k in kinds):
            raise ArgumentError(
                f"a function of {self.decorator} takes its arguments by position",
                found=f"{self.name}{self.signature}",
            )
        wanted: Sequence[Argument] = (static,) if isinstance(static, int | str) else static
        self.static = frozenset(map(self._position, wanted))
        self._open: dict[Any, OpenFunction] = {}

    def _position(self, wanted: Argument) -> int:
        names = list(self.signature.parameters)
        if wanted in names:
            return names.index(wanted)
        if isinstance(wanted, int) and 0 <= wanted < len(names):
            return wanted
        raise ArgumentError(
            f"{self.name} has no argument {wanted!r}",
            expected=f"{self.name}{self.signature}",
            hint=nearest(wanted, names) if isinstance(wanted, str) else None,
        )

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the function computes."""
        bound = bind_arguments(self.name, self.signature, args, kwargs)
        if not self.has_rule():
            how = "fwd, bwd" if self.decorator == "custom_vjp" else "rule"
            raise ArgumentError(
                f"{self.name} has no rule",
                hint=f"{self.name}.def{self.decorator[-3:]}({how}), before it is called",
            )
        call, handler = _Call(self, bound.args), current()
        if not isinstance(handler, Trace):
            return self.by_tape(call, list(map(as_array, call.leaves)))
        given = [handler.lift(leaf) for leaf in call.leaves]
        types = tuple(v.type for v in given)
        structures = tree.fingerprint(call.structure), tree.fingerprint(call.statics)
        key = id(handler.functions), types, *structures
        if key in self._open:  # the rule calls the function itself
            return self._open[key].call(handler, given)
        scope = RuleScope(handler, types)
        result = scope.run(lambda: self.f(*call.args(scope.given)))
        self._open[key] = opened = OpenFunction(self.name, handler, scope, result)
        try:
            return call_with_rule(opened, given, lambda: self.rule_functions(call, opened))
        finally:
            del self._open[key]

    def has_rule(self) -> bool:
        """Whether the rule was stated."""
        raise NotImplementedError

    def by_tape(self, call: _Call, xs: list[ndarray]) -> Any:
        """Return what the function computes of arrays, recorded."""
        raise NotImplementedError

    def rule_functions(self, call: _Call, opened: OpenFunction) -> dict[str, RuleScope]:
        """Return the functions of the rule in a program, by attribute."""
        raise NotImplementedError

    def pair(self, found: Any, rule: Callable[..., Any], expected: str) -> tuple[Any, Any]:
        """Return what a part of the rule returned; GradientError if these are not two things."""
        if isinstance(found, tuple) and len(found) == 2:
            return found
        raise self.error("does not return two things", rule, expected, _described(found))

    def require_same(
        self, ys: Arrays, structure: Any, out: Any, types: Sequence[Any], rule: Callable[..., Any]
    ) -> None:
        """Raise GradientError unless a rule computed the result that the function computes."""
        found = [type_of_leaf(y) for y in ys]
        if tree.fingerprint(structure) != tree.fingerprint(out) or found != list(types):
            texts = [
                tree.text(s, lambda i, t=t: str(t[i]))  # type: ignore[misc]
                for s, t in ((out, types), (structure, found))
            ]
            raise self.error(f"returns another result than {self.name}", rule, *texts)

    def derivatives(
        self, found: Any, structure: Any, types: Sequence[Type], rule: Callable[..., Any], of: str
    ) -> Arrays:
        """Return the leaves of derivatives that a rule returned, None for zeros; GradientError if
        they do not have the structure, or one not the type, of what they are of.
        """
        text = tree.text(structure, lambda i: str(types[i]))
        leaves: Arrays = []
        if not _extend(leaves, found, structure):
            shown = tree.flatten(found)
            found = tree.text(shown[1], lambda i: str(type_of_leaf(shown[0][i])))
            raise self.error(f"does not return derivatives like {of}", rule, text, found)
        names = tree.leaf_names(structure)
        for i, (leaf, type_) in enumerate(zip(leaves, types, strict=True)):
            if leaf is not None and not _fits(leaf, type_):
                shown_type = type_ if _is_float(type_) else f"None, as it is {type_}"
                where = f"the derivative at {names[i]} of" if names[i] else "the derivative of"
                what = f"returns for {where} {of} another type"
                raise self.error(what, rule, shown_type, _described(leaf))
        return leaves

    def error(
        self, what: str, rule: Callable[..., Any], expected: object, found: object
    ) -> GradientError:
        """Return the error for what a part of the rule returned."""
        name = getattr(rule, "__name__", type(rule).__name__)
        return GradientError(
            f"the rule {name} of {self.name} {what}",
            expected=expected,
            found=found,
            hint="None stands for zeros; meta.astype casts, meta.sum sums over what was broadcast",
            span=definition_span(rule),
        )


class _CustomVjp(_Custom):
    decorator = "custom_vjp"
    fwd: Callable[..., Any] | None = None
    bwd: Callable[..., Any]

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """State the rule; see `custom_vjp`."""
        self.fwd, self.bwd = fwd, bwd

    def has_rule(self) -> bool:
        return self.fwd is not None

    def forward(self, call: _Call, xs: Arrays) -> tuple[Any, Any]:
        """Return the result and what is kept."""
        assert self.fwd is not None
        found = self.fwd(*call.args(xs))
        return self.pair(found, self.fwd, "the result, and what is kept: (y, kept)")

    def backward(self, call: _Call, out: Any, types: Any, kept: Any, dys: Arrays) -> Arrays:
        """Return the gradients of the leaves of the arguments, which are of these types."""
        found = self.bwd(*call.statics, kept, tree.unflatten(out, dys))
        return self.derivatives(found, call.structure, types, self.bwd, "the arguments")

    def by_tape(self, call: _Call, xs: list[ndarray]) -> Any:
        out: Any = None
        types = [type_of_leaf(x) for x in xs]

        def run(keeps: bool) -> tuple[Any, Any]:
            nonlocal out
            result, kept = self.forward(call, xs) if keeps else (self.f(*call.args(xs)), ())
            out = tree.flatten(result)[1]
            return result, kept

        def pull(kept: Any, dys: Arrays) -> Arrays:
            return self.backward(call, out, types, kept, dys)

        def check(kept: Any, dys: Arrays) -> None:
            trace = Trace(xs[0].device)
            trace.promotes = True
            held, structure = tree.flatten(kept)
            floats = [array_type(d.key) for d in dys if d is not None]
            scope = RuleScope(trace, [*floats, *map(type_of_leaf, held)])
            self._write_backward(call, out, types, structure, [d is not None for d in dys], scope)
            module = Module(trace.functions, trace.types)
            require_linear(self.name, module, scope.function(()), len(floats))

        return run_with_rule(self.name, xs, run, pull, check)

    def rule_functions(self, call: _Call, opened: OpenFunction) -> dict[str, RuleScope]:
        fwd = RuleScope(opened.trace, opened.arguments)
        result, kept = fwd.run(self.forward, call, fwd.given)
        (ys, out), (held, structure) = tree.flatten(result), tree.flatten(kept)
        assert self.fwd is not None
        self.require_same(ys, out, opened.structure, opened.results, self.fwd)
        fwd.returns([*ys, *held])
        floats = list(map(_is_float, opened.results))
        types = [t for t, is_float in zip(opened.results, floats, strict=True) if is_float]
        bwd = RuleScope(opened.trace, [*types, *map(type_of_leaf, held)])
        self._write_backward(call, out, opened.arguments, structure, floats, bwd)
        return {FWD: fwd, BWD: bwd}

    def _write_backward(
        self, call: _Call, out: Any, types: Any, kept: Any, floats: list[bool], scope: RuleScope
    ) -> None:
        given = iter(scope.given)
        dys = [next(given) if is_float else None for is_float in floats]
        held = tree.unflatten(kept, list(given))

        def run() -> Arrays:
            found = self.backward(call, out, types, held, dys)
            place = str(scope.device)
            return [
                op.zeros(t.shape, t.dtype, place) if g is None else g
                for g, t in zip(found, types, strict=True)
                if _is_float(t)
            ]

        scope.returns(scope.run(run))


class _CustomJvp(_Custom):
    decorator = "custom_jvp"
    rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """State the rule, which is returned; see `custom_jvp`."""
        self.rule = rule
        return rule

    def has_rule(self) -> bool:
        return self.rule is not None

    def forward(
        self, call: _Call, xs: Arrays, moves: Arrays, out: Any, types: Any
    ) -> tuple[Arrays, Arrays]:
        """Return the leaves of the result and their tangents, which are of these types."""
        assert self.rule is not None
        every = iter(moves)
        tangents = [next(every) if _is_float(type_of_leaf(x)) else None for x in xs]
        given = *call.statics, call.given(xs), call.given(tangents)
        result, dy = self.pair(self.rule(*given), self.rule, "the result, and its change: (y, dy)")
        ys, structure = tree.flatten(result)
        self.require_same(ys, structure, out, types, self.rule)
        found = self.derivatives(dy, out, types, self.rule, "the result")
        return ys, [
            op.zeros_like(y) if d is None else d
            for y, d, t in zip(ys, found, types, strict=True)
            if _is_float(t)
        ]

    def by_tape(self, call: _Call, xs: list[ndarray]) -> Any:
        out, types = None, list[Any]()

        def run(keeps: bool) -> tuple[Any, Any]:
            nonlocal out, types
            result = self.f(*call.args(xs))
            ys, out = tree.flatten(result)
            types = list(map(type_of_leaf, ys))
            return result, tuple(xs) if keeps else ()

        def pull(_: Any, dys: Arrays) -> Arrays:
            return transposed_gradients(
                lambda moves: self.forward(call, xs, moves, out, types)[1], xs, dys
            )

        return run_with_rule(self.name, xs, run, pull, lambda *_: None)

    def rule_functions(self, call: _Call, opened: OpenFunction) -> dict[str, RuleScope]:
        scope = RuleScope(opened.trace, opened.arguments)
        moves = scope.add_last([t for t in opened.arguments if _is_float(t)])
        given = call, scope.given, moves, opened.structure, opened.results
        ys, dys = scope.run(self.forward, *given)
        scope.returns([*ys, *dys])
        return {JVP: scope}


def type_of_leaf(leaf: Any) -> Any:
    """Return the type of an array or of a value of a trace."""
    return leaf.type if isinstance(leaf, Value) else array_type(as_array(leaf).key)


def _is_float(type_: Any) -> bool:
    return isinstance(type_, TensorType) and has_gradient(type_.dtype)


def _described(found: Any) -> str:
    if tree.is_array(found):
        return str(type_of_leaf(found))
    return f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__


def _fits(leaf: Any, type_: Any) -> bool:
    """Whether a derivative is of the type of what it is of; extents may be the same that differ in
    name only.
    """
    if not tree.is_array(leaf) or not _is_float(type_):
        return False
    found = type_of_leaf(leaf)
    same = found.ndim == type_.ndim and found.dtype == type_.dtype
    return same and not any(map(differ, found.shape, type_.shape))


def _extend(leaves: Arrays, found: Any, structure: Any) -> bool:
    """Add the leaves of what has a structure, in which None may stand for any part; return whether
    it has it.
    """
    if found is None or structure is tree.LEAF:
        leaves += [None] * len(tree.leaf_names(structure)) if found is None else [found]
        return True
    if type(found) is not type(structure):
        return False
    if isinstance(structure, dict):
        same = found.keys() == structure.keys()
        return same and all(_extend(leaves, found[k], structure[k]) for k in structure)
    if isinstance(structure, tuple | list):
        same = len(found) == len(structure)
        return same and all(map(functools.partial(_extend, leaves), found, structure))
    some, other = tree.flatten(found)
    leaves += some
    return bool(tree.fingerprint(other) == tree.fingerprint(structure))


def _plain_values(structure: Any) -> Iterator[Any]:
    """Yield the values in a structure that are neither arrays nor None."""
    if isinstance(structure, dict | tuple | list):
        for part in structure.values() if isinstance(structure, dict) else structure:
            yield from _plain_values(part)
    elif isinstance(structure, tree.ObjectStructure):
        yield from _plain_values(structure.parts)
    elif structure is not tree.LEAF and structure is not None:
        yield structure
