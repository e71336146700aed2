"""Steps of optimizers from their formulas: of several parameters as one CPU kernel each, of one
parameter as a TE compute, which fuses with its neighbours.

Kernels that run over lists of tensors on the CPU: loops, written once, around the formula of an
element.

A kernel runs over chunks of all tensors in parallel, and finds the tensors by their addresses (see
`launch.py`): it is built once for all models, while tensor expressions of 200 parameters
would take minutes. Nothing here knows operators.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from meta import op
from meta.base.source import definition_span
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.tvm import tvm as dialect
from meta.dialect.tvm.broadcast import cast, computing, single, widened
from meta.dialect.tvm.build import deferred
from meta.dialect.tvm.compute import INJECTIVE, OPAQUE, compute
from meta.dialect.tvm.launch import LaunchPlan, ListLaunch, numbers
from meta.dialect.tvm.lower import NO_ALIAS, SCHEDULED
from meta.ir.types import TensorType, TupleType
from meta.op.core import Op
from meta.op.core.call import CallValues
from meta.op.core.formula import LEAVES, Expr, Sweep, Traced, evaluate, postorder
from meta.op.core.update import FORMULAS, RATES, SINGLE_STEPS, ListCall


def _clamp(x: Any, bound: Any) -> Any:
    """Return x within the bounds; what is no number stays so."""
    return tirx.Select(x > bound, bound, tirx.Select(x < -bound, -bound, x))


OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    ">": operator.gt,
    "==": lambda a, b: a.equal(b),
    "&": tirx.And,
    "**": tirx.power,
    "sqrt": tirx.sqrt,
    "where": tirx.Select,
    "clamp": _clamp,
}


LANES = 16
"""Elements of a vector: one 512-bit or two 256-bit registers of float32."""
SUM = "float64"
"""Sums of squares of float32 do not overflow in it."""


def printer(
    wide: str, leaf: Callable[[Expr], Any], known: dict[Expr, Any] | None = None
) -> Callable[[Expr], Any]:
    """Return the function from nodes to expressions of dtype ``wide``.

    ``leaf`` gives those of leaves that are no constants, ``known`` those of further nodes.
    """
    values = {} if known is None else known

    def of_leaf(node: Expr) -> Any:
        return tirx.const(node.parts[0], wide) if node.kind == "constant" else leaf(node)

    return lambda node: evaluate(node, of_leaf, OPERATIONS, values)


class _Kernel:
    """A kernel under construction: its parameters, and the loops over them.

    ``of_chunks`` and ``of_tensors`` are where sums are added up, if there are any.
    """

    of_chunks: Any
    of_tensors: Any

    def __init__(
        self, sums: int, names: tuple[str, ...], each: tuple[str, ...], wide: str, parallel: bool
    ) -> None:
        self.sums, self.names, self.each, self.wide = sums, names, each, wide
        self.loop = T.parallel if parallel else T.serial
        rows, self.count, classes, length = (
            tirx.Var(name, "int64") for name in ("rows", "count", "classes", "length")
        )
        self.table = _parameter("addresses", (rows,), "int64")
        self.n = T.arg("n", tirx.Var("n", "int64"))
        self.chunks = _parameter("chunks", (self.count, 3), "int64")
        self.bounds = _parameter("bounds", (classes,), "int64")
        self.values = _parameter("numbers", (length,), "float64")

    def numbers(self, tensor: Any) -> dict[str, Any]:
        """Return the numbers of a call, for one of its tensors."""
        places = {name: i for i, name in enumerate(self.names)}
        rows = {name: len(places) + i * self.n + tensor for i, name in enumerate(self.each)}
        # Once for all elements: the compiler cannot know that no store changes them.
        found = (places | rows).items()
        return {name: T.bind(self.values[place].astype(self.wide)) for name, place in found}

    def run(self, sweep: Sweep, which: int, dtypes: dict[str, str]) -> None:
        """Run a sweep over the chunks of a class of tensors."""
        vector = set(dtypes.values()) <= {"float32", "float64"}
        first, last = self.bounds[which], self.bounds[which + 1]
        with self.loop(0, last - first) as i:
            chunk = T.bind(first + i)
            tensor, start, size = (T.bind(self.chunks[chunk, k]) for k in range(3))
            k = self.numbers(tensor)
            lists = {}
            for row, (name, dtype) in enumerate(dtypes.items()):
                address = T.reinterpret("handle", self.table[row * self.n + tensor])
                data = T.decl_buffer((start + size,), dtype, data=T.bind(address))
                lists[name] = T.buffer_proxy(data)
            sums = {
                total: T.bind(self.of_tensors[tensor * self.sums + j].astype(self.wide))
                for total, j in sweep.needs.items()
            }
            lanes = {
                j: T.buffer_proxy(T.alloc_buffer((LANES,), SUM, scope="local"))
                for j in sweep.totals
            }

            def element(place: Any, lane: Any) -> None:
                e = {n: T.bind(widened(lists[n][place]).astype(self.wide)) for n in sweep.loads}

                def leaf(node: Expr) -> Any:
                    if node.kind == "total":
                        return sums[node]
                    return (e if node.kind == "element" else k)[node.parts[0]]

                value = printer(self.wide, leaf)
                stores = {name: value(x) for name, x in sweep.stores.items()}
                terms = {j: value(x) for j, x in sweep.totals.items()}
                for name, new in stores.items():
                    lists[name][place] = cast(new, dtypes[name])
                for j, term in terms.items():
                    lanes[j][lane] = lanes[j][lane] + term.astype(SUM)

            for total in lanes.values():
                with T.serial(0, LANES) as lane:
                    total[lane] = tirx.const(0, SUM)
            whole = T.bind(size // LANES if vector else tirx.const(0, "int64"))
            with T.serial(0, whole) as block, T.vectorized(0, LANES) as lane:
                element(start + block * LANES + lane, lane)
            with T.serial(0, size - whole * LANES) as rest:
                element(start + whole * LANES + rest, tirx.const(0, "int32"))
            for j, total in lanes.items():
                self.of_chunks[chunk * self.sums + j] = sum(
                    (total[lane] for lane in range(1, LANES)), total[0]
                )

    def add_up(self) -> None:
        """Add the sums over chunks to those over tensors, in the order of the chunks."""
        each = self.sums
        with T.serial(0, self.n * each) as i:
            self.of_tensors[i] = tirx.const(0, SUM)
        with T.serial(0, self.count) as chunk, T.serial(0, each) as j:
            at = self.chunks[chunk, 0] * each + j
            self.of_tensors[at] = self.of_tensors[at] + self.of_chunks[chunk * each + j]


def _parameter(name: str, shape: tuple[Any, ...], dtype: str) -> Any:
    return T.buffer_proxy(T.arg(name, T.buffer(shape, dtype)))


def list_kernel(
    sweeps: Sequence[Sweep],
    sums: int,
    names: tuple[str, ...],
    each: tuple[str, ...],
    dtypes: list[dict[str, str]],
    wide: str,
    parallel: bool,
    norm: bool = False,
) -> tirx.PrimFunc:
    """Return the kernel of an operator on lists of tensors.

    Parameters
    ----------
    sums: how many totals the sweeps have. names: of the numbers. each: of the numbers that each
    tensor has of its own. dtypes: of each class of tensors the dtype by list. wide: the dtype to
    compute in. parallel: whether to wake the threads. norm: whether the square root of the sum
    number 0 over all tensors is the result, a float32.
    """
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({NO_ALIAS: False, SCHEDULED: True})
            made = _Kernel(sums, names, each, wide, parallel)
            result = _parameter("out", (), "float32") if norm else None
            if sums:
                made.of_chunks = T.buffer_proxy(T.alloc_buffer((made.count * sums,), SUM))
                made.of_tensors = T.buffer_proxy(T.alloc_buffer((made.n * sums,), SUM))
            for sweep in sweeps:
                for which, kinds in enumerate(dtypes):
                    made.run(sweep, which, kinds)
                if sweep.totals:
                    made.add_up()
            if result is not None:
                total = T.buffer_proxy(T.alloc_buffer((1,), SUM, scope="local"))
                total[0] = tirx.const(0, SUM)
                with T.serial(0, made.n) as i:
                    total[0] = total[0] + made.of_tensors[i]
                result[()] = tirx.sqrt(total[0]).astype("float32")
        return builder.get()


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
