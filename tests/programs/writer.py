"""Random well-typed programs: a list of steps in, a module out.

A step is a name and three numbers. Operators are rows of `operators`; the steps here make control
flow, and take the steps that follow as their body. A step for which there is no operand is left
out, so that any part of a list of steps is a program too, and a failing one shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import meta
from meta.ir import (
    Block,
    Call,
    ConstructorDefinition,
    DataType,
    Function,
    FuncType,
    GlobalVar,
    If,
    Module,
    Primitive,
    RefType,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    TypeDefinition,
    Var,
    type_of,
)
from meta.ir.builder import BlockBuilder
from meta.op.core.tracing import Symbol, Trace
from tests.programs.operators import Row
from tests.programs.pool import Missing, Pool

Step = tuple[str, int, int, int]
MAX_DEPTH = 2
"""Bodies in bodies: calls in loops in loops take long."""
CONTROL = ("if", "closure", "function", "loop", "tuple", "alias")
HELD = ("make_ref", "read_ref", "write_ref", "construct", "match")
"""Steps about references and data values; closures capture them, blocks use those around."""


def parameters(dtype: str) -> dict[str, TensorType]:
    """Return what main takes, by name."""
    return {
        "x": TensorType((2, 3), dtype),
        "y": TensorType((2, 3), dtype),
        "v": TensorType((3,), dtype),
        "w": TensorType((3, 2), dtype),
        "image": TensorType((1, 2, 4, 4), dtype),
        "kernel": TensorType((2, 2, 3, 3), dtype),
        "n": TensorType((3,), "int32"),
        "b": TensorType((2, 3), "bool"),
        "p": TensorType((), "bool"),
    }


def write_module(
    steps: list[Step], wanted: list[int], rows: Mapping[str, Row], dtype: str = "float32"
) -> Module:
    """Return the program of a list of steps.

    It returns the newest floating point value and, as a tuple, the ``wanted`` ones.
    """
    return _Writer(rows, dtype).module(steps, wanted)


class _Writer:
    def __init__(self, rows: Mapping[str, Row], dtype: str) -> None:
        self.rows, self.dtype = rows, dtype
        self.trace = Trace()
        self.pool = Pool(self.trace, dtype)
        self.functions: dict[str, Function] = {}
        self.depth = 0
        self.numbers = count()

    def module(self, steps: list[Step], wanted: list[int]) -> Module:
        params = []
        for name, type_ in parameters(self.dtype).items():
            var, symbol = self.trace.parameter(type_, name)
            params.append(var)
            self.pool.values.insert(0, symbol)
        left = iter(steps)
        self.trace.run(self.steps, left, len(steps))
        last = self.pool.float(0).atom
        others = tuple(self.pool.any(i).atom for i in wanted)
        body = self.trace.builder.finish(Tuple((last, Tuple(others))))
        main = Function(tuple(params), body, type_of(body.result))
        return Module({"main": main, **self.functions}, self.trace.types)

    def steps(self, left: Iterator[Step], number: int) -> None:
        for _ in range(number):
            step = next(left, None)
            if step is None:
                return
            name, i, j, k = step
            around, self.pool.picked = self.pool.picked, []
            try:
                if name in HELD:
                    values = getattr(self, f"write_{name}")(i, j, k)
                elif name in CONTROL:
                    values = self.control(name, left, i, j, k)
                else:
                    values = self.rows[name](self.pool, i, j, k)
            except Missing:
                values = []
            self.pool.add(values)
            self.pool.picked += around

    def control(self, name: str, left: Iterator[Step], i: int, j: int, k: int) -> list[Any]:
        if self.depth == MAX_DEPTH:
            raise Missing
        self.depth += 1
        try:
            values: list[Any] = getattr(self, f"write_{name}")(left, i, j, k)
        finally:
            self.depth -= 1
        return values

    def block(self, left: Iterator[Step], number: int, type_: TensorType | None) -> Block:
        """Write a block of some steps that yields its newest value of a type (any float: None)."""
        outer, outside = self.trace.builder, list(self.pool.values)
        self.trace.builder = BlockBuilder(outer.names)
        try:
            self.steps(left, number)
            fits = self.pool.is_float if type_ is None else lambda v: v.type == type_
            return self.trace.builder.finish(self.pool.of(0, fits).atom)
        finally:
            self.trace.builder, self.pool.values = outer, outside

    def write_if(self, left: Iterator[Step], i: int, j: int, k: int) -> list[Any]:
        condition = self.pool.of(i, lambda v: v.type == TensorType((), "bool"))
        type_ = self.pool.float(j).type
        blocks = [self.block(left, number, type_) for number in (k % 3, k // 3 % 3)]
        return [self.trace.emit(If(condition.atom, *blocks), type_)]

    def write_closure(self, left: Iterator[Step], i: int, j: int, k: int) -> list[Any]:
        """Bind a function of one array, which sees all values so far, and call it."""
        argument = self.argument(i)
        function = self.function(left, [argument.type], 1 + k % 3)
        callee = self.trace.builder.emit(function, function.type)
        calls = (argument, self.argument_like(argument))[: 1 + k % 2]
        return [self.call(callee, function, c) for c in calls]

    def write_function(self, left: Iterator[Step], i: int, j: int, k: int) -> list[Any]:
        """Add a function of an array, and perhaps of a reference or a data value, to the module and
        call it, once or twice.
        """
        argument = self.argument(i)
        found = [v for v in self.pool.values if not isinstance(v, Symbol)]
        held = [found[-1 - j // 2 % len(found)]] if found and j % 2 else []
        outside, self.pool.values = self.pool.values, []
        try:
            types = [argument.type, *(v.type for v in held)]
            function = self.function(left, types, 1 + k % 3)
        finally:
            self.pool.values = outside
        callee = self.named(function)
        calls = (argument, self.argument_like(argument))[: 1 + k % 2]
        return [self.call(callee, function, c, *held) for c in calls]

    def write_loop(self, left: Iterator[Step], i: int, j: int, k: int) -> list[Any]:
        """Add ``loop(n, x) = x if n <= 0 else loop(n - 1, step(x))`` to the module; call it."""
        argument = self.argument(i)
        counter = TensorType((), "int32")
        outer, outside = self.trace.builder, self.pool.values
        self.trace.builder = BlockBuilder(outer.names)
        n, n_symbol = self.trace.parameter(counter, "n")
        x, x_symbol = self.trace.parameter(argument.type, "x")
        self.pool.values = [n_symbol, x_symbol]
        type_ = FuncType((counter, argument.type), argument.type)
        loop = GlobalVar(f"loop{next(self.numbers)}", type_)
        try:
            done = n_symbol <= 0
            again = self.again(left, 1 + k % 2, n_symbol, x_symbol, loop)
            end = Block((), x)
            result = self.trace.emit(If(done.atom, end, again), argument.type)
            body = self.trace.builder.finish(result.atom)
        finally:
            self.trace.builder, self.pool.values = outer, outside
        self.functions[loop.name] = Function((n, x), body, argument.type)
        times = self.trace.lift(meta.array(j % 4, "int32"))
        return [self.trace.emit(Call(loop, (times.atom, argument.atom)), argument.type)]

    def again(
        self, left: Iterator[Step], number: int, n: Symbol, x: Symbol, loop: GlobalVar
    ) -> Block:
        outer = self.trace.builder
        self.trace.builder = BlockBuilder(outer.names)
        try:
            less = n - 1
            self.steps(left, number)
            new = self.argument_like(x)
            result = self.trace.emit(Call(loop, (less.atom, new.atom)), x.type)
            return self.trace.builder.finish(result.atom)
        finally:
            self.trace.builder = outer

    def write_tuple(self, left: Iterator[Step], i: int, j: int, k: int) -> list[Any]:
        """Bind a tuple, and a field of it."""
        values = (self.pool.any(i), self.pool.any(j))
        whole = Tuple(tuple(v.atom for v in values))
        var = self.trace.builder.emit(whole, type_of(whole))
        return [self.trace.emit(TupleGetItem(var, k % 2), values[k % 2].type)]

    def write_alias(self, left: Iterator[Step], i: int, j: int, k: int) -> list[Any]:
        """Bind a variable to another one."""
        value = self.pool.any(i)
        return [self.trace.emit(value.atom, value.type)]

    # References and data values. What they hold may be written to later, so it is no constant.

    def write_make_ref(self, i: int, j: int, k: int) -> list[Any]:
        value = self.pool.writable(i)
        return [self.trace.emit(Primitive("make_ref", (value.atom,)), RefType(value.type))]

    def write_read_ref(self, i: int, j: int, k: int) -> list[Any]:
        ref = self.pool.reference(i)
        return [self.trace.emit(Primitive("read_ref", (ref.atom,)), ref.type.value)]

    def write_write_ref(self, i: int, j: int, k: int) -> list[Any]:
        ref = self.pool.reference(i)
        type_ = ref.type.value
        value = self.pool.of(j, lambda v: v.type == type_ and self.pool.is_writable(v))
        self.trace.emit(Primitive("write_ref", (ref.atom, value.atom)), TupleType(()))
        return []

    def write_construct(self, i: int, j: int, k: int) -> list[Any]:
        """Make a value with one or two tensors of one type."""
        first = self.pool.writable(i)
        fields = (first, self.argument_like(first))[: 1 + k % 2]
        constructors = (
            ConstructorDefinition("One", (first.type,)),
            ConstructorDefinition("Two", (first.type, first.type)),
        )
        type_ = self.trace.define(TypeDefinition(f"pair of {first.type}", constructors))
        name = constructors[k % 2].name
        atoms = tuple(f.atom for f in fields)
        return [self.trace.emit(Primitive("construct", atoms, (name,), type_), type_)]

    def write_match(self, i: int, j: int, k: int) -> list[Any]:
        """Take the last tensor out of a value, whichever constructor made it."""
        value = self.pool.data(i)
        assert isinstance(value.type, DataType)
        one, two = self.trace.types[value.type.name].constructors
        (type_,) = one.fields
        assert isinstance(type_, TensorType)
        fail = Primitive("fail", (), ("no case fits",), type_)
        failed = self.inner(lambda: self.trace.emit(fail, type_))
        last = Primitive("get_field", (value.atom,), (two.name, 1), type_)
        if_two = self.inner(lambda: self.trace.emit(last, type_))
        rest = self.inner(lambda: self.choice(value, two.name, if_two, failed, type_))
        only = Primitive("get_field", (value.atom,), (one.name, 0), type_)
        if_one = self.inner(lambda: self.trace.emit(only, type_))
        return [self.choice(value, one.name, if_one, rest, type_)]

    def choice(
        self, value: Any, constructor: str, then: Block, other: Block, type_: TensorType
    ) -> Any:
        condition = Primitive("is_variant", (value.atom,), (constructor,))
        found = self.trace.emit(condition, TensorType((), "bool"))
        return self.trace.emit(If(found.atom, then, other), type_)

    def inner(self, write: Callable[[], Any]) -> Block:
        outer = self.trace.builder
        self.trace.builder = BlockBuilder(outer.names)
        try:
            return self.trace.builder.finish(write().atom)
        finally:
            self.trace.builder = outer

    # Functions.

    def argument(self, index: int) -> Symbol:
        """Pick an argument: nobody knows what a function writes to, so it is no constant."""
        return self.pool.writable(index)

    def argument_like(self, value: Symbol) -> Symbol:
        return self.pool.of(0, lambda v: v.type == value.type and self.pool.is_writable(v))

    def function(self, left: Iterator[Step], types: Sequence[Type], number: int) -> Function:
        given = [self.trace.parameter(t, name) for t, name in zip(types, "ab", strict=False)]
        outside = self.pool.values
        self.pool.values = [*outside, *(value for _, value in given)]
        try:
            body = self.block(left, number, None)
        finally:
            self.pool.values = outside
        return Function(tuple(var for var, _ in given), body, type_of(body.result))

    def named(self, function: Function) -> GlobalVar:
        name = f"f{next(self.numbers)}"
        self.functions[name] = function
        return GlobalVar(name, function.type)

    def call(self, callee: Var | GlobalVar, function: Function, *values: Any) -> Any:
        assert isinstance(function.result_type, TensorType)
        return self.trace.emit(Call(callee, tuple(v.atom for v in values)), function.result_type)
