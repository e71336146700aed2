"""`Convention`: how a program is called, from a user's arguments to main's inputs and back.

It is data, so that a saved program is called as the model was that it came from.
"""

from __future__ import annotations

import inspect
from typing import Any

from meta.base.errors import ArgumentError, TraceError
from meta.base.source import Span
from meta.ir import Function, TensorType, TupleType, Type
from meta.op.core import tree
from meta.runtime.ndarray import as_array, ndarray


def bind(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    site: Span | None,
) -> dict[str, Any]:
    """Return a call's arguments by parameter name, defaults filled in.

    Raises ArgumentError for a wrong number or name of arguments of the function ``name``, which is
    defined at ``site``.
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"{name} cannot be called like this: {error}",
            expected=f"{name.rpartition('.')[2]}{signature}",
            hint=None if site is None else f"it is defined at {site}",
        ) from None
    bound.apply_defaults()
    return dict(bound.arguments)


def require_arrays(name: str, main: Function) -> None:
    """Raise TraceError for a main that takes or returns more than tensors and tuples of them."""
    given = ((f"parameter %{p.name}", p.type) for p in main.params)
    for what, type_ in (*given, ("result", main.result_type)):
        if type_ is not None and not is_of_tensors(type_):
            raise TraceError(
                f"{name} takes and returns arrays, and tuples of them",
                found=f"{what}: {type_}",
                hint="take data values, references and functions apart inside of it",
                span=next((b.span for b in main.body.bindings if b.span), None),
            )


def is_of_tensors(type_: Type) -> bool:
    """Whether a value of a type is a tensor or a nested tuple of tensors."""
    if isinstance(type_, TupleType):
        return all(map(is_of_tensors, type_.fields))
    return isinstance(type_, TensorType)


class Convention:
    """The calling convention of a program.

    Attributes
    ----------
    name: of what is called. signature: the parameters that a caller gives.
    arguments: the structure of the arguments by parameter name, `tree.LEAF` for each array; other
    Python values have to be given as they are. result: the structure of the result.
    site: where the function is defined, None for a program that was loaded.
    """

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        arguments: dict[str, Any],
        result: Any,
        site: Span | None = None,
    ) -> None:
        self.name, self.signature, self.site = name, signature, site
        self.arguments, self.result = arguments, result
        self._expected = tree.fingerprint(arguments)
        self._simple = all(s is tree.LEAF for s in arguments.values())

    @classmethod
    def positional(cls, name: str, names: list[str]) -> Convention:
        """Return the convention of a function of arrays without names; ``names`` are for errors."""
        kind = inspect.Parameter.POSITIONAL_ONLY
        legal = [n if n.isidentifier() else f"x{i}" for i, n in enumerate(names)]
        unique = [n if legal.count(n) == 1 else f"{n}_{i}" for i, n in enumerate(legal)]
        signature = inspect.Signature([inspect.Parameter(n, kind) for n in unique])
        return cls(name, signature, dict.fromkeys(unique, tree.LEAF), tree.LEAF)

    def flatten(self, *args: Any, **kwargs: Any) -> list[ndarray]:
        """Return main's inputs for a call. TraceError for arguments of another structure, or with
        other Python values, than the program was traced for.
        """
        if self._simple and not kwargs and len(args) == len(self.arguments):
            # The usual call: arrays only, positionally.
            return [a if a.__class__ is ndarray else as_array(a) for a in args]
        leaves, found = tree.flatten(bind(self.name, self.signature, args, kwargs, self.site))
        if tree.fingerprint(found) != self._expected:
            raise TraceError(
                f"{self.name} was traced for another structure of arguments",
                expected=tree.text(self.arguments),
                found=tree.text(found),
            )
        return [as_array(a) for a in leaves]

    def unflatten(self, result: Any) -> Any:
        """Return what the call returns for main's result."""
        return result if self.result is tree.LEAF else tree.unflatten(self.result, list(result))
