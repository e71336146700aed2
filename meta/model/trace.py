"""`trace`: turns a Python function on arrays into a program, once per input signature.

A traced function, called as usual, runs its program under the interpreter; `meta.vm.compile`
compiles the same program. Called while another function is being traced it is simply part of that
one. Buffers that a model sets while it is traced (``self.count += 1``) are updated by the program.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from meta import op
from meta.amp.scope import EagerCasts, traced_casts
from meta.base import config
from meta.base.bounded_cache import bounded_insert
from meta.base.call_context import current, use
from meta.base.device import CPU, Device
from meta.base.errors import ArgumentError, TraceError
from meta.base.source import Span, python_function, python_span
from meta.ir import (
    Block,
    Call,
    Expr,
    Function,
    Module,
    TensorType,
    TupleType,
    Type,
    free_vars,
    type_of,
)
from meta.ir.builder import BlockBuilder
from meta.ir.visit import substitute
from meta.model.host_rng import refuse_host_rng
from meta.model.model import Model
from meta.model.sharded_trace import full_shapes_while_traced, is_sharded, shard_program
from meta.op.core import Op, tree
from meta.op.core.call import array_type
from meta.op.core.tracing import BlockTrace, Trace, Value
from meta.runtime.ndarray import as_array, ndarray
from meta.runtime.no_gradient import ClosureConstant
from meta.runtime.trace_checks import require_values
from meta.vm.compiler.calling_convention import Convention, Program, bind
from meta.vm.run.interpreter import interpret


class BufferMutation:
    """The array attributes of a model and all inside, as they are before a trace."""

    def __init__(self, owner: Any) -> None:
        models = owner.models() if isinstance(owner, Model) else []
        self.held = [
            (model, name, value)
            for model in models
            for name, value in model.settable().items()
            if isinstance(value, ndarray) and name in model.members()
        ]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Set the attributes that hold a traced value back at the end."""
        try:
            yield
        finally:
            for model, name, array in self.held:
                if isinstance(model.settable().get(name), Value):
                    model.settable()[name] = array

    def collect(self, trace: Trace, site: Span | None) -> dict[Expr, Value]:
        """Set the attributes back that hold another array, or a value of this trace; return these
        by what stands for the array. TraceError for a value of another type, a parameter that is
        trained, and an array under two names that are set to two values.
        """
        found: dict[Expr, Value] = {}
        for model, name, array in self.held:
            new = model.settable().get(name)
            if new is array or not isinstance(new, Value | ndarray):
                continue
            if isinstance(new, Value) and new.trace is not trace:
                continue
            old, value = trace.lift(array), trace.lift(new)
            what = f"the traced code sets the attribute {name!r} of {type(model).__name__}"
            if array.requires_grad:
                raise TraceError(
                    f"{what}, which is trained",
                    hint="an optimizer updates parameters; set requires_grad = False for others",
                    span=site,
                )
            if value.type != old.type:
                raise TraceError(
                    f"{what} to a value of another type",
                    expected=old.type,
                    found=value.type,
                    hint="cast or reshape it; the array is updated in place",
                    span=site,
                )
            if found.setdefault(old.atom, value) is not value:
                raise TraceError(f"{what}, and the same array under another name", span=site)
            model.settable()[name] = array
        return found


def with_mutations(body: Block, assigned: Mapping[Expr, Value], site: Span | None) -> Block:
    """Return a body that writes arrays at its end. What it reads of them are copies, so that
    results, other values and gradients see the arrays as they were before.
    """
    if not assigned:
        return body
    builder = BlockBuilder()
    old = {
        array: builder.emit(Call(op.copy, (array,)), type=value.type, span=site)
        for array, value in assigned.items()
    }
    body = substitute(body, old)
    for binding in body.bindings:
        builder.append(binding)
    for array, value in assigned.items():
        new = old.get(value.atom, value.atom)
        builder.emit(Call(op.assign, (array, new)), type=TupleType(()), span=site)
    return builder.finish(body.result)


PROGRAMS = 1024
"""Signatures of which a traced function remembers the programs."""


class Traced:
    """A function that is traced; what `trace` returns. As a method it binds to its model like any
    function.

    Attributes
    ----------
    function: the Python function. name: what it is called. programs: one `Program` per input
    signature seen.
    given: the parameters that a caller gives: of a method, all but the model.

    >>> square = meta.model.trace(lambda x: x * x)
    >>> isinstance(square, meta.model.Traced), square(meta.array([3.0])).tolist()
    (True, [9.0])
    >>> str(square.program(meta.ones(2)).module.main.result_type)
    'float32[2]'
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.owner: Any = None
        self.programs: dict[Any, Program] = {}
        self.signature = _signature(function)
        self.given = self.signature
        self.name: str = getattr(function, "__qualname__", type(function).__name__)
        # Not the attributes of an object that can be called.
        functools.update_wrapper(self, function, updated=())

    def __get__(self, instance: Any, _: type | None = None) -> Traced:
        if instance is None:
            return self
        if not isinstance(instance, Model):
            raise ArgumentError(
                "a traced method belongs to a meta.Model",
                found=f"{type(instance).__name__}.{self.function.__name__}",
            )
        bound = Traced.__new__(Traced)
        bound.__dict__.update(self.__dict__)
        bound.owner = instance
        bound.given = instance.call_signature() or self.signature.replace(
            parameters=list(self.signature.parameters.values())[1:]
        )
        # The model has the programs, and these do not refer to it: a model that is dropped is freed
        # at once, with its memory.
        bound.programs = vars(instance).setdefault("_programs", {}).setdefault(self.function, {})
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        handler = current()
        if isinstance(handler, Trace):
            if self.owner is not None and is_sharded(self.owner):
                return self._inlined(handler, args, kwargs)
            return self.function(*self._with_owner(args), **kwargs)
        if not isinstance(handler, EagerCasts):
            return interpret(self.program(*args, **kwargs), *args, **kwargs)
        # The casts are those of the program: its calls are run as they are written.
        program = self._program(args, kwargs, handler.half)
        with use(None):
            return interpret(program, *args, **kwargs)

    def _inlined(self, outer: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of the program on parts, as code of a trace."""
        program = self.program_on_types(outer.device, *args, **kwargs)
        inputs = (*self.leaves(*args, **kwargs), *program.arrays)
        atoms = [outer.lift(v).atom for v in inputs]
        return program.convention.unflatten(outer.inline(program.module, atoms))

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """Return the program for arguments of this signature, tracing it if it is new.

        A `TensorType` stands for an array, and may have symbolic dimensions.
        The signature is: structure of the arguments, shape, dtype and device of each array, Python
        values, whether dtypes are strict, and for a model its parameters, its plain Python
        attributes and whether it is in train mode.
        """
        return self._program(args, kwargs, None)

    def _program(self, args: tuple[Any, ...], kwargs: dict[str, Any], half: str | None) -> Program:
        """Return the program; with ``half``, that of a block of mixed precision, with its casts."""
        if self.owner is not None:
            self.owner.require_callable()
        arguments = self._bind(args, kwargs)
        leaves, structure = tree.flatten(arguments)
        given = [a if isinstance(a, TensorType) else as_array(a) for a in leaves]
        arrays = [a for a in given if isinstance(a, ndarray)]
        key = (
            tuple(a.key if isinstance(a, ndarray) else a for a in given),
            tree.fingerprint(structure),
            None if self.owner is None else self.owner.signature(),
            config.get("META_STRICT_DTYPES"),
            half,
        )
        found = self.programs.get(key)
        if found is None:
            trace = Trace(arrays[0].device if arrays else self._device())
            trace.before_call = None if half is None else traced_casts(half)
            types = [array_type(a.key) if isinstance(a, ndarray) else a for a in given]
            found = self._trace(trace, types, structure)
            bounded_insert(self.programs, key, found, PROGRAMS)
        return found

    def program_on_types(self, device: Device, *args: Any, **kwargs: Any) -> Program:
        """Trace anew, for arguments whose arrays may be symbols of another trace; only their types
        are used.
        """
        leaves, structure = tree.flatten(self._bind(args, kwargs))
        types = [v.type if isinstance(v, Value) else array_type(as_array(v).key) for v in leaves]
        return self._trace(Trace(device), types, structure)

    def leaves(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the arrays among arguments, in the order of the program's inputs."""
        return tree.flatten(self._bind(args, kwargs))[0]

    def _device(self) -> Device:
        """Return where a program without array arguments runs."""
        arrays = [] if self.owner is None else list(self.owner.state().values())
        return arrays[0].device if arrays else CPU

    def _with_owner(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args if self.owner is None else (self.owner, *args)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        site = python_span(self.function)
        return bind(self.name, self.given, args, kwargs, site)

    def _trace(self, trace: Trace, types: Sequence[Type], structure: Any) -> Program:
        with full_shapes_while_traced(self.owner) as whole:
            program = self._as_written(trace, types, structure)
        if not whole:
            return program
        module = shard_program(program.module, program.arrays, trace.device)
        return replace(program, module=module)

    def _as_written(self, trace: Trace, types: Sequence[Type], structure: Any) -> Program:
        trace.promotes = True
        inputs, symbols = [], []
        for name, type_ in zip(tree.leaf_names(structure), types, strict=True):
            var, symbol = trace.parameter(type_, name)
            inputs.append(var)
            symbols.append(symbol)
        state: dict[str, ndarray] = {} if self.owner is None else self.owner.state()
        params = []
        for name, array in state.items():
            require_values(array)
            var, symbol = trace.parameter(array_type(array.key), name)
            trace.bind(array, symbol)
            params.append((var, array))
        given = tree.unflatten(structure, symbols)
        run = functools.partial(trace.run, self._call, given)
        again = functools.partial(BlockTrace(trace).run, self._call, given)
        own, site = BufferMutation(self.owner), python_span(self.function)
        with own.restored():
            result = refuse_host_rng(run, again, self.function, self.owner)
            assigned = own.collect(trace, site)
            self._check_no_leak()
        leaves, out_structure = tree.flatten(result)
        body = trace.finish(tuple(leaves) if out_structure is not tree.LEAF else leaves[0])
        body = with_mutations(body, assigned, site)
        free = set(free_vars(body))
        used = [(v, a) for v, a in params if v in free]
        main = Function((*inputs, *(v for v, _ in used)), body, type_of(body.result))
        module = Module({"main": main, **trace.functions}, trace.types)
        convention = Convention(
            self.name,
            self.given,
            structure,
            out_structure,
            python_span(self.function),
        )
        steady = self.owner is not None and not self.owner.training
        arrays = tuple(a for _, a in used)
        closed_over = {c: ClosureConstant(name, site) for c, name in trace.closed_over.items()}
        return Program(module, arrays, convention, steady, closed_over)

    def _call(self, arguments: dict[str, Any]) -> Any:
        bound = inspect.BoundArguments(self.given, arguments)
        return self.function(*self._with_owner(bound.args), **bound.kwargs)

    def _check_no_leak(self) -> None:
        """A symbol kept in an attribute would be met again outside this trace."""
        for path, value in () if self.owner is None else self.owner.attributes():
            if isinstance(value, Value):
                raise TraceError(
                    f"the traced code stores a traced value in the attribute {path!r}",
                    hint="return it, or write it into an array attribute with an in-place operator",
                    span=python_span(self.function),
                )

    def __repr__(self) -> str:
        return f"<traced {self.name}, {len(self.programs)} programs>"


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's parameters; ArgumentError for what has none that are known, and for an
    object whose attributes could change.
    """
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    found = python_function(inner)
    if found not in (None, inner) and not isinstance(inner, Op | type):
        raise ArgumentError(
            "trace is given a function: a program would not follow the attributes of an object",
            found=type(inner).__name__,
            hint="a meta.Model, whose forward is traced",
        )
    try:
        return inspect.signature(function)
    except TypeError:
        raise ArgumentError("trace is given a function", found=repr(function)) from None
    except ValueError:
        raise ArgumentError(
            "the parameters of this function are not known, as it is not written in Python",
            found=repr(function),
            hint="call it in a function of your own, and trace that",
        ) from None


def trace(function: Callable[..., Any]) -> Traced:
    """Trace a function or a model's method: a decorator.

    The function takes and returns arrays, and tuples, lists and dicts of them; Python values among
    the arguments are part of the signature. Arrays that it closes over become constants. It may
    call other traced functions and models. What depends on the values of arrays cannot be decided
    in Python: such code raises TraceError.

    >>> @meta.model.trace
    ... def double(x):
    ...     return x + x
    >>> double(meta.ones(3)).tolist(), len(double.program(meta.ones(3)).module.main.body.bindings)
    ([2.0, 2.0, 2.0], 1)
    """
    return Traced(function)
