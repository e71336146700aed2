"""`DataTypes`: the algebraic data types of a program, an IR type for each use of a generic one."""

from __future__ import annotations

from collections.abc import Mapping

from meta.frontend.relay import ast
from meta.frontend.relay.convert.types import Bindings, to_ir, unify
from meta.frontend.relay.errors import RelayError
from meta.ir import Type
from meta.ir.expr import ConstructorDefinition, TypeDefinition
from meta.ir.types import DataType
from meta.op.core.tracing import Trace

Path = tuple[str, ...]
"""Data types, each inside of the one before."""

MAX_INSIDE = 8
"""A data type may contain itself with so many other arguments; one that contains ever larger ones
of itself has no end.
"""


class DataTypes:
    """The data types of one program that is being converted; they are defined in its trace."""

    def __init__(self, definitions: Mapping[str, ast.TypeDefinition], trace: Trace) -> None:
        self._definitions, self._trace = definitions, trace
        self._made: dict[tuple[str, tuple[Type, ...]], DataType] = {}
        self._sources: dict[str, tuple[str, tuple[Type, ...]]] = {}

    def definition(self, name: str) -> ast.TypeDefinition:
        """Return a definition; RelayError if there is none."""
        found = self._definitions.get(name)
        if found is None:
            raise RelayError(f"the program does not define the data type {name}")
        return found

    def fields(self, constructor: ast.Constructor) -> tuple[ast.Type, ...]:
        """Return the declared types of a constructor's fields."""
        for found in self.definition(constructor.data_type).constructors:
            if found.name == constructor.name:
                return found.fields
        raise RelayError(f"{constructor.data_type} has no constructor {constructor.name}")

    def instance(self, name: str, args: tuple[Type, ...]) -> DataType:
        """Return the IR type of a data type with these arguments."""
        key = (name, args)
        if key not in self._made:
            self._make(key)
        return self._made[key]

    def _make(self, key: tuple[str, tuple[Type, ...]]) -> None:
        """Define a type, and those that its fields need: a list, not a recursion."""
        self._name(*key)
        todo: list[tuple[str, tuple[Type, ...], Path]] = [(*key, ())]
        while todo:
            name, args, around = todo.pop()
            if around.count(name) > MAX_INSIDE:
                raise RelayError(f"{name} contains types of itself without end")

            def inner(
                found: str, given: tuple[Type, ...], path: Path = (*around, name)
            ) -> DataType:
                if (found, given) not in self._made:
                    self._name(found, given)
                    todo.append((found, given, path))
                return self._made[found, given]

            definition = self.definition(name)
            bindings = dict(zip(definition.type_params, args, strict=True))
            constructors = []
            for c in definition.constructors:
                fields = [to_ir(f, bindings, inner) for f in c.fields]
                known = tuple(f for f in fields if f is not None)
                if len(known) != len(fields):
                    raise RelayError(f"a field of {name}.{c.name} has no known type")
                constructors.append(ConstructorDefinition(c.name, known))
            full = TypeDefinition(self._made[name, args].name, tuple(constructors))
            self._trace.define(full)

    def _name(self, name: str, args: tuple[Type, ...]) -> None:
        definition = self.definition(name)
        if definition.extern:
            raise RelayError(f"{name} is an extern type: what it consists of is not known")
        if len(definition.type_params) != len(args):
            raise RelayError(
                f"{name} has another number of type arguments",
                expected=len(definition.type_params),
                found=len(args),
            )
        text = f"{name}[{', '.join(map(str, args))}]" if args else name
        self._made[name, args] = DataType(text)
        self._sources[text] = (name, args)

    def arguments(self, name: str) -> tuple[str, tuple[Type, ...]]:
        """Return the data type and the arguments that the IR type of a name was made for."""
        return self._sources[name]

    def to_ir(self, type_: ast.Type | None, bindings: Bindings) -> Type | None:
        """See `types.to_ir`."""
        return to_ir(type_, bindings, self.instance)

    def unify(self, declared: ast.Type | None, actual: Type, bindings: Bindings) -> bool:
        """See `types.unify`."""
        return unify(declared, actual, bindings, self.arguments)
