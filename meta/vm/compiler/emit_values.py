"""What the functions of a program share while they are emitted (constants, kernels, the functions
that are still to be emitted), and where the values of one function are: atoms, tuples, fields,
extents.

Tuples and fields cost nothing where they are known: a tuple is then a nested tuple of registers.
Across branches, calls and closures it is a value, of which a `GetItem` is taken.

`CheckEmitter` emits what looks at indices before a kernel uses them: see `launch_checks.py`. Where
extents are known at run time only, so are the bounds: `kernels.py` makes such calls as eager calls
are made, and they look for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import meta.ir as ir
from meta.base.device import Device
from meta.base.errors import IRError
from meta.base.source import Span
from meta.dialect.core import IN_PLACE
from meta.dialect.core.ir_calls import base_op
from meta.op.core import View
from meta.op.core.call import CallValues, cache_key
from meta.op.core.indices import IndexRange, checks_indices
from meta.op.core.op import Op
from meta.passes.alias_analysis import AliasSets, AliasSummaries
from meta.passes.dispatch import kernel_of
from meta.passes.index_ranges import IndexRanges, Range
from meta.passes.symbolic_extents import is_specialized
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Kernel, KernelRef
from meta.vm.eager.launch_checks import Bounds, bounds_of, looker


class Tables:
    """What the functions of a program share.

    Attributes
    ----------
    functions, types: those of the module. constants, kernels: each is there once.
    waiting: functions to emit: name, function, and what comes before its parameters: variables,
        and names of extents.
    """

    def __init__(self, module: ir.Module, device: Device) -> None:
        self.functions, self.types, self.device = module.functions, module.types, device
        self._module = module
        self.constants: list[Any] = []
        self.kernels: list[Kernel] = []
        self._constant_numbers: dict[Any, int] = {}
        self._kernel_numbers: dict[Any, int] = {}
        self._names = set(module.functions)
        self._needed: set[str] = set()
        self.waiting: list[tuple[str, ir.Function, tuple[ir.Var | str, ...]]] = []

    @cached_property
    def summaries(self) -> AliasSummaries:
        """What functions write and return, without what `inplace_update` lets them write over."""
        functions = {
            name: replace(f, attrs={k: v for k, v in f.attrs.items() if k != IN_PLACE})
            for name, f in self.functions.items()
        }
        return AliasSummaries(self._module.with_functions(functions))

    @cached_property
    def specialized(self) -> bool:
        """Whether the code is written anew for the extents of a call (`specialize`)."""
        return is_specialized(self._module, self.device)

    def is_filled(self, callee: ir.Expr, call: CallValues) -> bool:
        """Whether the kernel for all extents fills what is allocated for it; whoever checks indices
        does that at run time.
        """
        env = kernel_of(callee, call)
        return env.polymorphic and not env.allocates and call.op.indices is None

    def is_written_out(self, view: View) -> bool:
        """Whether a view whose extents are symbolic is an instruction: they are told by then."""
        known = all(isinstance(d, int | ir.SymbolicDim) for d in view.type.shape)
        return self.specialized and known and view.shard is None

    def use_global(self, name: str) -> str:
        """Note that a function of the module is needed; return its name."""
        if name not in self._needed:
            self._needed.add(name)
            self.waiting.append((name, self.functions[name], ()))
        return name

    def use_closure(
        self, hint: str, function: ir.Function, captured: tuple[ir.Var | str, ...]
    ) -> str:
        """Note that a closure's function is needed; return the name that it gets."""
        name, number = hint, 1
        while name in self._names:
            number += 1
            name = f"{hint}_{number}"
        self._names.add(name)
        self.waiting.append((name, function, captured))
        return name

    def constant(self, value: ir.Constant | bool | int | float) -> int:
        """Return the number of a constant: of an IR node, put on the device, or of a number."""
        key = value if isinstance(value, ir.Constant) else cache_key(value)
        if key not in self._constant_numbers:
            self._constant_numbers[key] = len(self.constants)
            if isinstance(value, ir.Constant):
                self.constants.append(value.data.to(str(self.device)).contiguous())
            else:
                self.constants.append(value)
        return self._constant_numbers[key]

    def kernel(self, kernel: Kernel) -> int:
        """Return the number of a kernel."""
        key = (kernel.operator, cache_key(kernel.args)) if isinstance(kernel, KernelRef) else kernel
        if key not in self._kernel_numbers:
            self._kernel_numbers[key] = len(self.kernels)
            self.kernels.append(kernel)
        return self._kernel_numbers[key]


class Values:
    """The registers of one function; ``inputs``, variables and names of extents, are in the first
    ones.

    What it needs of instructions is added to the last of ``blocks``, or to ``loads`` and
    ``extents``, which go before the first.
    """

    def __init__(self, tables: Tables, inputs: Sequence[ir.Var | str]) -> None:
        self.tables, self.inputs = tables, inputs
        self.env: dict[ir.Var, bc.Operand] = {
            var: i for i, var in enumerate(inputs) if isinstance(var, ir.Var)
        }
        self.registers = len(inputs)
        # Constants and extents are loaded first, so that they are there whichever branch is taken.
        self.loads: dict[int, bc.LoadConstant] = {}
        self.extents: dict[str, bc.Extent] = {}
        self.blocks: list[list[bc.Instruction]] = [[]]

    def add(self, instruction: bc.Instruction) -> None:
        self.blocks[-1].append(instruction)

    def new(self) -> bc.Register:
        self.registers += 1
        return self.registers - 1

    def emit(self, kind: type[bc.Setting], *given: Any) -> bc.Register:
        """Emit an instruction that sets a new register; return that."""
        out = self.new()
        self.add(kind(out, *given))
        return out

    def atom(self, atom: Any) -> bc.Operand:
        """Return where the value of an atom, or a run-time number, is."""
        match atom:
            case ir.Var():
                return self.env[atom]
            case ir.Tuple():
                return tuple(self.atom(f) for f in atom.fields)
            case ir.GlobalVar():
                return self.emit(bc.MakeClosure, self.tables.use_global(atom.name))
            case ir.OpNode():
                raise IRError(
                    "an operator is no value of a compiled program",
                    op=atom.name,
                    hint="write a function that calls it",
                )
        number = self.tables.constant(atom)
        if number not in self.loads:
            self.loads[number] = bc.LoadConstant(self.new(), number)
        return self.loads[number].out

    def register(self, atom: Any) -> bc.Register:
        operand = self.atom(atom)
        assert isinstance(operand, int)
        return operand

    def flat(self, argument: Any) -> tuple[bc.Register, ...]:
        """Return the registers of the tensors (or of the number) that an operator's argument is."""
        if isinstance(argument, ir.Expr):
            return self.unpacked(self.atom(argument), ir.type_of(argument))
        if isinstance(argument, tuple):
            return tuple(r for a in argument for r in self.flat(a))
        return (self.register(argument),)

    def unpacked(self, operand: bc.Operand, type_: ir.Type | None) -> tuple[bc.Register, ...]:
        if not isinstance(type_, ir.TupleType):
            assert isinstance(operand, int)
            return (operand,)
        fields = (self.field(operand, i) for i in range(len(type_.fields)))
        return tuple(
            r for f, t in zip(fields, type_.fields, strict=True) for r in self.unpacked(f, t)
        )

    def field(self, operand: bc.Operand, index: int) -> bc.Operand:
        if isinstance(operand, tuple):
            return operand[index]
        return self.emit(bc.GetItem, operand, index)

    def extent(self, name: str, op: Op, span: Span | None) -> bc.Register:
        """Return the register of a symbolic extent, read off a parameter or a captured value."""
        found = self.known_extent(name)
        if found is None:
            raise IRError(
                f"nothing says what the dimension {name!r} is",
                op=op.name,
                expected="a parameter of the function that has it as a dimension by itself",
                span=span,
            )
        return found

    def known_extent(self, name: str) -> bc.Register | None:
        """Return the register of a symbolic extent; None if no input says what it is."""
        if name in self.inputs:
            return self.inputs.index(name)
        if name not in self.extents:
            dim = ir.SymbolicDim(name)
            for register, var in enumerate(self.inputs):
                type_ = None if isinstance(var, str) else var.type
                if isinstance(type_, ir.TensorType) and dim in type_.shape:
                    axis = type_.shape.index(dim)
                    self.extents[name] = bc.Extent(self.new(), register, axis)
                    break
            else:
                return None
        return self.extents[name].out

    def checked(
        self, operand: bc.Operand, found: ir.Type | None, wanted: ir.Type | None, span: Span | None
    ) -> bc.Operand:
        """Return a value of type ``found``, with a check of the extents that ``wanted`` adds."""
        if not narrows(found, wanted):
            return operand
        if isinstance(found, ir.TupleType) and isinstance(wanted, ir.TupleType):
            pairs = enumerate(zip(found.fields, wanted.fields, strict=True))
            return tuple(self.checked(self.field(operand, i), f, w, span) for i, (f, w) in pairs)
        if not isinstance(wanted, ir.TensorType):
            raise IRError(
                "a reference holds values of other extents than is wanted here"
                if isinstance(wanted, ir.RefType)
                else "a function takes or returns more than is wanted of it here",
                expected=wanted,
                found=found,
                span=span,
            )
        assert isinstance(operand, int)
        self.add(bc.Check(operand, wanted, span))
        return operand


def narrows(found: ir.Type | None, wanted: ir.Type | None) -> bool:
    """Whether ``wanted`` says extents that ``found`` leaves open; None says nothing."""
    match found, wanted:
        case ir.TensorType(), ir.TensorType():
            return any(
                isinstance(w, int) and not isinstance(f, int)
                for f, w in zip(found.shape, wanted.shape, strict=True)
            )
        case ir.TupleType(), ir.TupleType():
            return any(map(narrows, found.fields, wanted.fields))
        case ir.FuncType(), ir.FuncType():
            # The function is given what is wanted of it.
            backwards = map(narrows, wanted.params, found.params)
            return any(backwards) or narrows(found.result, wanted.result)
        case ir.RefType(), ir.RefType():
            # It is read here and may be written there.
            return narrows(found.value, wanted.value) or narrows(wanted.value, found.value)
    return False


class CheckEmitter:
    """Emits the looks at the indices of one function's calls, behind what ``values`` has emitted.

    A constant is looked at now, which raises IndexOutOfRange; what is known to be in range, and on
    CUDA without META_CHECK_INDICES everything, is not looked at.
    """

    def __init__(self, values: Values, function: ir.Function) -> None:
        self.values, self.function = values, function
        self.tables = values.tables
        self.active = checks_indices(self.tables.device)
        # Looks of the first block, which all others follow, at what nobody writes.
        self.looks: set[tuple[bc.Register, Bounds]] = set()

    @cached_property
    def buffers(self) -> AliasSets:
        """The buffers of the function."""
        return AliasSets(self.function, self.tables.summaries)

    @cached_property
    def ranges(self) -> IndexRanges:
        """What is known of the integers of the function."""
        return IndexRanges(self.function, self.buffers, self.tables.functions)

    def operator(self, call: ir.Call, sources: Sequence[bc.Register], span: Span | None) -> None:
        """Emit what an operator's call needs, whose tensors and numbers are in ``sources``."""
        op = base_op(call.callee)
        if op is None or op.indices is None or not self.active:
            return
        for place, atom, wanted in self.ranges.open(call):
            self.look(atom, sources[place], op.name, wanted, span)

    def fused(
        self,
        function: ir.Function,
        call: ir.Call,
        sources: Sequence[bc.Register],
        span: Span | None,
    ) -> None:
        """Emit what a call of a fused function needs, whose arguments are in ``sources``."""
        inner = [b for b in function.body.bindings if _has_indices(b)] if self.active else ()
        if not inner:
            return
        found = {p: self.ranges.of(a) for p, a in zip(function.params, call.args, strict=True)}
        given: dict[ir.Expr, Range] = {p: r for p, r in found.items() if r is not None}
        ranges = IndexRanges(function, None, self.tables.functions, given)
        for binding in inner:
            assert isinstance(binding.value, ir.Call)
            op = base_op(binding.value.callee)
            assert op is not None
            for _, atom, wanted in ranges.open(binding.value):
                line = binding.span or span
                if isinstance(atom, ir.Constant):
                    self.look(atom, -1, op.name, wanted, line)
                elif atom in function.params:
                    place = function.params.index(atom)
                    self.look(call.args[place], sources[place], op.name, wanted, line)
                else:
                    raise IRError(
                        "a fused kernel computes indices itself, which nobody can look at",
                        op=op.name,
                        found=function.attrs,
                        hint="let the kernel's pattern capture the indices",
                        span=line,
                    )

    def look(
        self, atom: Any, source: bc.Register, op: str, wanted: IndexRange, span: Span | None
    ) -> None:
        """Look at a constant, or emit what looks at what is in a register."""
        bounds = bounds_of(op, wanted)
        if isinstance(atom, ir.Constant):
            looker(bounds, span)(atom.data)
        elif (source, bounds) not in self.looks:
            stays = isinstance(atom, ir.Var) and self.buffers.of(atom) not in self.buffers.written
            if stays and len(self.values.blocks) == 1:
                self.looks.add((source, bounds))
            self.values.add(bc.CheckIndices(source, bounds, span))


def _has_indices(binding: ir.Binding) -> bool:
    op = base_op(binding.value.callee) if isinstance(binding.value, ir.Call) else None
    return op is not None and op.indices is not None
