"""`Program`: what the executors run, and how it is called: its `Convention`, from a user's
arguments to main's inputs and back, and the ranges of the symbolic dimensions of its inputs
(`DimRange`).

A convention is data, as JSON too, so that a saved program is called as the model was that it came
from. Python values in it have to be literals.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from meta.base.errors import ArgumentError, FormatError, IRError, TraceError
from meta.base.registry import nearest
from meta.base.source import Span
from meta.ir import (
    Call,
    Constant,
    Dim,
    Function,
    Module,
    SymbolicDim,
    TensorType,
    TupleType,
    Type,
    bindings,
    parse_literal,
)
from meta.ir.literals import is_literal, literal_text
from meta.op.core import tree
from meta.runtime import view_copies
from meta.runtime.ndarray import as_array, ndarray
from meta.runtime.no_gradient import ClosureConstant


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


@dataclass(frozen=True, eq=False)
class Convention:
    """The calling convention of a program.

    Attributes
    ----------
    name: of what is called. signature: the parameters that a caller gives.
    arguments: the structure of the arguments by parameter name, `tree.LEAF` for each array; other
    Python values have to be given as they are. result: the structure of the result. copies: the
    results, by number, that users are not to write; see `meta.passes.copied_results`.
    site: where the function is defined, None for a program that was loaded.
    """

    name: str
    signature: inspect.Signature
    arguments: dict[str, Any]
    result: Any
    site: Span | None = None
    copies: tuple[int, ...] = ()

    @cached_property
    def _expected(self) -> Any:
        return tree.fingerprint(self.arguments)

    @cached_property
    def _simple(self) -> bool:
        return all(s is tree.LEAF for s in self.arguments.values())

    @classmethod
    def positional(cls, name: str, names: list[str]) -> Convention:
        """Return the convention of a function of arrays without names; ``names`` are for errors."""
        kind = inspect.Parameter.POSITIONAL_ONLY
        legal = [n if n.isidentifier() else f"x{i}" for i, n in enumerate(names)]
        unique = [n if legal.count(n) == 1 else f"{n}_{i}" for i, n in enumerate(legal)]
        signature = inspect.Signature([inspect.Parameter(n, kind) for n in unique])
        return cls(name, signature, dict.fromkeys(unique, tree.LEAF), tree.LEAF)

    def flatten(self, *args: Any, **kwargs: Any) -> list[ndarray]:
        """Return main's inputs; TraceError for another structure than was traced."""
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

    @property
    def returns_result(self) -> bool:
        """Whether the call returns main's result as it is."""
        return self.result is tree.LEAF and not self.copies

    def unflatten(self, result: Any) -> Any:
        """Return what the call returns for main's result."""
        if self.copies:
            result = self._marked(result)
        return result if self.result is tree.LEAF else tree.unflatten(self.result, list(result))

    def _marked(self, result: Any) -> Any:
        """Return main's result, with the copies in it marked."""
        found = list(result) if isinstance(result, tuple) else [result]
        for i in self.copies:
            array = found[i]
            # Of a trace, a value; and to what is recorded no user writes.
            if isinstance(array, ndarray) and not array.tracked:
                # It may be an argument, as it is, where an `If` chooses.
                found[i] = ndarray(array.tensor.detach(), array.key)
                view_copies.mark(found[i].tensor, self.name)
        return tuple(found) if isinstance(result, tuple) else found[0]


_PARAMETER_KINDS: Any = type(inspect.Parameter.POSITIONAL_ONLY)
_KINDS = {kind.name: kind for kind in _PARAMETER_KINDS}
_MAX_NESTING = 64


def convention_to_json(convention: Convention) -> dict[str, Any]:
    """Return a convention as plain data; a named tuple is written as a plain one, an object as the
    dict of its parts.

    Raises ArgumentError for a Python value that is no literal: an object of a class.
    """
    parameters = []
    for parameter in convention.signature.parameters.values():
        entry: dict[str, Any] = {"name": parameter.name, "kind": parameter.kind.name}
        if parameter.default is not parameter.empty:
            entry["default"] = _written(parameter.default, parameter.name)
        parameters.append(entry)
    return {
        "name": convention.name,
        "parameters": parameters,
        "arguments": _written(convention.arguments, "the arguments"),
        "result": _written(convention.result, "the result"),
        "copies": list(convention.copies),
    }


def _written(structure: Any, where: str) -> Any:
    if structure is tree.LEAF:
        return {"array": True}
    if isinstance(structure, tree.ObjectStructure):
        return _written(structure.parts, where)
    if isinstance(structure, dict):
        return {"dict": [[_literal(k, where), _written(v, where)] for k, v in structure.items()]}
    if isinstance(structure, list | tuple):
        kind = "list" if isinstance(structure, list) else "tuple"
        return {kind: [_written(v, where) for v in structure]}
    return {"literal": _literal(structure, where)}


def _literal(value: Any, where: str) -> str:
    if not is_literal(value):
        raise ArgumentError(
            f"{where} cannot be saved: it has a {type(value).__name__} in it",
            expected="arrays, Python numbers, strings and containers of them",
            found=repr(value),
            hint="make it an attribute of the model, or a number",
        )
    return literal_text(value)


def convention_from_json(document: Any) -> Convention:
    """Return the convention that `convention_to_json` wrote; FormatError for anything else."""
    match document:
        case {
            "name": str(name),
            "parameters": list(parameters),
            "arguments": {"dict": list()} as arguments,
            "result": result,
            "copies": list(copied),
        } if all(type(i) is int for i in copied):
            try:
                signature = inspect.Signature([_parameter(p) for p in parameters])
            except ValueError as error:
                raise FormatError(f"the parameters are not in order: {error}") from None
            arguments, result = _read(arguments), _read(result)
            return Convention(name, signature, arguments, result, copies=tuple(copied))
    raise _damaged(document)


def _parameter(entry: Any) -> inspect.Parameter:
    match entry:
        case {"name": str(name), "kind": str(kind)} if kind in _KINDS and name.isidentifier():
            default = _read(entry["default"]) if "default" in entry else inspect.Parameter.empty
            return inspect.Parameter(name, _KINDS[kind], default=default)
    raise _damaged(entry)


def _read(value: Any, depth: int = 0) -> Any:
    if depth > _MAX_NESTING:
        raise FormatError(f"structures are nested more than {_MAX_NESTING} deep")
    match value:
        case {"array": True}:
            return tree.LEAF
        case {"list": list(items)}:
            return [_read(v, depth + 1) for v in items]
        case {"tuple": list(items)}:
            return tuple(_read(v, depth + 1) for v in items)
        case {"dict": list(items)} if all(isinstance(i, list) and len(i) == 2 for i in items):
            return {_read_literal(k): _read(v, depth + 1) for k, v in items}
        case {"literal": str(text)}:
            return _read_literal(text)
    raise _damaged(value)


def _read_literal(text: Any) -> Any:
    try:
        return parse_literal(text) if isinstance(text, str) else None
    except IRError:
        raise _damaged(text) from None


def _damaged(found: Any) -> FormatError:
    shown = repr(found)
    return FormatError(
        "the convention of calling is not as it was saved",
        found=shown if len(shown) < 80 else f"{shown[:80]}...",
    )


MOST_CALLS = 1 << 24
"""Calls of functions that one run may make, where their number is known before."""


@dataclass(frozen=True, slots=True)
class Program:
    """A traced model.

    Attributes
    ----------
    module: its main takes the inputs, then one parameter per array in ``arrays``.
    arrays: parameters and running statistics of the model, shared with it (what main writes, the
    model sees).
    convention: from the user's call arguments to main's inputs, and from main's result to what the
    user's function returned.
    steady: whether others write the arrays rarely, and between calls only: those of a model in
    infer mode. What depends on them alone is then computed once (see `meta.passes.prepare`).
    closed_over: by constant of the module, what stands for its gradient: of what required one and
    became the constant.
    calls: how many calls of functions a run makes, as far as that is known before.

    Raises TraceError for a main that takes or returns data values, references or functions.

    >>> program = meta.model.trace(lambda x: x * 2.0).program(meta.ones(3))
    >>> isinstance(program, meta.vm.Program), len(program.arrays)
    (True, 0)
    >>> str(program.module.main.type)
    'fn(float32[3]) -> float32[3]'
    """

    module: Module
    arrays: tuple[ndarray, ...]
    convention: Convention
    steady: bool = False
    closed_over: Mapping[Constant, ClosureConstant] = field(default_factory=dict)
    calls: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # Only now: a process that runs saved programs, which have a convention, is to be small.
        from meta.passes.call_graph import call_counts
        from meta.passes.copied_results import copied_results

        require_arrays(self.convention.name, self.module.main)
        convention = replace(self.convention, copies=copied_results(self.module))
        object.__setattr__(self, "convention", convention)
        object.__setattr__(self, "calls", call_counts(self.module)["main"])

    def require_end(self) -> None:
        """Raise IRError for a program of more calls than any run makes: a chain of functions that
        each call the one before twice makes 2^n, which a few lines say.
        """
        if self.calls <= MOST_CALLS:
            return
        from meta.passes.call_graph import call_counts

        counts = call_counts(self.module)
        name = next(n for n, count in counts.items() if count > MOST_CALLS)
        called = (b for b in bindings(self.module.functions[name]) if isinstance(b.value, Call))
        raise IRError(
            "functions call one another too often: a run would have no end",
            expected=f"at most {MOST_CALLS:,} calls in one",
            found=f"{counts[name]:,} calls in one of @{name}",
            span=next((b.span for b in called if b.span is not None), self.convention.site),
        )


def module_program(module: Module) -> Program:
    """Wrap a module whose main takes and returns tensors, positionally."""
    names = [p.name for p in module.main.params]
    return Program(module, (), Convention.positional("main", names))


DIMS = "dims"
"""The attribute of main that declares the ranges of its symbolic dimensions: (name, least, largest)
for each; no largest is None."""


@dataclass(frozen=True, slots=True)
class DimRange:
    """The extents that a symbolic dimension may have, both ends included."""

    least: int = 1
    largest: int | None = None

    def __contains__(self, extent: int) -> bool:
        return self.least <= extent and (self.largest is None or extent <= self.largest)

    def __str__(self) -> str:
        return (
            f"{self.least} or more" if self.largest is None else f"{self.least} to {self.largest}"
        )


def declared(main: Function, dims: Mapping[str, tuple[int, int | None]]) -> Function:
    """Return main with the ranges of its symbolic dimensions as an attribute.

    ``dims`` maps names to (least, largest); a dimension that is not in it is 1 or more. What main
    declares already stays. Raises ArgumentError for an unknown name, an empty range, and a name
    that no parameter has as a dimension by itself, so that nothing says what it is.
    """
    known = {name: (r.least, r.largest) for name, r in ranges_of(main).items()}
    for name, pair in dims.items():
        if name not in known:
            raise ArgumentError(
                f"no argument has a dimension {name!r}",
                expected=", ".join(known) or "none: all dimensions are numbers",
                hint=nearest(name, known) if known else None,
            )
        least, largest = pair
        if least < 1 or (largest is not None and largest < least):
            raise ArgumentError(
                f"the range of dimension {name!r} is not one",
                expected="(least, largest) with 1 <= least <= largest, or None for no largest",
                found=pair,
            )
        known[name] = (least, largest)
    if not known:
        return main
    dims_of = {d for p in main.params if isinstance(p.type, TensorType) for d in p.type.shape}
    missing = [name for name in known if SymbolicDim(name) not in dims_of]
    if missing:
        raise ArgumentError(
            f"nothing says what the dimension {missing[0]!r} is",
            expected="an argument that has it as a dimension by itself",
            found=", ".join(str(p.type) for p in main.params),
        )
    entries = tuple((name, *pair) for name, pair in known.items())
    attrs = {**main.attrs, DIMS: entries}
    return Function(main.params, main.body, main.result_type, attrs)


def ranges_of(main: Function) -> dict[str, DimRange]:
    """Return the range of every symbolic dimension of main's parameters."""
    stated = {name: DimRange(*pair) for name, *pair in main.attrs.get(DIMS, ())}
    names: set[str] = set()
    for param in main.params:
        for dim in param.type.shape if isinstance(param.type, TensorType) else ():
            if isinstance(dim, SymbolicDim):
                names |= dim.symbols()
    return {name: stated.get(name, DimRange()) for name in sorted(names)}


def require_in_range(
    extents: Mapping[str, Dim],
    ranges: Mapping[str, DimRange],
    main: Sequence[tuple[str, TensorType]],
) -> None:
    """Raise ArgumentError, naming dimension, range and value, for an extent that is out of range.

    ``main``: names and types of the parameters, to say where it was met.
    """
    for name, range_ in ranges.items():
        extent = extents[name]
        if not isinstance(extent, int) or extent in range_:
            continue
        param, axis = next(
            (param, type_.shape.index(SymbolicDim(name)))
            for param, type_ in main
            if SymbolicDim(name) in type_.shape
        )
        raise ArgumentError(
            f"dimension {name!r} is out of range: axis {axis} of %{param}",
            expected=str(range_),
            found=extent,
            hint=f"compile with a wider range: dims={{{name!r}: (least, largest)}}",
        )
