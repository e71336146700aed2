"""Overloads whose arguments, promoted at most, are a base operator's: those of `AtenCall`'s tables
that say so.
"""

from inspect import Parameter, Signature

from meta.dialect.torch.aten_calls import CALLS
from meta.dialect.torch.correspondence import Promotion, schema_of
from meta.frontend.aten.arguments import promote
from meta.frontend.aten.registry import aten, is_operand
from meta.op.core.op import by_schema


def converter(call):
    """Return the converter of a record's overload."""
    arguments = schema_of(call.overload)
    slots = dict(zip((a.name for a in arguments), call.arguments, strict=False)) | call.keywords
    operands = [slots[a.name] for a in arguments if is_operand(a)]
    attributes = {a.name: slots[a.name] for a in arguments if a.name in slots and not is_operand(a)}
    floating = call.promotion is Promotion.FLOATING

    def converted(*values, **options):
        if call.promotion is not Promotion.NONE:
            values = promote(*values, floating=floating)
        given = dict(zip(operands, values, strict=True))
        given |= {slot: options[name] for name, slot in attributes.items()}
        return by_schema(call.op)(*_in_order(call.op, given))

    named = [Parameter(name, Parameter.KEYWORD_ONLY) for name in attributes]
    converted.__signature__ = Signature([Parameter("values", Parameter.VAR_POSITIONAL), *named])
    return converted


def _in_order(base, given):
    """Return arguments of an operator in the order of its slots, up to the last that there is. An
    attribute that is None has the operator's default.
    """
    slots = base.slots
    last = max(i for i, slot in enumerate(slots) if slot.name in given)
    values = [given.get(slot.name) for slot in slots[: last + 1]]
    return [
        slot.default if value is None and slot.has_default else value
        for slot, value in zip(slots, values, strict=False)
    ]


for _call in CALLS:
    if _call.promotion is not None:
        aten(_call.overload, _call.op)(converter(_call))
