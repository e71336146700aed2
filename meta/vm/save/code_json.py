"""`Code` as JSON and back: instructions by the names of their classes and fields.

A new instruction needs nothing here; a field of a new kind needs a reader in `_READERS`. A change
of what is written gets a new `VERSION`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import torch

from meta.base.errors import FormatError, IRError
from meta.base.source import Span
from meta.ir import PRIMITIVES, TensorType, parse_literal, parse_type
from meta.ir.literals import literal_text
from meta.vm.compiler import bytecode
from meta.vm.compiler.bytecode import Instruction, Setting, Terminator
from meta.vm.compiler.code import Code, FunctionCode, FusedRef, Kernel, KernelRef
from meta.vm.compiler.code_analysis import verify_code
from meta.vm.eager.launch_checks import Bounds

VERSION = 8
MAX_REGISTERS = 1 << 24
"""More are refused before memory is allocated for them."""
_MAX_NESTING = 64
_KEYS = (
    *("version", "entry", "params", "result", "functions", "constants", "kernels", "dims"),
    "prepared",
)


INSTRUCTIONS = {
    name: kind
    for name, kind in vars(bytecode).items()
    if isinstance(kind, type)
    and issubclass(kind, Instruction)
    and kind not in (Instruction, Setting, Terminator)
}


def code_to_json(code: Code) -> dict[str, Any]:
    """Return a program as plain data. Its constant tensors are kept elsewhere: `constant_name`."""
    return {
        "version": VERSION,
        "entry": code.entry,
        "params": [[name, str(type_)] for name, type_ in code.params],
        "result": str(code.result),
        "functions": {
            name: {
                "params": function.params,
                "registers": function.registers,
                "blocks": [[_instruction_json(i) for i in block] for block in function.blocks],
            }
            for name, function in code.functions.items()
        },
        "constants": [
            {"tensor": constant_name(i)}
            if isinstance(c, torch.Tensor)
            else {"literal": literal_text(c)}
            for i, c in enumerate(code.constants)
        ],
        "kernels": list(map(_kernel_json, code.kernels)),
        "dims": list(map(list, code.dims)),
        "prepared": code.prepared,
    }


def constant_name(number: int) -> str:
    """Return the name under which a constant tensor is kept."""
    return f"code.{number}"


def _instruction_json(instruction: Instruction) -> list[Any]:
    values = (getattr(instruction, f.name) for f in dataclasses.fields(instruction))
    return [type(instruction).__name__, *map(_plain, values)]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(map(_plain, value))
    if isinstance(value, Span):
        return [value.file, value.line]
    if isinstance(value, Bounds):
        return list(dataclasses.astuple(value))
    return str(value) if isinstance(value, TensorType) else value


def _kernel_json(kernel: Kernel) -> dict[str, Any]:
    if isinstance(kernel, FusedRef):
        return {"dialect": kernel.dialect, "function": kernel.function}
    found = {"operator": kernel.operator, "args": list(map(_argument_json, kernel.args))}
    return {**found, "fills": True} if kernel.fills else found


def _argument_json(argument: Any) -> dict[str, Any]:
    if isinstance(argument, TensorType):
        return {"type": str(argument)}
    if isinstance(argument, tuple) and any(isinstance(a, TensorType) for a in argument):
        return {"types": list(map(str, argument))}
    return {"literal": literal_text(argument)}


def code_from_json(document: Any, tensors: Mapping[str, torch.Tensor]) -> Code:
    """Return the program that `code_to_json` wrote.

    ``tensors``: the constants. Raises FormatError, naming the place, for anything that is not of
    this form, for numbers of registers, blocks, constants and kernels that are not there, and for
    code that the machine cannot run.
    """
    code = _Reader(tensors).code(document)
    try:
        verify_code(code)
    except IRError as error:
        raise FormatError(f"this is not as it was saved: {error.what}", found=error.found) from None
    return code


class _Reader:
    """Reads one document. Every method gets a value and the path to it."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.types: dict[str, Any] = {}

    def fail(self, path: str, found: Any, expected: object) -> NoReturn:
        shown = repr(found)
        shown = shown if len(shown) < 80 else f"{shown[:80]}..."
        raise FormatError(f"{path}: this is not as it was saved", expected=expected, found=shown)

    def object(self, value: Any, path: str, *keys: str) -> list[Any]:
        """Return the values of exactly these keys."""
        if not isinstance(value, dict) or set(value) != set(keys):
            self.fail(path, value, f"an object with {', '.join(keys)}")
        return [value[key] for key in keys]

    def array(self, value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            self.fail(path, value, "an array")
        return value

    def row(self, value: Any, path: str, count: int, what: str) -> list[Any]:
        if not isinstance(value, list) or len(value) != count:
            self.fail(path, value, what)
        return value

    def each(self, read: Callable[[Any, str], Any], value: Any, path: str) -> tuple[Any, ...]:
        """Return the elements of an array, each read with its path."""
        return tuple([read(v, f"{path}[{i}]") for i, v in enumerate(self.array(value, path))])

    def string(self, value: Any, path: str) -> str:
        if not isinstance(value, str):
            self.fail(path, value, "a string")
        return value

    def number(self, value: Any, path: str, least: int = 0, limit: int = 1 << 62) -> int:
        if type(value) is not int or not least <= value < limit:
            self.fail(path, value, f"an int, {least} <= int < {limit}")
        return value

    def optional(self, value: Any, path: str, *limits: int) -> int | None:
        return None if value is None else self.number(value, path, *limits)

    def tensor_type(self, value: Any, path: str) -> TensorType:
        found = self.type(value, path)
        if not isinstance(found, TensorType):
            self.fail(path, value, "the type of a tensor")
        return found

    def type(self, value: Any, path: str) -> Any:
        text = self.string(value, path)
        if text not in self.types:
            try:
                self.types[text] = parse_type(text)
            except IRError:
                self.fail(path, value, "a type")
        return self.types[text]

    def literal(self, value: Any, path: str) -> Any:
        try:
            return parse_literal(self.string(value, path))
        except IRError:
            self.fail(path, value, "a literal")

    # Programs.

    def code(self, document: Any) -> Code:
        if isinstance(document, dict) and document.get("version") != VERSION:
            raise FormatError(
                "this program was compiled for another version of the machine",
                expected=VERSION,
                found=document.get("version"),
                hint="compile and save it once more",
            )
        found = self.object(document, "code", *_KEYS)
        _, entry, params, result, functions, constants, kernels, dims, prepared = found
        if not isinstance(functions, dict) or entry not in functions:
            self.fail("code.entry", entry, "the name of a function")
        self.constants = self.each(self.constant, constants, "code.constants")
        self.kernels = self.each(self.kernel, kernels, "code.kernels")
        self.names = set(functions)
        code = Code(
            {name: self.function(f, f"code.functions[{name!r}]") for name, f in functions.items()},
            entry,
            self.each(self.param, params, "code.params"),
            self.type(result, "code.result"),
            self.constants,
            self.kernels,
            self.each(self.range, dims, "code.dims"),
            self.number(prepared, "code.prepared", 0, len(params) + 1),
        )
        if code.functions[entry].params != len(code.params):
            self.fail("code.params", params, f"{code.functions[entry].params} parameters")
        return code

    def param(self, value: Any, path: str) -> tuple[str, TensorType]:
        name, type_ = self.row(value, path, 2, "a name and a type")
        return self.string(name, path), self.tensor_type(type_, path)

    def range(self, value: Any, path: str) -> tuple[str, int, int | None]:
        name, least, most = self.row(value, path, 3, "a name, the least and the largest extent")
        low = self.number(least, path, 1)
        return self.string(name, path), low, self.optional(most, path, low)

    def constant(self, value: Any, path: str) -> Any:
        if isinstance(value, dict) and "tensor" in value:
            (name,) = self.object(value, path, "tensor")
            if not isinstance(name, str) or name not in self.tensors:
                self.fail(path, name, "a tensor of the constants' file")
            return self.tensors[name]
        (text,) = self.object(value, path, "literal")
        number = self.literal(text, path)
        if not isinstance(number, bool | int | float):
            self.fail(path, text, "a number")
        return number

    def kernel(self, value: Any, path: str) -> Kernel:
        if isinstance(value, dict) and "function" in value:
            dialect, function = self.object(value, path, "dialect", "function")
            return FusedRef(self.string(dialect, path), self.string(function, path))
        fills = isinstance(value, dict) and value.get("fills") is True
        operator, args, *_ = self.object(value, path, "operator", "args", *["fills"] * fills)
        read = self.each(self.argument, args, f"{path}.args")
        return KernelRef(self.string(operator, path), read, fills)

    def argument(self, value: Any, path: str) -> Any:
        match value:
            case {"type": text}:
                return self.tensor_type(text, path)
            case {"types": texts}:
                return tuple(self.tensor_type(t, path) for t in self.array(texts, path))
        (text,) = self.object(value, path, "literal")
        return self.literal(text, path)

    def function(self, value: Any, path: str) -> FunctionCode:
        params, registers, blocks = self.object(value, path, "params", "registers", "blocks")
        self.registers = self.number(registers, f"{path}.registers", 0, MAX_REGISTERS)
        self.blocks = len(self.array(blocks, f"{path}.blocks"))
        read = self.each(partial(self.each, self.instruction), blocks, f"{path}.blocks")
        limit = self.registers + 1
        return FunctionCode(self.number(params, path, 0, limit), self.registers, read)

    def instruction(self, value: Any, path: str) -> Instruction:
        values = self.array(value, path)
        kind = INSTRUCTIONS.get(values[0]) if values and isinstance(values[0], str) else None
        if kind is None:
            self.fail(path, value, "an instruction")
        fields = dataclasses.fields(kind)
        if len(values) != len(fields) + 1:
            self.fail(path, value, f"{kind.__name__} of {len(fields)} fields")
        return kind(
            *[
                _READERS[str(field.type)](self, v, f"{path}.{field.name}")
                for field, v in zip(fields, values[1:], strict=True)
            ]
        )

    # Fields of instructions.

    def register(self, value: Any, path: str) -> int:
        return self.number(value, path, 0, self.registers)

    def operand(self, value: Any, path: str, depth: int = 0) -> Any:
        if not isinstance(value, list):
            return self.register(value, path)
        if depth > _MAX_NESTING:
            self.fail(path, value, f"tuples nested at most {_MAX_NESTING} deep")
        return tuple(self.operand(v, path, depth + 1) for v in value)

    def operands(self, value: Any, path: str) -> Any:
        return self.operand(self.array(value, path), path)

    def optional_register(self, value: Any, path: str) -> int | None:
        return self.optional(value, path, 0, self.registers)

    def register_list(self, value: Any, path: str) -> tuple[int, ...]:
        return tuple(self.register(v, path) for v in self.array(value, path))

    def callee(self, value: Any, path: str) -> str | int:
        read = self.function_name if isinstance(value, str) else self.register
        return read(value, path)

    def function_name(self, value: Any, path: str) -> str:
        if value not in self.names:
            self.fail(path, value, "the name of a function")
        return self.string(value, path)

    def primitive(self, value: Any, path: str) -> str:
        if not isinstance(value, str) or value not in PRIMITIVES:
            self.fail(path, value, "the name of a primitive")
        return value

    def details(self, value: Any, path: str) -> tuple[str | int, ...]:
        if any(type(v) not in (str, int) for v in self.array(value, path)):
            self.fail(path, value, "names and numbers")
        return tuple(value)

    def flag(self, value: Any, path: str) -> bool:
        if not isinstance(value, bool):
            self.fail(path, value, "true or false")
        return value

    def span(self, value: Any, path: str) -> Span | None:
        if value is None:
            return None
        file, line = self.row(value, path, 2, "a file and a line")
        return Span(self.string(file, path), self.number(line, path))

    def bounds(self, value: Any, path: str) -> Bounds:
        row = self.row(value, path, len(dataclasses.fields(Bounds)), "the bounds of indices")
        op, argument, into = (self.string(name, path) for name in row[:3])
        low, high, also, axis, position, ordered, nonzero = row[3:]
        limit = 1 << 62
        return Bounds(
            *(op, argument, into, self.optional(low, path, -limit), self.number(high, path)),
            *(self.optional(also, path, -limit), self.optional(axis, path, 0, 64)),
            *(self.number(position, path), self.flag(ordered, path)),
            nonzero=self.flag(nonzero, path),
        )


_READERS: dict[str, Callable[[_Reader, Any, str], Any]] = {
    "Register": _Reader.register,
    "Register | None": _Reader.optional_register,
    "Operand": _Reader.operand,
    "tuple[Register, ...]": _Reader.register_list,
    "tuple[Operand, ...]": _Reader.operands,
    "TensorType": _Reader.tensor_type,
    "str": _Reader.function_name,
    "str | Register": _Reader.callee,
    "PrimitiveName": _Reader.primitive,
    "AxisName": _Reader.string,
    "Details": _Reader.details,
    "bool": _Reader.flag,
    "Bounds": _Reader.bounds,
    "Span | None": _Reader.span,
    "ConstantNumber": lambda reader, v, path: reader.number(v, path, 0, len(reader.constants)),
    "KernelNumber": lambda reader, v, path: reader.number(v, path, 0, len(reader.kernels)),
    "BlockNumber": lambda reader, v, path: reader.number(v, path, 0, reader.blocks),
    "Count": _Reader.number,
}
"""By the annotation of a field."""
