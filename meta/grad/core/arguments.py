"""By which arguments a function is differentiated: the arrays in them, taken out and put back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from meta.base.dtype import has_gradient
from meta.base.errors import ArgumentError, GradientError
from meta.base.registry import OPERATORS, nearest
from meta.op.core import tree
from meta.op.core.tracing import Value
from meta.runtime.ndarray import as_array

Argument = int | str
Arrays = list[Any]


class ByArguments:
    """A function, and by which of its arguments it is differentiated.

    Raises ArgumentError for what is no function, and for a ``wrt`` that names no arguments.
    """

    def __init__(
        self, f: Callable[..., Any], wrt: Argument | Sequence[Argument], caller: str
    ) -> None:
        if not callable(f):
            raise ArgumentError(f"{caller} is given a function", found=type(f).__name__)
        self.f, self.wrt = f, wrt
        self.single = isinstance(wrt, int | str)
        self.wanted: Any = (wrt,) if self.single else wrt
        kinds = set(map(type, self.wanted)) if isinstance(self.wanted, Sequence) else set()
        if not kinds or not kinds <= {int, str}:
            raise ArgumentError(
                "wrt says by which arguments", expected="positions and names", found=repr(wrt)
            )
        self.signature: inspect.Signature = (
            f.traced_entry().given if hasattr(f, "traced_entry") else inspect.signature(f)
        )
        self.name = getattr(f, "__name__", type(f).__name__)

    def wrapped(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is called in place of the function, with its name and signature."""
        run = functools.wraps(self.f, updated=())(run)
        run.__signature__ = self.signature  # type: ignore[attr-defined]  # where `inspect` looks
        return run

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
        """Return a call of the function; ArgumentError if it cannot be called like this."""
        return BoundCall(self, bind_arguments(self.name, self.signature, args, kwargs))


def bind_arguments(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments of a call of a function, with its defaults; ArgumentError if it cannot
    be called like this.
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"{name} cannot be called like this: {error}", expected=f"{name}{signature}"
        ) from None
    bound.apply_defaults()
    return bound


class BoundCall:
    """A call of a function, and the arrays among the arguments that it is differentiated by."""

    def __init__(self, by: ByArguments, bound: inspect.BoundArguments) -> None:
        self.by, self._bound = by, bound
        self._places = [_position(bound, w, by.name) for w in by.wanted]
        if len(set(self._places)) < len(self._places):
            raise ArgumentError("an argument is named twice in wrt", found=repr(by.wrt))
        self._flat = [tree.flatten(_value(bound, place), is_leaf) for place in self._places]
        self.leaves = [leaf for some, _ in self._flat for leaf in some]
        _require_floating([dtype_of(leaf) for leaf in self.leaves], by.wrt)

    def run(self, new: Arrays) -> Any:
        """Call the function with other arrays in place of the leaves."""
        rest = iter(new)
        inner = inspect.BoundArguments(self.by.signature, dict(self._bound.arguments))
        for place, (some, structure) in zip(self._places, self._flat, strict=True):
            _set(inner, place, tree.unflatten(structure, [next(rest) for _ in some]))
        return self.by.f(*inner.args, **inner.kwargs)

    def like(self, values: Arrays) -> Any:
        """Return something of each leaf in the structure of the arguments: a tuple of several."""
        rest = iter(values)
        found = tuple(tree.unflatten(s, [next(rest) for _ in some]) for some, s in self._flat)
        return found[0] if self.by.single else found


def with_aux(found: Any, name: str) -> tuple[Any, Any]:
    """Return what a function gives beside its result, and that."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise ArgumentError(
            f"with has_aux, {name} returns a result and something beside it",
            expected="(result, aux)",
            found=f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__,
        )
    return found


def zeros_for(leaf: Any, derivative: Any) -> Any:
    """Return a derivative, zeros like the leaf where a floating point one has none."""
    if derivative is not None or not has_gradient(dtype_of(leaf)):
        return derivative
    return OPERATORS["zeros_like"](as_array(leaf) if isinstance(leaf, float) else leaf)


def dtype_of(leaf: Any) -> str:
    return str(leaf.type.dtype if isinstance(leaf, Value) else as_array(leaf).dtype)


def is_leaf(value: object) -> bool:
    return tree.is_array(value) or isinstance(value, float)


def _require_floating(dtypes: list[str], wrt: Any) -> None:
    if not dtypes or not all(map(has_gradient, dtypes)):
        raise GradientError(
            f"there is no gradient by the arguments {wrt!r}",
            expected="floating point arrays, and containers of them",
            found=", ".join(dtypes) or "no array",
            hint="cast them, or leave them out of wrt=",
        )


Position = tuple[str, int | None]


def _position(bound: inspect.BoundArguments, wanted: Argument, name: str) -> Position:
    """Return the parameter that an argument is given to, and its place in ``*args``."""
    parameters = bound.signature.parameters
    further = [n for n, p in parameters.items() if p.kind is p.VAR_KEYWORD]
    if isinstance(wanted, str):
        if wanted in parameters:
            return wanted, None
        if further and wanted in bound.arguments[further[0]]:
            return wanted, -1
    else:
        for i, (key, parameter) in enumerate(parameters.items()):
            if parameter.kind is parameter.VAR_POSITIONAL:
                if 0 <= wanted - i < len(bound.arguments[key]):
                    return key, wanted - i
                break
            if parameter.kind is parameter.KEYWORD_ONLY:
                break
            if i == wanted:
                return key, None
    hint = nearest(wanted, parameters) if isinstance(wanted, str) else None
    raise ArgumentError(
        f"{name} has no argument {wanted!r}", expected=f"{name}{bound.signature}", hint=hint
    )


def _value(bound: inspect.BoundArguments, place: Position) -> Any:
    key, index = place
    if index == -1:
        return bound.arguments[_keywords(bound)][key]
    return bound.arguments[key] if index is None else bound.arguments[key][index]


def _set(bound: inspect.BoundArguments, place: Position, value: Any) -> None:
    key, index = place
    if index == -1:
        name = _keywords(bound)
        bound.arguments[name] = {**bound.arguments[name], key: value}
    elif index is None:
        bound.arguments[key] = value
    else:
        old = bound.arguments[key]
        bound.arguments[key] = (*old[:index], value, *old[index + 1 :])


def _keywords(bound: inspect.BoundArguments) -> str:
    """Return the name of ``**kwargs``."""
    parameters = bound.signature.parameters.items()
    return next(n for n, p in parameters if p.kind is p.VAR_KEYWORD)
