"""From what is about data values and references to instructions."""

from __future__ import annotations

import meta.ir as ir
from meta.base.source import Span
from meta.ir import Expr, RefType, Type, Var, bindings, operands, type_of
from meta.ir.visit import inner_blocks
from meta.vm import bytecode_data as bc
from meta.vm.bytecode import Operand
from meta.vm.emit_values import Values


class DataEmitter:
    """Emits such values of one function, into the blocks of its ``emitter``."""

    def __init__(self, emitter: Values, function: ir.Function) -> None:
        self.emitter = emitter
        self.values = _used_as_values(function)

    def value(self, binding: ir.Binding) -> Operand | None:
        """Return where a binding's value is; None if it is about something else."""
        emitter, value, span = self.emitter, binding.value, binding.span
        match value:
            case ir.Construct():
                return self.construct(value, span)
            case ir.IsVariant():
                out, source = emitter.new(), emitter.register(value.value)
                as_tensor = binding.var in self.values
                emitter.add(bc.IsVariant(out, source, value.constructor, as_tensor))
                return out
            case ir.GetField():
                return self.get_field(value, span)
            case ir.MakeRef():
                held = self.held(value.value, binding.var.type, span)
                out = emitter.new()
                emitter.add(bc.MakeRef(out, held))
                return out
            case ir.ReadRef():
                out, source = emitter.new(), emitter.register(value.ref)
                emitter.add(bc.ReadRef(out, source))
                return out
            case ir.WriteRef():
                ref = emitter.register(value.ref)
                emitter.add(bc.WriteRef(ref, self.held(value.value, type_of(value.ref), span)))
                return ()
            case ir.Fail():
                out = emitter.new()
                emitter.add(bc.Fail(out, value.message, span))
                return out
        return None

    def construct(self, value: ir.Construct, span: Span | None) -> Operand:
        emitter = self.emitter
        wanted = self.fields(value.type.name, value.constructor)
        fields = tuple(
            emitter.checked(emitter.atom(f), type_of(f), w, span)
            for f, w in zip(value.fields, wanted, strict=True)
        )
        out = emitter.new()
        emitter.add(bc.Construct(out, value.constructor, fields))
        return out

    def get_field(self, value: ir.GetField, span: Span | None) -> Operand:
        emitter = self.emitter
        out, source = emitter.new(), emitter.register(value.value)
        emitter.add(bc.GetField(out, source, value.constructor, value.index, span))
        owner = type_of(value.value)
        assert isinstance(owner, ir.DataType)
        found = self.fields(owner.name, value.constructor)[value.index]
        return emitter.checked(out, found, value.type, span)

    def fields(self, type_: str, constructor: str) -> tuple[Type, ...]:
        """Return the types of a constructor's fields."""
        found = self.emitter.tables.types[type_].constructor(constructor)
        assert found is not None
        return found.fields

    def held(self, value: Expr, ref: Type | None, span: Span | None) -> Operand:
        """Return where a value is that a reference of a type is to hold."""
        wanted = ref.value if isinstance(ref, RefType) else None
        return self.emitter.checked(self.emitter.atom(value), type_of(value), wanted, span)


def _used_as_values(function: ir.Function) -> set[Var]:
    """Return the variables that are used for more than the condition of an `If`."""
    atoms = list(operands(function.body.result))
    for binding in bindings(function):
        if not isinstance(binding.value, ir.If):
            atoms += operands(binding.value)
        for block in inner_blocks(binding.value):
            atoms += operands(block.result)
    return {a for a in atoms if isinstance(a, Var)}
