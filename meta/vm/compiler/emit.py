"""From a dispatched module to `Code`.

Every value has a register of its own; what functions share, and where each value is, is in
`emit_values.py`. The pass `plan_memory` has said where values lie, unless a function is recursive.
A new IR node gets a case in `FunctionEmitter.value`.
"""

from __future__ import annotations

from collections.abc import Sequence

import meta.ir as ir
from meta.base import config
from meta.base.device import Device
from meta.base.errors import IRError
from meta.dialect.core import ALLOCATES, FUSED
from meta.dialect.core.ir_calls import arg_types, base_op, declared_call, written_parameters
from meta.ir.visit import inner_blocks
from meta.op.core import View
from meta.op.core.op import Op
from meta.passes.call_graph import preparation_of
from meta.passes.dispatch import kernel_of
from meta.passes.plan_memory import ARENA, OFFSETS, RESIDENT
from meta.passes.symbolic_extents import free_extent_names, serves_all_extents
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.calling_convention import is_of_tensors, ranges_of
from meta.vm.compiler.code import Code, FunctionCode, FusedRef, KernelRef
from meta.vm.compiler.code_analysis import (
    recursive,
    require_writable_constants,
    verify_code,
    without_storage,
)
from meta.vm.compiler.emit_values import CheckEmitter, Tables, Values, narrows
from meta.vm.compiler.releases import with_releases


def _used_as_values(function: ir.Function) -> set[ir.Var]:
    """Return the variables that are used for more than the condition of an `If`."""
    atoms = list(ir.operands(function.body.result))
    for binding in ir.bindings(function):
        if not isinstance(binding.value, ir.If):
            atoms += ir.operands(binding.value)
        for block in inner_blocks(binding.value):
            atoms += ir.operands(block.result)
    return {a for a in atoms if isinstance(a, ir.Var)}


class FunctionEmitter(Values):
    """Emits one function; ``captured``: what it is given before its parameters, variables and names
    of extents.
    """

    def __init__(
        self, tables: Tables, name: str, function: ir.Function, captured: Sequence[ir.Var | str]
    ) -> None:
        resident = dict(function.attrs.get(RESIDENT, ()))
        params = [p for i, p in enumerate(function.params) if i not in resident]
        super().__init__(tables, (*captured, *params))
        self.name, self.function = name, function
        # The plan of `plan_memory`: where result j of binding i lies; bindings are counted.
        self.storage = self.new() if function.attrs.get(ARENA) else None
        self.offsets = {(i, j): at for i, j, at in function.attrs.get(OFFSETS, ())}
        # Parameters that lie in the storage: nobody hands them over.
        self.resident = [
            bc.AllocateTensor(self.new(), function.params[i].type, self.storage, at)
            for i, at in resident.items()
        ]
        for i, allocated in zip(resident, self.resident, strict=True):
            self.env[function.params[i]] = allocated.out
        self.binding = -1
        self.used_as_values = _used_as_values(function)
        self.checks = CheckEmitter(self, function)

    def code(self) -> FunctionCode:
        """Return the function's code, with nothing released."""
        self.block(self.function.body, self.function.result_type, tail=True)
        first: list[bc.Instruction] = [*self.loads.values(), *self.extents.values()]
        if self.storage is not None:
            first += [bc.AllocateStorage(self.storage, self.function.attrs[ARENA]), *self.resident]
        self.blocks[0][:0] = first
        return FunctionCode(len(self.inputs), self.registers, tuple(map(tuple, self.blocks)))

    # Blocks.

    def block(self, block: ir.Block, wanted: ir.Type | None, tail: bool) -> bc.Operand:
        """Emit a block and return its value, of the type ``wanted``; ``tail``: it is returned."""
        bindings = block.bindings
        for i, binding in enumerate(bindings):
            self.binding += 1
            if tail and i == len(bindings) - 1 and block.result is binding.var:
                if isinstance(binding.value, ir.If):
                    self.branch(binding.value, wanted, tail=True)
                    return ()
                callee = self.callee(binding.value)
                if callee is not None and not narrows(binding.var.type, wanted):
                    self.add(bc.TailCall(callee, self.arguments(binding)))
                    return ()
            self.env[binding.var] = self.value(binding)
        span = bindings[-1].span if bindings else None
        value = self.checked(self.atom(block.result), ir.type_of(block.result), wanted, span)
        if tail:
            self.add(bc.Return(value))
        return value

    def branch(self, value: ir.If, wanted: ir.Type | None, tail: bool = False) -> bc.Register:
        """Emit an `If`: two blocks, and one in which they meet unless each of them returns."""
        condition, out = self.register(value.condition), self.new()
        start, ends = self.blocks[-1], []
        numbers = []
        for block in (value.then_block, value.else_block):
            numbers.append(len(self.blocks))
            self.blocks.append([])
            yielded = self.block(block, wanted, tail)
            if not tail:
                self.add(bc.Move(out, yielded))
                ends.append(self.blocks[-1])
        start.append(bc.Branch(condition, *numbers))
        if not tail:
            for end in ends:
                end.append(bc.Jump(len(self.blocks)))
            self.blocks.append([])
        return out

    # Values.

    def value(self, binding: ir.Binding) -> bc.Operand:
        value = binding.value
        match value:
            case ir.TupleGetItem():
                return self.field(self.atom(value.value), value.index)
            case ir.If():
                return self.branch(value, binding.var.type)
            case ir.Function():
                return self.closure(binding.var.name, value)
            case ir.Call():
                return self.call(value, binding)
            case ir.Primitive():
                return self.primitive(value, binding)
        return self.atom(value)

    def primitive(self, value: ir.Primitive, binding: ir.Binding) -> bc.Operand:
        """Emit a primitive; what it takes and gives has the extents that types say."""
        wanted = value.wanted(self.tables.types, binding.var.type)
        operands = tuple(
            self.checked(self.atom(atom), ir.type_of(atom), type_, binding.span)
            for atom, type_ in zip(value.operands, wanted, strict=True)
        )
        as_tensor = value.rule.predicate and binding.var in self.used_as_values
        given = value.name, operands, value.details, as_tensor, binding.span
        out, found = self.emit(bc.RunPrimitive, *given), value.rule.found
        if found is None:
            return out
        return self.checked(out, found(value, self.tables.types), value.type, binding.span)

    # Functions.

    def closure(self, name: str, function: ir.Function) -> bc.Register:
        captured = ir.free_vars(function)
        names = free_extent_names(function, (*captured, *function.params))
        extents = {n: r for n in names if (r := self.known_extent(n)) is not None}
        inputs: tuple[ir.Var | str, ...] = (*captured, *extents)
        lifted = self.tables.use_closure(f"{self.name}.{name or 'fn'}", function, inputs)
        registers = (*(self.env[v] for v in captured), *extents.values())
        return self.emit(bc.MakeClosure, lifted, registers)

    def callee(self, value: ir.Expr) -> str | bc.Register | None:
        """Return the function that a value is a call of; None for other values, and for kernels."""
        if not isinstance(value, ir.Call) or base_op(value.callee) is not None:
            return None
        if isinstance(value.callee, ir.GlobalVar):
            name = value.callee.name
            fused = FUSED in self.tables.functions[name].attrs
            return None if fused else self.tables.use_global(name)
        return self.register(value.callee)

    def arguments(self, binding: ir.Binding) -> tuple[bc.Operand, ...]:
        assert isinstance(binding.value, ir.Call)
        for argument in binding.value.args:
            if not isinstance(argument, ir.Expr):
                raise IRError(
                    "a function of a compiled program takes tensors, tuples and functions",
                    found=argument,
                    hint="pass a constant tensor",
                    span=binding.span,
                )
        callee = binding.value.callee
        if isinstance(callee, ir.GlobalVar):
            wanted: ir.Type | None = self.tables.functions[callee.name].type
        else:
            wanted = ir.type_of(callee)
        assert isinstance(wanted, ir.FuncType)
        return tuple(
            self.checked(self.atom(a), ir.type_of(a), w, binding.span)
            for a, w in zip(binding.value.args, wanted.params, strict=True)
        )

    def call(self, call: ir.Call, binding: ir.Binding) -> bc.Operand:
        op = base_op(call.callee)
        if op is not None:
            return self.operator(op, call, binding)
        callee = self.callee(call)
        if callee is None:
            return self.fused(call, binding)
        return self.emit(bc.CallFunction, callee, self.arguments(binding), binding.span)

    # Kernels.

    def operator(self, op: Op, call: ir.Call, binding: ir.Binding) -> bc.Operand:
        span = binding.span
        values = declared_call(op, call, self.tables.device)
        if values.callee is None:
            raise IRError(
                "a value that is known while tracing is no operator call", op=op.name, span=span
            )
        arguments = [
            () if slot.kind == "attribute" or argument is None else self.flat(argument)
            for slot, argument in zip(op.schema.slots, call.args, strict=True)
        ]
        sources = tuple(r for registers in arguments for r in registers)
        written = tuple(r for slot in op.schema.written for r in arguments[slot])
        args = arg_types(op, call)
        is_static = KernelRef(op.name, args).is_static
        view = values.out if isinstance(values.out, View) else None
        if not is_static and view is not None and self.tables.is_written_out(view):
            return self.emit(bc.ViewTensor, sources[0], view.type)
        if not is_static:
            # Who runs it, and what extents the results have, is decided when it runs.
            fills = self.tables.specialized and serves_all_extents(call, binding.var.type)
            fills = fills and self.tables.is_filled(call.callee, values)
            kernel = KernelRef(call.callee.name, args, fills)  # type: ignore[attr-defined]
            sources += tuple(self.extent(name, op, span) for name in kernel.unbound)
        elif isinstance(values.out, View):
            out = values.out
            if out.shard is not None:
                return self.emit(bc.OwnShard, sources[0], out.type, *out.shard)
            return self.emit(bc.ViewTensor, sources[0], out.type)
        else:
            env = kernel_of(call.callee, values)
            assert env.dialect_op is not None
            kernel, fills = KernelRef(env.dialect_op.name, args), not env.allocates
            if fills and not all(t.is_static for t in values.outputs):
                raise IRError(
                    f"the kernel {env.dialect_op} fills a result whose extents only it can know",
                    op=op.name,
                    expected="a kernel that returns its results",
                    found=values.out,
                    span=span,
                )
        self.checks.operator(call, sources, span)
        outs = self.outs(values.outputs, fills)
        number = self.tables.kernel(kernel)
        self.add(bc.Invoke(number, sources, outs, fills, written, span))
        return outs[0] if not isinstance(values.out, ir.TupleType) else outs

    def fused(self, call: ir.Call, binding: ir.Binding) -> bc.Register | tuple[bc.Register, ...]:
        """Emit the one kernel of a fused function."""
        assert isinstance(call.callee, ir.GlobalVar)
        function = self.tables.functions[call.callee.name]
        arguments = [self.flat(a) for a in call.args]
        sources = tuple(r for registers in arguments for r in registers)
        written = tuple(r for i in written_parameters(function) for r in arguments[i])
        result = function.result_type
        types = result.fields if isinstance(result, ir.TupleType) else (result,)
        fills = not function.attrs.get(ALLOCATES, False)
        self.checks.fused(function, call, sources, binding.span)
        outs = self.outs([t for t in types if isinstance(t, ir.TensorType)], fills)
        number = self.tables.kernel(FusedRef(function.attrs[FUSED], call.callee.name))
        self.add(bc.Invoke(number, sources, outs, fills, written, binding.span))
        return outs if isinstance(result, ir.TupleType) else outs[0]

    def outs(self, types: Sequence[ir.TensorType], fills: bool) -> tuple[bc.Register, ...]:
        """Return registers for results; if a kernel fills them, allocated as the plan says."""
        outs = tuple(self.new() for _ in types)
        if fills:
            for j, (out, type_) in enumerate(zip(outs, types, strict=True)):
                at = self.offsets.get((self.binding, j))
                storage = (None, 0) if at is None else (self.storage, at)
                self.add(bc.AllocateTensor(out, type_, *storage))
        return outs


ENTRY = "main"


def emit(module: ir.Module, device: Device) -> Code:
    """Return the code of a module's main, and of what it calls, on one device.

    Raises IRError for a main that takes anything but tensors or returns anything but tensors and
    tuples of them, and for a constant that is written.
    """
    main = module.main
    params = []
    resident = dict(main.attrs.get(RESIDENT, ()))
    for number, param in enumerate(main.params):
        if not isinstance(param.type, ir.TensorType):
            raise IRError(
                "a parameter of main must be a tensor", found=f"%{param.name}: {param.type}"
            )
        if number not in resident:
            params.append((param.name, param.type))
    result = main.result_type
    if result is None or not is_of_tensors(result):
        raise IRError("the result of main must be made of tensors", found=result)
    tables = Tables(module, device)
    functions: dict[str, FunctionCode] = {}
    tables.use_global(ENTRY)
    while tables.waiting:
        name, function, captured = tables.waiting.pop()
        functions[name] = FunctionEmitter(tables, name, function, captured).code()
    for name in recursive(functions):
        functions[name] = without_storage(functions[name])
    for name, made in functions.items():
        # Whoever calls the program holds its arguments.
        functions[name] = with_releases(made, keep=range(made.params) if name == ENTRY else ())
    preparation = preparation_of(module)
    prepared_type = None if preparation is None else preparation.result_type
    code = Code(
        functions,
        ENTRY,
        tuple(params),
        result,
        tuple(tables.constants),
        tuple(tables.kernels),
        tuple((name, r.least, r.largest) for name, r in ranges_of(main).items()),
        len(prepared_type.fields) if isinstance(prepared_type, ir.TupleType) else 0,
    )
    require_writable_constants(code)
    if config.get("META_VERIFY"):
        verify_code(code)
    return code
