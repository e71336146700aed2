"""Steps of optimizers from their formulas: of several parameters as one CPU kernel each, of one
parameter as a TE compute, which fuses with its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import te, tirx

from meta import op
from meta.base.source import definition_span
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.tvm import tvm as dialect
from meta.dialect.tvm.broadcast import cast, computing, single
from meta.dialect.tvm.build import deferred
from meta.dialect.tvm.compute import INJECTIVE, OPAQUE, compute
from meta.dialect.tvm.launch import LaunchPlan, ListLaunch, numbers
from meta.dialect.tvm.list_kernel import list_kernel, printer
from meta.ir.types import TensorType, TupleType
from meta.op.core import Op
from meta.op.core.call import CallValues
from meta.op.core.formula import LEAVES, Expr, Traced, postorder
from meta.op.core.update import FORMULAS, RATES, SINGLE_STEPS, ListCall

PARALLEL = 1 << 15
"""Elements from which it pays to wake the threads."""


def _make(call: CallValues) -> OpEnv:
    """Return the kernel of a call: one for all of its tensors."""
    if call.device.kind != "cpu":
        raise Unsupported("addresses are read on the host; the dialect cuda has a kernel")
    args = call.args._asdict()
    slots: list[tuple[str, int]] = []
    for slot in call.op.schema.slots:
        value = args[slot.name]
        if slot.kind == "tensors":
            slots.append((slot.name, len(value)))
        elif slot.kind != "attribute" and value is not None:
            slots.append((slot.name, -1))
    if isinstance(call.out, TupleType) and call.outputs:  # the results are a list, too
        slots.append(("y", len(call.outputs)))
        args["y"] = call.outputs
    given = ListCall.of(call.op, args)
    lists: dict[str, tuple[TensorType, ...]] = {n: args[n] for n, _ in slots if n in given.lists}
    if not all(t.is_static for tensors in lists.values() for t in tensors):
        raise Unsupported("this kernel is built for extents that are numbers")
    kinds = [
        dict(zip(lists, (t.dtype for t in together), strict=True))
        for together in zip(*lists.values(), strict=True)
    ]
    distinct = [dict(pairs) for pairs in dict.fromkeys(tuple(k.items()) for k in kinds)]
    sizes = tuple(prod(t.static_shape) for t in next(iter(lists.values())))
    norm = call.op is op.multi_tensor_norm
    wide = "float64" if norm else computing(lists["y" if "y" in lists else "x"][0].dtype)
    launch = ListLaunch(
        call.op.name, tuple(slots), sizes, tuple(map(distinct.index, kinds)), outputs=int(norm)
    )
    formula, traced = given.formula, given.trace()
    function = list_kernel(
        traced.sweeps[:1] if norm else traced.sweeps,
        traced.totals,
        numbers(formula),
        RATES if formula.step else (),
        distinct,
        wide,
        sum(sizes) >= PARALLEL,
        norm,
    )
    return deferred(function, call.device, LaunchPlan(lists=launch))


for _operator in FORMULAS:
    dialect.register(_operator, _make, definition_span(_make))


def updated(base: Op, given: dict[str, Any]) -> list[te.Tensor]:
    """Return the new values of what a step of `SINGLE_STEPS` writes, in slot order."""
    call = ListCall.of(base, given)
    traced = call.trace()
    derived = _derived(traced, call.numbers)
    pairs: list[tuple[te.Tensor, te.Tensor]] = []
    for i in range(len(call.lists["x"])):
        lists = {name: tensors[i] for name, tensors in call.lists.items()}
        new = _of_parameter(traced, lists, call.numbers, derived)
        pairs += [(lists[name], stage) for name, stage in new.items()]
    written = (given[base.schema.names[i]] for i in base.schema.written)
    tensors = [t for value in written for t in (value if isinstance(value, tuple) else (value,))]
    return [next((new for old, new in pairs if t.same_as(old)), t) for t in tensors]


Derived = dict[str, Callable[[], Any]]


def _derived(traced: Traced, given: dict[str, Any]) -> Derived:
    """Return the numbers that follow from others, in float64; those that take a power are a stage
    of their own.
    """
    value = printer("float64", lambda node: single(given[node.parts[0]], "float64"))
    every = postorder(*traced.stores.values(), through=True)
    used = {node.parts[0]: node.parts[1] for node in every if node.kind == "derived"}
    powers = [x for x in used.values() if any(n.kind == "**" for n in postorder(x))]

    def element(i: Any) -> Any:
        found = value(powers[0])
        for place, x in enumerate(powers[1:], 1):
            found = tirx.Select(i == place, value(x), found)
        return found

    stage = te.compute((len(powers),), element, name="corrections") if powers else None

    def of(x: Expr) -> Callable[[], Any]:
        if stage is None or x not in powers:
            return lambda: value(x)
        return lambda: stage(powers.index(x))

    return {name: of(x) for name, x in used.items()}


def _of_parameter(
    traced: Traced, lists: dict[str, te.Tensor], given: dict[str, Any], derived: Derived
) -> dict[str, te.Tensor]:
    """Return the new values of a parameter and its state.

    Each is a stage, which the others read in place of the old value, whose buffer it may share.
    """
    shape, wide = lists["x"].shape, computing(str(lists["x"].dtype))
    stages: dict[Expr, te.Tensor] = {}

    def element(node: Expr, *index: Any) -> Any:
        def leaf(node: Expr) -> Any:
            name = node.parts[0]
            if node.kind == "element":
                return cast(lists[name](*index), wide)
            found = derived[name]() if node.kind == "derived" else single(given[name], wide)
            return found.astype(wide)

        known = {
            x: cast(s(*index[: len(s.shape)]), wide)
            for x, s in stages.items()
            if len(s.shape) <= len(index)
        }
        return printer(wide, leaf, known)(node)

    def stage(node: Expr, name: str, dtype: str, shape: Any = shape) -> te.Tensor:
        return te.compute(shape, lambda *i: cast(element(node, *i), dtype), name=name)

    def total(node: Expr) -> te.Tensor:
        axes = [te.reduce_axis((0, extent)) for extent in shape]
        summand = element(node.parts[0], *axes)
        return te.compute((), lambda: te.sum(summand, axis=axes) if axes else summand, name="total")

    names = {x: name for name, x in traced.stores.items()}
    order = list(postorder(*names, through=True))
    # Once for all elements: the compiler cannot know that no store changes what was added up.
    once = {x for node in order if not _once(node) for x in node.operands if _once(x)}
    # What is added up is read again behind the sum: to keep it costs less than to compute it twice.
    added = {x for node in order if node.kind == "total" for x in node.parts[0].operands}
    added = {x for x in added if x.kind not in LEAVES}
    for node in order:
        if node.kind == "total":
            stages[node] = total(node)
        elif node in names:
            stages[node] = stage(node, f"{names[node]}_new", lists[names[node]].dtype)
        elif node in once:
            stages[node] = stage(node, "once", wide, ())
        elif node in added:
            stages[node] = stage(node, "added", wide)
    return {name: stages[x] for x, name in names.items()}


def _once(node: Expr) -> bool:
    """Whether a node is a number made of totals, beside other numbers."""
    kinds = {x.kind for x in postorder(node)}
    number = node.kind not in (*LEAVES, ">", "==", "&")
    return number and "total" in kinds and "element" not in kinds


def _compute(base: Op) -> None:
    def step(**given):
        return updated(base, given)

    step.__signature__ = base.schema.signature  # type: ignore[attr-defined]  # read by `inspect`
    formula = FORMULAS[SINGLE_STEPS[base].multi]
    traced = formula.trace(formula.lists, {}, {})
    compute(base, OPAQUE if traced.totals else INJECTIVE)(step)


for _single in SINGLE_STEPS:
    _compute(_single)
