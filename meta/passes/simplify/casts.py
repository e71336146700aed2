"""Rules of casts."""

from __future__ import annotations

from meta import op
from meta.base.dtype import COMPLEX, FLOAT8, is_float
from meta.dialect.core.ir_calls import new_call, tensor_type
from meta.ir import Expr
from meta.passes.simplify.table import RULES, RuleSite

_SIGNED = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_UNSIGNED = {"bool": 1, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
# Bits of the significand, the hidden one included (IEEE 754; bfloat16 has 8). Nothing is said of
# float8: what holds its values is no reason to do without the rounding that a cast to it is for.
_FLOATS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_WIDER_FLOATS = {
    "float16": {"float32", "float64"},
    "bfloat16": {"float32", "float64"},
    "float32": {"float64"},
}


def represents(wide: str, narrow: str) -> bool:
    """Whether every value of the dtype ``narrow`` is one of ``wide``, too."""
    if wide == narrow:
        return True
    if {narrow, wide} & (FLOAT8 | COMPLEX):
        return False
    if is_float(narrow):
        return wide in _WIDER_FLOATS.get(narrow, set())
    digits = _SIGNED.get(narrow, _UNSIGNED.get(narrow, 64))
    if is_float(wide):
        return digits <= _FLOATS[wide]
    if narrow in _UNSIGNED:
        return digits <= _SIGNED.get(wide, _UNSIGNED.get(wide, 0))
    return digits <= _SIGNED.get(wide, 0)


@RULES.rule(op.astype, op.cast_like)
def same_dtype(at: RuleSite) -> Expr | None:
    """A cast to the dtype that x has."""
    return at.same(at.args[0])


@RULES.rule(op.astype)
def cast_of_cast(at: RuleSite) -> Expr | None:
    """astype(astype(x, wide), dtype) is astype(x, dtype) if ``wide`` holds all values of x.

    Not from a float to an integer, where x is an integer: what a float that does not fit becomes
    is another question than where an integer wraps.
    """
    inner = at.made_by(at.args[0], op.astype)
    if inner is None:
        return None
    x, wide, dtype = inner.args[0], inner.args[1], at.type.dtype
    source = tensor_type(x)
    if source is None or not represents(wide, source.dtype):
        return None
    if source.dtype == dtype:
        return at.same(x)
    integers = not is_float(source.dtype) and not is_float(dtype) and dtype != "bool"
    if integers and is_float(wide) and not represents(dtype, source.dtype):
        return None
    return new_call(op.astype, x, dtype)
