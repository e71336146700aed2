"""Steps of optimizers, norm, average and cast of several tensors: one launch for each sweep over
memory, its code printed from the formula.
"""

from __future__ import annotations

from math import prod
from typing import Any

from meta import op
from meta.dialect.core import OpEnv, Unsupported, require_static, tunable
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.list_kernel import NUMBER_KINDS, Definition, Launcher, Pass
from meta.ir.types import TensorType, TupleType
from meta.op.core.call import CallValues, runtime_args, slot_positions
from meta.op.core.formula import LEAVES, Expr, Formula, Sweep, evaluate, postorder
from meta.op.core.update import FORMULAS, ListCall

CONDITIONS = ">", "==", "&"
OPERATIONS = {
    **{sign: f"({{}} {sign} {{}})".format for sign in ("+", "-", "*", "/", ">", "==")},
    "&": "({} && {})".format,
    "**": "pow({}, {})".format,
    "sqrt": "root({})".format,
    "where": "({} ? {} : {})".format,
    "clamp": "clamped({}, {})".format,
}


def code(sweep: Sweep) -> str:
    """Return what a sweep does to an element; what is stored or used twice has a name."""
    order = list(postorder(*sweep.roots))
    used = [operand for node in order if node.kind not in LEAVES for operand in node.operands]
    twice = [node for node in order if used.count(node) > 1 and node.kind not in LEAVES]
    names = {node: f"t{i}" for i, node in enumerate(twice)}
    names |= {node: f"new_{name}" for name, node in reversed(sweep.stores.items())}
    known: dict[Expr, str] = {}

    def leaf(node: Expr) -> str:
        if node.kind == "total":
            return f"sums[{sweep.needs[node]}]"
        name: str = node.parts[0]
        return {"element": name, "constant": f"(W){name}"}.get(node.kind, f"k.{name}")

    lines: list[str] = []
    for node in order:
        text = evaluate(node, leaf, OPERATIONS, known)
        if node in names:
            kind = "bool" if node.kind in CONDITIONS else "W"
            lines.append(f"{kind} {names[node]} = {_bare(text)};")
            known[node] = names[node]
    for i, summand in sweep.totals.items():
        # The product of two float32 is exact in float64.
        text = _bare(known[summand]) if summand.kind == "*" else known[summand]
        lines.append(f"terms[{i}] += (double){text};")
    return "\n".join([*lines, *(f"{name} = {known[node]};" for name, node in sweep.stores.items())])


def _bare(text: str) -> str:
    """Return an expression without the parentheses around all of it."""
    return text[1:-1] if text.startswith("(") and not text.startswith("(W)") else text


def derived(formula: Formula) -> dict[str, str]:
    """Return the numbers that follow from others, as expressions of double."""

    def leaf(node: Expr) -> str:
        return str(node.parts[0])

    return {n: evaluate(x, leaf, OPERATIONS, {}) for n, x in formula.derived.items()}


def _make(call: CallValues) -> OpEnv:
    """Return the launches of a call."""
    args = call.args._asdict()
    if isinstance(call.out, TupleType) and call.outputs:  # the results are a list, too
        args["y"] = call.outputs
    given = ListCall.of(call.op, args)
    formula, traced = given.formula, given.trace()
    lists = {name: args[name] for name in args if name in given.lists}
    require_static(*(t for tensors in lists.values() for t in tensors))
    for name in formula.numbers:
        if isinstance(args[name], TensorType) and args[name].dtype not in NUMBER_KINDS:
            raise Unsupported(f"{name} comes in {args[name].dtype}, which kernels do not read")
    norm = call.op is op.multi_tensor_norm
    sweeps = traced.sweeps[:1] if norm else traced.sweeps
    passes = tuple(
        Pass(code(s), tuple(s.loads), tuple(s.stores), tuple(s.totals), tuple(s.needs.values()))
        for s in sweeps
    )
    made = Definition(passes, formula.numbers, derived(formula), traced.totals, norm)
    dtypes = [
        dict(zip(lists, (t.dtype for t in together), strict=True))
        for together in zip(*lists.values(), strict=True)
    ]
    sizes = [prod(t.static_shape) for t in next(iter(lists.values()))]
    like = "float64" if norm else lists["y" if "y" in lists else "x"][0].dtype
    wide = "float64" if like == "float64" else "float32"
    launch = Launcher(made, dtypes, sizes, wide, call.device)
    places: dict[str, Any] = dict(slot_positions(call))
    end = len(runtime_args(call.op, call.args))
    if "y" in lists:
        places.setdefault("y", slice(end, end + len(call.outputs)))

    def run(*values: Any) -> None:
        launch(
            [values[places[name]] for name in formula.numbers],
            [[t.data_ptr() for t in values[places[name]]] for name in lists],
            values[places["skip"]] if "skip" in places else None,
            values[end] if norm else None,
        )

    return launch.env(run)


for _operator in FORMULAS:
    dialect.op(_operator)(tunable(_make))
