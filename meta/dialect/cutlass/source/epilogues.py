"""The formulas of the epilogues that `meta.dialect.cutlass.kernel.FORMS` names.

A formula is a function of one element of the product, ``acc``, and of what is read beside it, by
the names that the form has; "D" is the first result and "kept" the second one. ``f`` is the
activation, or its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from quack.epilogue import gemm_epilogue, unpack
from quack.epilogue.ops import ColVecLoad, RowVecLoad, TileLoad

from meta.dialect.cutlass.kernel import FORMS
from meta.dialect.cutlass.source.math import ACTIVATIONS, GRADIENTS

F = Callable[..., Any]
OPERANDS = {"row": RowVecLoad, "column": ColVecLoad, "tile": TileLoad}


def plain(f: F) -> F:
    return lambda acc: {"D": acc}


def act(f: F) -> F:
    return lambda acc: {"D": f(acc)}


def bias_act(f: F) -> F:
    return lambda acc, b: {"D": f(acc + b)}


def act_kept(f: F) -> F:
    return lambda acc: {"D": f(acc), "kept": acc}


def bias_act_kept(f: F) -> F:
    return lambda acc, b: {"D": f(acc + b), "kept": acc + b}


def add(f: F) -> F:
    return lambda acc, c: {"D": acc + c}


def bias_add(f: F) -> F:
    return lambda acc, b, c: {"D": acc + b + c}


def times(f: F) -> F:
    return lambda acc, c: {"D": acc * f(c)}


def bias_times(f: F) -> F:
    return lambda acc, b, c: {"D": (acc + b) * f(c)}


def times_kept(f: F) -> F:
    return lambda acc, c: {"D": acc * f(c), "kept": acc}


def act_dx(f: F) -> F:
    return lambda acc, c: {"D": f(c, acc)}


def gated_dx(f: F) -> F:
    """Of y = s * c with s = act(g): dc = acc * s, and kept dg, the gradient of act for acc * c."""
    return lambda acc, c, s, g: {"D": acc * s, "kept": f(g, acc * c)}


def gated_result_dx(f: F) -> F:
    """As `gated_dx`, where the gradient of act is one of its result, s."""
    return lambda acc, c, s: {"D": acc * s, "kept": f(s, acc * c)}


def gated(f: F) -> F:
    def epilogue(acc: Any) -> Any:
        first, second = unpack(acc)
        return {"kept": f(first) * second}

    return epilogue


def gated_second(f: F) -> F:
    def epilogue(acc: Any) -> Any:
        first, second = unpack(acc)
        return {"kept": first * f(second)}

    return epilogue


def rows(f: F) -> F:
    return lambda acc, r: {"D": acc * r}


def columns(f: F) -> F:
    return lambda acc, b: {"D": acc * b}


def rows_columns(f: F) -> F:
    return lambda acc, r, b: {"D": acc * r * b}


FORMULAS = {name: globals()[name] for name in FORMS}


@cache
def epilogue(form: str, activation: str) -> Any:
    """Return quack's object for an epilogue."""
    of = FORMS[form]
    functions = GRADIENTS if form.endswith("_dx") else ACTIVATIONS
    pinned = {name: OPERANDS[kind](name) for name, kind in of.operands if kind != "c"}
    outputs = ("kept",) if of.kept or of.paired else ()
    mode = "acc_pair" if of.paired else None
    return gemm_epilogue(outputs=outputs, ops=pinned, mode=mode)(
        FORMULAS[form](functions[activation])
    )
