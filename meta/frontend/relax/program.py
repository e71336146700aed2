"""What a Relax module consists of: its operators, and those of them that have no converter."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import ir
from tvm import relax as tvm_relax

from meta.base.registry import nearest
from meta.frontend.core import Unconvertible
from meta.frontend.relax.errors import Failure
from meta.frontend.relax.registry import relax
from meta.frontend.relax.tensor_expressions import ONLY_LOOPS, marked
from meta.frontend.relax.walker import operator_name


def operators(module: Any) -> Counter[str]:
    """Return how often each operator is called in a `tvm.ir.IRModule`; functions outside of Relax
    count as "call_tir" or by their name there.
    """
    found: Counter[str] = Counter()

    def visit(expr: Any) -> None:
        if isinstance(expr, ir.Call) and isinstance(expr.op, tvm.ir.Op):
            name = operator_name(expr)
            found[_marked_name(module, expr) if name == "call_tir" else name] += 1

    for function in module.functions.values():
        if isinstance(function, tvm_relax.Function):
            tvm_relax.analysis.post_order_visit(function, visit)
    return found


def _marked_name(module: Any, call: Any) -> str:
    try:
        return marked(module[call.args[0]])[0]
    except Unconvertible:
        return "call_tir"


def unsupported(module: Any) -> list[Failure]:
    """Return a failure for each call of an operator that is not converted."""
    failures = []
    for name, count in operators(module).items():
        if name.startswith("tirx.") or name == "call_tir":
            failures += [Failure(name, ONLY_LOOPS)] * (count if name == "call_tir" else 0)
            continue
        converter = relax.get(name)
        if converter is None:
            failures += [Failure(name, "there is no converter", nearest(name, relax))] * count
        elif converter.function is None:
            failures += [Failure(name, converter.reason or "it is not converted")] * count
    return failures
