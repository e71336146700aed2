"""Kernels that run over lists of tensors on the CPU: loops, written once, around the formula of an
element.

A kernel runs over chunks of all tensors in parallel, and finds the tensors by their addresses (see
`launch.py`): it is built once for all models, while tensor expressions of 200 parameters
would take minutes. Nothing here knows operators.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from meta.dialect.tvm.broadcast import cast, widened
from meta.dialect.tvm.lower import NO_ALIAS, SCHEDULED
from meta.op.core.formula import Expr, Sweep, evaluate


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
