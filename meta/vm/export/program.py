"""The C of a program: what `Code` does besides kernels, as text that ``runtime.c`` includes.

Registers are as in a listing of the code (``print(executable.code)``): ``r[3]`` is the tensor that
r3 is there. Intermediate tensors have places in the memory of a model: the storage that
`plan_memory` has planned, and for others places that are used again after their last use, each as
large as the largest that is ever in it; so extents may be those of a call.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from meta.base.dtype import FROM_TORCH
from meta.base.errors import IRError
from meta.base.source import Span
from meta.ir import Dim, SymbolicDim, TensorType
from meta.ir.dims import Quotient
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Code
from meta.vm.compiler.code_analysis import summaries
from meta.vm.compiler.output_buffers import own_outputs
from meta.vm.run.signature import Signature

DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)
"""The dtypes of a library, in the order of the header's enumeration."""
WRITTEN = (
    *(bc.LoadConstant, bc.Move, bc.GetItem, bc.AllocateStorage, bc.AllocateTensor, bc.ViewTensor),
    *(bc.Extent, bc.Check, bc.CheckIndices, bc.Invoke, bc.Release, bc.Return),
)
"""The instructions that have a form in C; others are of control flow, or of several ranks."""
ALIGNMENT = 64
"""Bytes of which the offsets of weights are multiples."""
LARGEST = 2**31 - 1
"""The largest extent of a dimension that has no largest one."""


@dataclass(frozen=True, slots=True)
class LinkedKernel:
    """A kernel in C: its function, what it returns, and which values come once more, by position.

    symbol: None for a view, which is its first tensor in the shape of the result.
    """

    text: str
    outputs: tuple[TensorType, ...]
    symbol: str | None
    repeated: tuple[int, ...]


@dataclass(slots=True)
class Weights:
    """The contents of the tensors that a library holds, each once, and where they begin."""

    contents: list[bytes] = field(default_factory=list)
    size: int = 0
    places: dict[bytes, int] = field(default_factory=dict)

    def place(self, tensor: torch.Tensor) -> int:
        """Return the offset of a tensor, which is put behind the others if it is not there."""
        content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        key = hashlib.sha256(content).digest()
        if key not in self.places:
            self.places[key] = self.size
            self.contents += [content, bytes(-len(content) % ALIGNMENT)]
            self.size += len(content) + len(self.contents[-1])
        return self.places[key]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor in the array of a register. root: in whose memory it is; output: of which result
    that is, None of none.
    """

    register: bc.Register
    type: TensorType
    root: bc.Register
    output: int | None = None


class BodyWriter:
    """Writes the one block of a program as a function of C.

    Parameters
    ----------
    code: the program. kernels: in C, in the order of the code. kept: the tensors of its parameters
    behind the inputs. weights: what the library holds; tensors that are needed are added.

    Attributes
    ----------
    places: of each place of the memory the sizes, as C, of what is there in turn. ranks: those of
    its tensors.
    """

    def __init__(
        self,
        code: Code,
        kernels: Sequence[LinkedKernel],
        kept: Sequence[torch.Tensor],
        weights: Weights,
    ) -> None:
        self.code, self.kernels, self.kept, self.weights = code, kernels, kept, weights
        (self.block,) = code.functions[code.entry].blocks
        self.registers = code.functions[code.entry].registers
        self.ranks = {0}
        self.values: dict[bc.Register, Any] = {}
        self.lines: list[str] = []
        self.places: list[list[str]] = []
        # Places that are free; and by the register that was allocated, the registers whose values
        # are in its memory.
        self.free: list[int] = []
        self.holders: dict[bc.Register, tuple[int, set[bc.Register]]] = {}
        self.outputs = own_outputs(self.block, len(code.params))
        self.extent = partial(c_extent, c_dims(name for name, *_ in code.dims))
        self.write()

    # Registers.

    def write(self) -> None:
        """Write what a run does."""
        read = {r for i in self.block for r in i.reads}
        first = len(self.code.params) - len(self.kept)
        for register, (name, type_) in enumerate(self.code.params):
            if register < first:
                self.line(f"/* r{register} = {c_comment(name)} */")
                self.define(register, type_, f"in[{register}]")
            elif register in read:
                self.line(f"/* r{register} = {c_comment(name)} */")
                self.define(register, type_, self.weight(self.kept[register - first]))
        for i in self.block:
            self.instruction(i)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def weight(self, tensor: torch.Tensor) -> str:
        return f"weights + {self.weights.place(tensor)}"

    def shape(self, type_: TensorType) -> str:
        """Return the dtype, rank and extents of a type as arguments of C."""
        extents = ", ".join(map(self.extent, type_.shape))
        known = f"(const int64_t[]){{{extents}}}" if type_.shape else "NULL"
        return f"{c_dtype(type_)}, {type_.ndim}, {known}"

    def define(
        self,
        register: bc.Register,
        type_: TensorType,
        address: str,
        of: _Tensor | None = None,
        output: int | None = None,
    ) -> None:
        """Let a register be a tensor at an address; of: in whose memory it is, if not its own."""
        made = _Tensor(register, type_, register, output)
        if of is not None:
            made = _Tensor(register, type_, of.root, of.output)
        self.set(register, made)
        self.ranks.add(type_.ndim)
        self.line(f"define(&r[{register}], {address}, {self.shape(type_)});")

    def set(self, register: bc.Register, value: Any) -> None:
        """Let a register have a value, and hold the memory of the tensors in it."""
        self.values[register] = value
        for tensor in _tensors(value):
            if tensor.root in self.holders:
                self.holders[tensor.root][1].add(register)

    def fresh(self, register: bc.Register, type_: TensorType) -> None:
        """Let a register be a new tensor: a result, or in a place that is free."""
        if register in self.outputs:
            number = self.outputs[register].result
            self.define(register, type_, f"out[{number}]", output=number)
            return
        if not self.free:
            self.free.append(self.place())
        place = self.free.pop()
        self.places[place].append(f"bytes({self.shape(type_)})")
        self.holders[register] = place, set()
        self.define(register, type_, f"m->memory + m->places[{place}]")

    def place(self) -> int:
        """Return the number of a new place."""
        self.places.append([])
        return len(self.places) - 1

    def release(self, registers: Sequence[bc.Register]) -> None:
        """Free the places that nobody holds any more."""
        for root, (place, holders) in list(self.holders.items()):
            holders.difference_update(registers)
            if not holders:
                del self.holders[root]
                self.free.append(place)

    def operand(self, operand: bc.Operand) -> Any:
        """Return the value of an operand: tensors, numbers as C, tuples of them."""
        if isinstance(operand, tuple):
            return tuple(map(self.operand, operand))
        return self.values[operand]

    # Instructions.

    def instruction(self, i: bc.Instruction) -> None:
        match i:
            case bc.LoadConstant():
                constant = self.code.constants[i.constant]
                if isinstance(constant, torch.Tensor):
                    type_ = TensorType(tuple(constant.shape), FROM_TORCH[constant.dtype])
                    self.define(i.out, type_, self.weight(constant))
                else:
                    self.set(i.out, c_number(constant))
            case bc.Move():
                self.set(i.out, self.operand(i.source))
            case bc.GetItem():
                self.set(i.out, self.values[i.source][i.index])
            case bc.AllocateStorage():
                self.set(i.out, self.place())
                self.places[self.values[i.out]].append(str(i.size))
            case bc.AllocateTensor(storage=None):
                self.fresh(i.out, i.type)
            case bc.AllocateTensor(storage=int(storage)):
                place = self.values[storage]
                self.define(i.out, i.type, f"m->memory + m->places[{place}] + {i.offset}")
            case bc.ViewTensor():
                self.view(i.out, i.source, i.type)
            case bc.Extent():
                dim = self.values[i.source].type.shape[i.axis]
                self.set(i.out, f"integer({self.extent(dim)})")
            case bc.Check():
                self.check(i)
            case bc.CheckIndices():
                self.check_indices(i)
            case bc.Invoke():
                self.invoke(i)
            case bc.Release():
                self.release(i.registers)
            case bc.Return():
                for number, tensor in enumerate(_tensors(self.operand(i.value))):
                    if tensor.output != number:
                        self.line(f"copy(out[{number}], &r[{tensor.register}]);")
            case _:
                raise IRError("an instruction has no form in C", found=i)

    def view(self, out: bc.Register, source: bc.Register, type_: TensorType) -> None:
        self.define(out, type_, f"r[{source}].dl.data", of=self.values[source])

    def check(self, i: bc.Check) -> None:
        """Compare the extents that are known now with those that are known by then."""
        for found, wanted in zip(self.values[i.source].type.shape, i.type.shape, strict=True):
            if isinstance(wanted, int) and found != wanted:
                text = c_text(f"{_line(i.span)}an extent is not {wanted}")
                failure = f"return failed(m, STATUS(DIMENSION), {text});"
                self.line(f"if ({self.extent(found)} != {wanted}) {failure}")

    def check_indices(self, i: bc.CheckIndices) -> None:
        b, source = i.bounds, f"&r[{i.source}]"
        what = c_text(f"{_line(i.span)}{b.argument} of {b.op}: expected {b.legal('index')}")
        look = f"check_divisors(m, {source}, {what})"
        if not b.nonzero:
            low = "-HUGE_VAL" if b.low is None else str(b.low)
            also = "NAN" if b.also is None else str(b.also)
            axis = f"{-1 if b.axis is None else b.axis}, {b.position}, {int(b.ordered)}"
            look = f"check_indices(m, {source}, {low}, {b.high}, {also}, {axis}, {what})"
        self.line(f"if ({look}) return STATUS(INDEX);")

    def invoke(self, i: bc.Invoke) -> None:
        kernel = self.kernels[i.kernel]
        self.line(f"/* {c_comment(f'{i}: {kernel.text}')}{c_comment(_line(i.span, '  # '))} */")
        if kernel.symbol is None:
            self.view(i.outs[0], i.args[0], kernel.outputs[0])
            return
        if not i.fills:
            for register, type_ in zip(i.outs, kernel.outputs, strict=True):
                self.fresh(register, type_)
        values = [self.values[r] for r in (*i.args, *i.outs)]
        given = [f"of(&r[{v.register}])" if isinstance(v, _Tensor) else v for v in values]
        given += [given[place] for place in kernel.repeated]
        empty = [f"is_empty(&r[{r}])" for r in i.outs if not self.values[r].type.is_static]
        launch = (
            f"launch(m, {kernel.symbol}, {c_text(_line(i.span) + kernel.text)}, {len(given)}, "
            f"(const value[]){{{', '.join(given)}}})"
        )
        whether = f"!({' && '.join(empty)}) && " if empty else ""
        self.line(f"if ({whether}{launch}) return STATUS(KERNEL);")


def _tensors(value: Any) -> Iterator[_Tensor]:
    """Iterate over the tensors in a value."""
    if isinstance(value, _Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)


def _line(span: Span | None, before: str = "", after: str = ": ") -> str:
    """Return a user's line for a message."""
    return "" if span is None else f"{before}{span}{'' if before else after}"


@dataclass(frozen=True, slots=True)
class Block:
    """A function of a program: rows: of how many rows it computes results; 0: it does so of all."""

    rows: int
    body: BodyWriter


def program_text(
    name: str, signature: Signature, blocks: Sequence[Block], features: Sequence[str]
) -> str:
    """Return the program that ``runtime.c`` includes.

    Parameters
    ----------
    name: of the model. signature: names and types of inputs and outputs. blocks: one for all rows,
    or several of ever fewer rows, the last one of one. features: what a processor must have, as
    initialisers of C.
    """
    named = list(enumerate([*signature.inputs.items(), *signature.outputs.items()]))
    written = {root for b in blocks for root in summaries(b.body.code)[b.body.code.entry].written}
    extent = partial(c_extent, c_dims(signature.ranges))
    places = [size for block in blocks for size in enumerate(block.body.places)]
    counts = {
        "INPUTS": len(signature.inputs),
        "OUTPUTS": len(signature.outputs),
        "DIMS": len(signature.ranges),
        "PLACES": max(len(block.body.places) for block in blocks),
        "REGISTERS": max(block.body.registers for block in blocks),
    }
    symbols = dict.fromkeys(k.symbol for block in blocks for k in block.body.kernels if k.symbol)
    limits = [
        f"{{{c_text(n)}, {r.least}, {LARGEST if r.largest is None else r.largest}}}"
        for n, r in signature.ranges.items()
    ]
    shapes = [
        f"case {i}:{''.join(f' shape[{a}] = {extent(d)};' for a, d in enumerate(t.shape))} break;"
        for i, (_, t) in named
    ]
    sizes = [f"grow(&sizes[{i}], {size});" for i, some in places for size in some]
    unused = "(void)in, (void)out, (void)dims;"
    runs = [
        _function(
            f"int run{i}(model *m, const void *const *in, void *const *out, const int64_t *dims)",
            ("array *r = m->arrays;", unused, *block.body.lines, "return STATUS(OK);"),
        )
        for i, block in enumerate(blocks)
    ]
    return "\n".join(
        (
            f"/* The program of {c_comment(name)}. */",
            f"enum {{ {', '.join(f'{n} = {v}' for n, v in counts.items())} }};",
            f"static const char model_name[] = {c_text(name)};",
            *(f"extern kernel {symbol};" for symbol in symbols),
            _table("feature features", features),
            _table("tensor_info tensors", [_row(n, t, i in written) for i, (n, t) in named]),
            _table("dim_info dimensions", limits),
            _function(
                "void shape_of(int tensor, const int64_t *dims, int64_t *shape)",
                ("(void)dims, (void)shape;", "switch (tensor) {", *shapes, "}"),
            ),
            _function(
                "void lay_out(const int64_t *dims, int64_t *sizes)",
                ("(void)dims, (void)sizes;", *sizes),
            ),
            *runs,
            _table("block blocks", [f"{{{b.rows}, run{i}}}" for i, b in enumerate(blocks)]),
            "",
        )
    )


# What is said in C.


def c_dims(names: Iterable[str]) -> dict[str, str]:
    """Return the variables of dimensions by their names."""
    return {name: f"dims[{i}]" for i, name in enumerate(names)}


def c_dtype(type_: TensorType) -> str:
    """Return the constant of the header for a dtype."""
    return f"DTYPE({type_.dtype.upper()})"


def c_extent(names: Mapping[str, str], dim: Dim) -> str:
    """Return an extent as an expression of C; ``names``: the variables of dimensions."""
    if not isinstance(dim, SymbolicDim):
        return str(dim)
    terms = []
    for atoms, coefficient in dim.terms:
        factors = [
            f"quotient({c_extent(names, atom.numerator)}, {atom.divisor})"
            if isinstance(atom, Quotient)
            else names[atom]
            for atom in atoms
        ]
        if coefficient != 1 or not factors:
            factors.append(str(coefficient))
        terms.append(_nested("times", factors))
    return _nested("add", terms)


def _nested(function: str, values: Sequence[str]) -> str:
    """Return a function of two values applied to several."""
    first, *rest = values
    for value in rest:
        first = f"{function}({first}, {value})"
    return first


def c_number(value: bool | int | float) -> str:
    """Return a number as what a kernel is given."""
    if isinstance(value, bool):
        return f"boolean({int(value)})"
    if isinstance(value, int):
        return f"integer({value}LL)" if value > -(2**63) else "integer(INT64_MIN)"
    if math.isfinite(value):
        return f"number({value.hex()})"
    return (
        'number(__builtin_nan(""))' if math.isnan(value) else f"number({'-' * (value < 0)}HUGE_VAL)"
    )


def c_text(text: str) -> str:
    """Return a string literal of C."""
    plain = (
        chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()
    )
    return f'"{"".join(plain)}"'


def c_comment(text: str) -> str:
    """Return text that ends no comment."""
    return text.replace("*/", "* /").replace("/*", "/ *")


def _row(name: str, type_: TensorType, written: bool) -> str:
    """Return the initialiser of a tensor of the interface."""
    shape = ", ".join(str(d if isinstance(d, int) else -1) for d in type_.shape)
    extents = ", ".join(c_text(str(d)) for d in type_.shape)
    arrays = f"(const int64_t[]){{{shape}}}, (const char *const[]){{{extents}}}"
    known = arrays if type_.shape else "NULL, NULL"
    return f"{{{c_text(name)}, {c_dtype(type_)}, {type_.ndim}, {known}, {int(written)}}}"


def _table(declared: str, rows: Sequence[str]) -> str:
    """Return an array of rows, with a last one of zeros."""
    return "\n    ".join((f"static const {declared}[] = {{", *(f"{r}," for r in rows), "{0}};"))


def _function(declared: str, lines: Sequence[str]) -> str:
    """Return the definition of a function."""
    return "\n    ".join((f"\nstatic {declared} {{", *lines)) + "\n}"
