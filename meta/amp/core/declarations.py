"""Stating the cast rules of several operators at once, as the table in `meta/amp/rules.py` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.amp.core.resolve import Finite, float_dtypes
from meta.amp.core.rule import CustomRule, generic_cast, infer_cast, register_op_cast_rule
from meta.base.dtype import bits
from meta.base.errors import RegistrationError
from meta.base.source import caller_span
from meta.op.core.op import Op
from meta.op.core.registration import require_op


def always(*ops: Op) -> None:
    """Cast the floating point arguments of these operators to the half dtype."""
    site = caller_span()
    for op in ops:
        register_op_cast_rule(op, generic_cast(True), site)


def never(*ops: Op) -> None:
    """Cast the half precision arguments of these operators to float32."""
    site = caller_span()
    for op in ops:
        register_op_cast_rule(op, generic_cast(False), site)


def infer(*ops: Op) -> None:
    """Let the arguments decide: half precision if all of them have it, else the widest of them."""
    site = caller_span()
    for op in ops:
        register_op_cast_rule(op, infer_cast(), site)


def custom(*ops: Op) -> Callable[[CustomRule], CustomRule]:
    """Register a function as the cast rule of operators; a decorator."""
    for op in ops:
        require_op(op, "a cast rule")

    def register(function: CustomRule) -> CustomRule:
        for op in ops:
            register_op_cast_rule(op, function)
        return function

    return register


DtypeChoice = Callable[[list[str], str], "str | None"]
"""From the dtypes of floating point tensors and the half dtype to the one they are cast to."""


def per_argument(*ops: Op, **words: Any) -> None:
    """State for each argument what it is cast to; those that are not named stay as they are.

    words: by argument a dtype; a `DtypeChoice`, of the argument's own dtypes; or a word and the
    names of the arguments of whose dtypes it is.
    """
    site = caller_span()
    for op in ops:
        require_op(op, "a cast rule", site)
        names = [op.schema.names[i] for i in op.schema.tensor_slots]
        if unknown := words.keys() - names:
            raise RegistrationError(
                f"the cast rule of {op.name!r} names other arguments than it has",
                expected=", ".join(names),
                found=", ".join(sorted(unknown)),
                span=site,
            )
        register_op_cast_rule(op, _rule_per_argument([(n, words.get(n)) for n in names]), site)


def _rule_per_argument(stated: list[tuple[str, Any]]) -> CustomRule:
    def one(args: Any, half: str, name: str, said: Any) -> str | None:
        if said is None or isinstance(said, str):
            return said
        word, *of = said if isinstance(said, tuple) else (said, name)
        dtype: str | None = word([d for n in of for d in float_dtypes(getattr(args, n))], half)
        return dtype

    return lambda args, half: tuple(one(args, half, name, said) for name, said in stated)


def narrow(dtypes: list[str], half: str) -> str:
    """Return the half dtype, unless there is one of double precision."""
    return "float64" if "float64" in dtypes else half


def finite(dtypes: list[str], half: str) -> str:
    """Return the half dtype for a mask, unless there is one of double precision."""
    return Finite(narrow(dtypes, half))


def wide(dtypes: list[str], half: str = "") -> str:
    """Return the dtype of at least float32 in which to keep arguments."""
    return "float64" if "float64" in dtypes else "float32"


def widest(dtypes: list[str], half: str = "") -> str | None:
    """Return the widest dtype, None if there is none. float16 and bfloat16 meet in float32."""
    found = set(dtypes)
    return "float32" if found == {"float16", "bfloat16"} else max(found, key=bits, default=None)
