"""Tracing: running Python code on symbols, so that every operator call becomes a binding of a
program.

Used by passes that write code by running rules (autodiff), by models and by importers. A `Symbol`
looks like an array that has a type but no values; data values, references and functions are plain
`Value`s, which code can only hand on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meta.base.call_context import current, use
from meta.base.device import CPU, Device
from meta.base.dtype import NAMED, DType
from meta.base.errors import ArgumentError, TraceError, TypeInferError
from meta.base.methods import Methods
from meta.base.number import Size
from meta.base.source import Span, user_span
from meta.ir.builder import BlockBuilder
from meta.ir.expr import (
    Block,
    Call,
    Constant,
    Function,
    Module,
    Tuple,
    TupleGetItem,
    TypeDefinition,
    Var,
    renamed_data,
)
from meta.ir.names import Names
from meta.ir.node import Expr, type_of
from meta.ir.types import DataType, TensorType, TupleType, Type
from meta.ir.visit import rename_globals, substitute, with_fresh_vars
from meta.op.core.call import View, map_tensors, written_args
from meta.op.core.op import Op
from meta.op.core.promotion import cast_together, common_dtype, with_complex
from meta.runtime import trace_checks
from meta.runtime.ndarray import as_array, ndarray


class Value:
    """A value of a program under construction: an atom and its type.

    A tensor is a `Symbol`. What is no more than this, a data value, a reference or a function, is
    taken apart by bindings that are emitted, and is no argument of an operator.
    """

    __slots__ = ("atom", "trace", "type")
    type: Any
    """A `Type`; of a `Symbol` a `TensorType`."""

    def __init__(self, trace: Trace, atom: Expr, type_: Type) -> None:
        self.trace, self.atom, self.type = trace, atom, type_

    def __repr__(self) -> str:
        return f"<value {self.type}>"

    def __bool__(self) -> bool:
        raise TraceError(
            "Python decides here (if, while, and, or, not) by a traced value, which is not known "
            "while tracing",
            found=repr(self),
            hint="emit is_variant and an If for a data value, read_ref for a reference",
        )


class Symbol(Value, Methods):
    """A tensor of a program under construction."""

    __slots__ = ()
    __array_priority__ = 2000
    type: TensorType

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extents, outermost axis first."""
        return self.type.shape

    @property
    def known_shape(self) -> tuple[Any, ...]:
        """The shape, as for a rule that is given a type; TypeInferError if an extent is unknown."""
        return self.type.known_shape

    @property
    def dtype(self) -> DType:
        """Canonical name of the element type; see `DType`."""
        return NAMED[self.type.dtype]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.type.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        size: Any = self.type.size
        return Size(size, self.shape) if isinstance(size, int) else size

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentError("len() of a 0-d array")
        return self.type.static_shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<symbol {self.type}>"

    def __bool__(self) -> bool:
        raise TraceError(
            "Python decides here (if, while, and, or, not) by a traced value, which is not known "
            "while tracing",
            found=f"a symbol of type {self.type}",
            hint="meta.cond for an if, meta.while_loop or meta.scan for a loop, meta.where to "
            "choose by element, & and | for and and or",
        )

    def _no_value(self, *_: Any, **__: Any) -> Any:
        raise TraceError(
            "Python code asked for the number in a traced value, which has none",
            found=f"a symbol of type {self.type}",
            hint="compute with operators; let meta.cond, meta.while_loop, meta.scan or meta.where "
            "decide by it; or decide by shapes and Python values only",
        )

    __float__ = __int__ = __complex__ = __index__ = __array__ = _no_value
    item = numpy = torch = _no_value


class Trace:
    """A function body under construction, and the call handler that appends to it.

    Arrays met on the way become constants, unless they were `bind`-ed to a variable before.

    Attributes
    ----------
    functions: the global functions that the body calls, by name.
    types: the data types of its values, by name; add one with `define`.
    device: where the inputs are, so where new arrays should be made.
    promotes: whether the code that is traced is a user's, whose operands are promoted.
    closed_over: by constant, the name of the array, or torch tensor, that requires a gradient and
    became it.
    """

    promotes = False

    def __init__(self, device: Device = CPU) -> None:
        self.builder = BlockBuilder()
        self.device = device
        self.functions: dict[str, Function] = {}
        self.types: dict[str, TypeDefinition] = {}
        self.global_names = Names()
        self.global_names.unique("main")
        # The user's line for new bindings; a pass gives that of the code which it derives from.
        self.site: Callable[[], Span | None] = user_span
        # Gives every call other arguments, in blocks and functions begun meanwhile too; see
        # `meta.amp.autocast_scope`.
        self.before_call: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]] | None = None
        # id -> (array, symbol): the array is kept so that its id is not given to another one.
        self._arrays: dict[int, tuple[ndarray, Symbol]] = {}
        # What stands for arrays that are trained; a cast of these is not to look at their values.
        self.trained: set[Expr] = set()
        # What a user would write to another array through, elsewhere; see
        # `meta.runtime.view_copies`.
        self.copied: set[Expr] = set()
        self.closed_over: dict[Constant, str] = {}

    @property
    def casts(self) -> bool:
        """Whether the code that is traced is in a block of mixed precision."""
        return self.before_call is not None

    def define(self, definition: TypeDefinition) -> DataType:
        """Add a data type and return it; TraceError if its name is that of a different one."""
        known = self.types.setdefault(definition.name, definition)
        if known != definition:
            raise TraceError(
                f"two data types of one program have the name {definition.name!r}",
                expected=known,
                found=definition,
                hint="rename one of them",
            )
        return DataType(definition.name)

    def parameter(self, type_: Type, name: str) -> tuple[Var, Any]:
        """Return a new function parameter and what stands for it, as `unpack` returns it."""
        var = Var(name, type_)
        return var, self.unpack(var, type_)

    def bind(self, array: ndarray, symbol: Symbol | None) -> None:
        """Let ``symbol`` stand for ``array`` wherever the traced code uses it; None: no symbol."""
        if symbol is None:
            self._arrays.pop(id(array), None)
            return
        self._arrays[id(array)] = (array, symbol)
        if array.requires_grad:
            self.trained.add(symbol.atom)

    def bound(self, array: ndarray) -> Symbol | None:
        """Return what stands for an array in this code, if something was bound to it."""
        return self._arrays.get(id(array), (None, None))[1]

    def is_bound(self, array: ndarray) -> bool:
        """Whether an array stands for an argument of the program, not for a constant."""
        found = self._arrays.get(id(array))
        return found is not None and isinstance(found[1].atom, Var)

    def constants_with_gradient(self) -> list[ndarray]:
        """Return the arrays that became constants and lead to a gradient, in the order of use."""
        pairs = self._arrays.values()
        return [a for a, symbol in pairs if a.tracked and isinstance(symbol.atom, Constant)]

    def lift(self, value: Any) -> Value:
        """Return a value, or the symbol of a tensor-like object; TraceError for a value of another
        trace.
        """
        if isinstance(value, Value):
            if value.trace is not self:
                raise TraceError(
                    "a traced value is used outside the function that it was traced in",
                    found=repr(value),
                    hint="pass it as an argument, and return what is needed outside",
                )
            return value
        array = as_array(value)
        if id(array) not in self._arrays:
            # A copy: the program does not change when the user writes to the array later.
            constant = Constant(array.tensor.clone())
            if getattr(value, "requires_grad", False):
                self.closed_over[constant] = f"{array.name or 'an array'} of shape {array.shape}"
            self._arrays[id(array)] = (array, Symbol(self, constant, constant.type))
        return self._arrays[id(array)][1]

    def lift_tensor(self, value: Any) -> Symbol:
        """Return the symbol of a tensor-like object; TypeInferError for another kind of value."""
        symbol = self.lift(value)
        if not isinstance(symbol, Symbol):
            raise TypeInferError(
                "an operator is given a value that is no tensor",
                expected="a tensor",
                found=symbol.type,
            )
        return symbol

    def __call__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = with_complex(op, args, kwargs)
        bound = op.schema.bind(args, kwargs, self.lift_tensor)
        if op.name == "random_key" and (key := self.draw_key()) is not None:
            return key
        if op.random:
            bound = self._with_key(op, bound)
        if self.before_call is not None:
            bound = self.before_call(op, bound)
        if self.promotes and op.promotes:
            common = common_dtype(op, bound)
            bound = bound if common is None else cast_together(op, bound, common)
        written = written_args(op, bound)
        for symbol in written:
            if isinstance(symbol.atom, Constant):
                raise TraceError(
                    f"{op.name} writes to an array that the traced code only closes over",
                    hint="make it an attribute of the model, or an argument",
                )
            if symbol.atom in self.copied:
                raise TraceError(
                    f"{op.name} would write to a copy of a part of an array, or of another order "
                    "of its axes: that array would not change, as it does in NumPy and PyTorch",
                    found=symbol,
                    hint="write to the array itself; or to x.clone() if the copy is what you want",
                )
        call = op.call_values(map_tensors(op, bound, lambda s: s.type), CPU)
        if call.callee is None:
            return call.out
        type_ = op.infer(tuple(call.args))
        atoms = tuple(_atom_argument(a) for a in map_tensors(op, bound, lambda s: s.atom))
        result = self.emit(Call(op, atoms), type_)
        if self.promotes and op.view_elsewhere:
            self.copied.update(s.atom for s in (result if isinstance(result, tuple) else (result,)))
        elif isinstance(call.out, View) and atoms[call.out.slot] in self.copied:
            self.copied.add(result.atom)
        own = () if isinstance(type_, TupleType) and not type_.fields else result
        if not written:
            return result
        return (*(own if isinstance(own, tuple) else (own,)), *written)

    def draw_key(self) -> Symbol | None:
        """Return the key that a random call is to use which is traced now; None if it is to draw a
        fresh one whenever it is run.
        """
        return None

    def _with_key(self, op: Op, bound: tuple[Any, ...]) -> tuple[Any, ...]:
        """Give a random call the key that it is to use, if it has none and this code has some."""
        slot = op.schema.index.get("in_states")
        if op.name == "random_key" or (slot is not None and bound[slot] is not None):
            return bound
        source = self.draw_key()
        if source is None:
            return bound
        if slot is None:
            raise TraceError(
                f"{op.name} takes no key, so it cannot draw the same numbers again",
                hint="draw outside of the checkpointed block, and pass it the numbers",
            )
        return (*bound[:slot], source, *bound[slot + 1 :])

    def emit(self, value: Expr, type_: Type) -> Any:
        """Append a binding; return what stands for its variable, as `unpack` does."""
        var = self.builder.emit(value, type=type_, span=self.site())
        return self.unpack(var, type_)

    def unpack(self, atom: Expr, type_: Type) -> Any:
        """Return the symbol of an atom, or a `Value` if it is no tensor. A tuple-typed one is taken
        apart by projections that are emitted.
        """
        if isinstance(type_, TupleType):
            return tuple(self.emit(TupleGetItem(atom, i), f) for i, f in enumerate(type_.fields))
        if isinstance(type_, TensorType):
            return Symbol(self, atom, type_)
        return Value(self, atom, type_)

    def inline(self, module: Module, args: Sequence[Expr]) -> Any:
        """Append the body of a module's main applied to atoms; return the symbols of its result.

        The other functions of the module come along, under names that are free here, and its data
        types, under such names if one is that of another data type here.
        """
        data: dict[str, str] = {}
        if any(self.types.get(n, d) != d for n, d in module.types.items()):
            free = Names((*self.types, *module.types))
            data = {n: free.unique(n) for n in module.types}
        for definition in module.types.values():
            self.define(renamed_data(definition, data))
        names = {n: self.global_names.unique(n) for n in module.functions if n != "main"}
        copies = {
            name: with_fresh_vars(rename_globals(function, names), data)
            for name, function in module.functions.items()
        }
        copy = copies.pop("main")
        self.functions |= {names[name]: function for name, function in copies.items()}
        body = substitute(copy.body, dict(zip(copy.params, args, strict=True)))
        for binding in body.bindings:
            self.builder.append(binding)
        return self.symbols(body.result)

    def symbols(self, atom: Expr) -> Any:
        """Return what stands for an atom; for a tuple a tuple, with projections where needed."""
        if isinstance(atom, Tuple):
            return tuple(self.symbols(f) for f in atom.fields)
        type_ = type_of(atom)
        if type_ is None:
            raise TraceError("an atom without a type", found=type(atom).__name__)
        return self.unpack(atom, type_)

    def run(self, function: Any, *args: Any) -> Any:
        """Run Python code under this handler."""
        with use(self):
            return function(*args)

    def finish(self, result: Any) -> Block:
        """Close the body. ``result`` is a value or a (nested) tuple of values and arrays."""
        return self.builder.finish(self.atom(result))

    def atom(self, value: Any) -> Expr:
        """Return the atom of a value, an array or a nested tuple of them."""
        if isinstance(value, tuple | list):
            return Tuple(tuple(self.atom(v) for v in value))
        return self.lift(value).atom


class BlockTrace(Trace):
    """A block of an `If` under construction, in which the values of the code around are known."""

    def __init__(self, outer: Trace) -> None:
        super().__init__(outer.device)
        self.outer = outer
        self.functions, self.global_names = outer.functions, outer.global_names
        self.types = outer.types
        self.before_call, self.trained = outer.before_call, outer.trained
        self.copied = outer.copied
        self.promotes = outer.promotes

    def is_bound(self, array: ndarray) -> bool:
        """Whether an array stands for an argument, here or in the code around."""
        return super().is_bound(array) or self.outer.is_bound(array)

    def lift(self, value: Any) -> Value:
        """Return a value of here or of the code around, or the symbol of a tensor-like object."""
        if isinstance(value, Value) and value.trace is self:
            return value
        if self._arrays and not isinstance(value, Value):
            symbol = self.bound(as_array(value))
            if symbol is not None:
                return symbol
        return self.outer.lift(value)

    def draw_key(self) -> Symbol | None:
        """Return a key of the code around."""
        return self.outer.draw_key()


class FunctionTrace(BlockTrace):
    """A global function under construction; what it uses of the code around becomes a parameter.

    Attributes
    ----------
    captured: by variable of the code around, the parameter that stands for it.
    """

    def __init__(self, outer: Trace) -> None:
        super().__init__(outer)
        self.captured: dict[Var, Value] = {}

    def lift(self, value: Any) -> Value:
        """Return a value of here or the symbol of a tensor-like object; for a value of the code
        around, a parameter.
        """
        found = super().lift(value)
        if found.trace is self or not isinstance(found.atom, Var):
            return found
        if found.atom not in self.captured:
            var, self.captured[found.atom] = self.parameter(found.type, found.atom.name)
            if found.atom in self.trained:
                self.trained.add(var)
            if found.atom in self.copied:
                self.copied.add(var)
        return self.captured[found.atom]

    def draw_key(self) -> Symbol | None:
        """Return None, unless keys are wanted: this code may run any number of times with one."""
        if self.outer.draw_key() is not None:
            raise TraceError(
                "a function of a checkpointed block draws random numbers",
                hint="draw outside of the block, and pass it the numbers",
            )
        return None


def _current_trace() -> Trace | None:
    handler = current()
    return handler if isinstance(handler, Trace) else None


trace_checks.current_trace = _current_trace


def _atom_argument(value: Any) -> Any:
    """Write a tuple of tensors as the IR's tuple of atoms."""
    if isinstance(value, tuple) and value and all(isinstance(v, Expr) for v in value):
        return Tuple(value)
    return value
