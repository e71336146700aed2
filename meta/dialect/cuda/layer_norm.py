"""Layer normalisation over the last axis, and its gradients: a row stays in registers.

The gradients of scale and bias are sums over all rows: each thread block adds up those of its rows,
and a second launch adds up the blocks, always in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch

from meta import op
from meta.dialect.core import Deferred, OpEnv, Unsupported, decline_if
from meta.dialect.cuda import cubin, driver
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import packed, source
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis
from meta.runtime import chip

THREADS = 256
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of an element."""
GROUPS = 32, 64, 128, THREADS
"""How many threads may share a row."""
REGISTERS = 200
"""For what a thread of the backward pass holds of rows; up to 255 there are."""
FORWARD_EACH = 32
"""Elements of a row that a thread of the forward pass holds, at most."""
MOST = THREADS * FORWARD_EACH
"""The widest row."""
PER_PROCESSOR = 1
"""Thread blocks of the backward pass for each processor: it keeps their sums."""
POSITIONS = 32
"""Columns that a thread block of the last launch adds up."""
FINISHING = 512
"""Its threads."""
BYTES = 16
"""Of an access, at most."""
FILLING = 64
"""Thread blocks of the forward pass for each processor."""
POINTERS = (
    *("x", "dy", "scale", "bias", "mean", "invvar", "addend"),
    *("out", "new_mean", "new_inv", "partial", "dscale", "dbias", "dsum", "added", "wide"),
)
VECTORS = {"x": "x", "dy": "x", "out": "x", "added": "x", "scale": "parameters"}
VECTORS |= {"bias": "parameters", "addend": "addend", "wide": "addend"}
"""What is read or written by vectors, and of which of the dtypes of a variant it is."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a source is made for: dtypes of data, of scale and bias, and of an addend; rows of
    ``width`` elements, accesses of ``vector``, ``group`` threads of a row. ``addend``: of what is
    added to x before the forward pass, to the result of the backward pass. ``summed``: whether that
    result is summed over all rows. ``centers``: whether the mean is taken off. ``ahead``: whether
    the next row is read before one is worked on.
    """

    x: str
    parameters: str
    width: int
    vector: int
    group: int
    addend: str | None = None
    summed: bool = False
    centers: bool = True
    ahead: bool = True

    @property
    def sums(self) -> int:
        """How many sums over all rows the backward pass makes."""
        return 1 + self.centers + self.summed

    @property
    def padded(self) -> int:
        """Elements of a row with those that complete the last step of its threads."""
        step = self.group * self.vector
        return -(-self.width // step) * step

    def fits(self, backward: bool) -> bool:
        """Whether the threads of a row can hold it."""
        each = self.padded // self.group
        if not backward:
            return each <= FORWARD_EACH
        read = 2 * SIZES[self.x] + (SIZES[self.addend] if self.addend else 0)
        return each * (3 + self.sums + (read / 4 if self.ahead else 0)) <= REGISTERS

    def source(self, kernel: str) -> str:
        """Return the source of a kernel: "forward", "backward" or "finish"."""
        types = {"DATA": self.x, "PARAMETER": self.parameters, "ADDEND": self.addend or self.x}
        sizes: dict[str, object] = {"WIDTH": self.width, "VECTOR": self.vector}
        sizes |= {"GROUP": self.group, "THREADS": THREADS, "SUMS": self.sums}
        sizes |= {"ADDS": int(self.addend is not None), "AHEAD": int(self.ahead)}
        sizes |= {"SUMMED": int(self.summed), "CENTERS": int(self.centers)}
        sizes |= {"POSITIONS": POSITIONS, "FINISHING": FINISHING, "PER_PROCESSOR": PER_PROCESSOR}
        return source(f"layer_norm_{kernel}", types, sizes)


class Kernels:
    """The kernels of a call, compiled when they are first launched."""

    def __init__(self, call: CallValues, addend: str | None = None, summed: bool = False) -> None:
        args, x = call.args._asdict(), call.args.x
        present = [p for p in (args["scale"], args.get("bias")) if p is not None]
        parameters = {p.dtype for p in present} or {x.dtype}
        _require_fits(x, args["axis"], parameters)
        self.width, self.eps = x.static_shape[-1], args["eps"]
        self.rows: int = prod(x.static_shape[:-1])
        self.types = {"x": x.dtype, "parameters": parameters.pop(), "addend": addend or x.dtype}
        self.addend, self.summed, self.device = addend, summed, call.device.ordinal
        self.centers = call.op is not op.rms_norm_dx
        self.processors = chip.of(self.device).processors
        self.kernel, self.variant = cache(self._kernel), cache(self._variant)

    def _variant(self, backward: bool, vector: int) -> Variant:
        """Return the variant of a pass: as few threads for a row as can hold it, with the next one,
        and more where there are few rows.
        """
        x, parameters = self.types["x"], self.types["parameters"]
        for ahead in (True, False):
            given = x, parameters, self.width, vector
            how = self.addend, self.summed, self.centers, ahead
            made = [Variant(*given, group, *how) for group in GROUPS]
            fit = [v for v in made if v.fits(backward)]
            if fit:
                break
        else:
            fit = made[-1:]
        busy = (v for v in fit if self.rows * v.group >= self.processors * THREADS)
        narrow = [v for v in fit if v.group * vector < 2 * self.width]
        return next(busy, narrow[-1] if narrow else fit[0])

    def _kernel(self, name: str, vector: int) -> driver.Function:
        return cubin.function(self._source(name, vector), name, self.device)

    def _source(self, name: str, vector: int) -> str:
        return self.variant(name != "forward", vector).source(name)

    def deferred(self, run: Callable[..., None], *names: str) -> Deferred:
        """Return what launches kernels of these names, compiled before."""
        vector = self.vector({})
        return cubin.deferred(run, lambda: [self._source(n, vector) for n in names], self.device)

    def vector(self, tensors: dict[str, torch.Tensor]) -> int:
        """Return how many elements an access to these tensors has."""
        found = BYTES // SIZES[self.types["x"]]
        while self.width % found or not all(self._aligned(n, t, found) for n, t in tensors.items()):
            found //= 2
        return found

    def _aligned(self, name: str, tensor: torch.Tensor, vector: int) -> bool:
        if name not in VECTORS:
            return True
        return tensor.data_ptr() % min(BYTES, vector * SIZES[self.types[VECTORS[name]]]) == 0

    def blocks(self, backward: bool, vector: int) -> int:
        """Return the number of thread blocks that share the rows."""
        at_once = THREADS // self.variant(backward, vector).group
        most = self.processors * (PER_PROCESSOR if backward else FILLING)
        return min(most, -(-self.rows // at_once))

    def launch(self, name: str, vector: int, blocks: int, tensors: dict[str, torch.Tensor]) -> None:
        """Launch a kernel with tensors by parameter; the rows are shared among ``blocks``."""
        given = packed(POINTERS, tensors, "qif", self.rows, blocks, self.eps)
        grid, threads = blocks, THREADS
        if name == "finish":
            made = self.variant(True, vector)
            padded = made.sums * made.padded
            grid, threads = -(-padded // POSITIONS), FINISHING
        self.kernel(name, vector).launch(grid, threads, given)


def _require_fits(x: TensorType, axis: int, parameters: set[str]) -> None:
    if not x.is_static or x.dtype not in SIZES:
        raise Unsupported(f"made for {', '.join(SIZES)} of extents that are numbers, not {x}")
    decline_if(normalize_axis(axis, x.ndim) != x.ndim - 1, "made for the last axis")
    decline_if(len(parameters) > 1, "scale and bias differ in dtype")
    if not 0 < x.static_shape[-1] <= MOST or 0 in x.static_shape:
        raise Unsupported(f"made for rows of 1 to {MOST} elements")


def _forward(call: CallValues) -> OpEnv:
    names = (*given(call, "x", "scale", "bias"), "out", "new_mean", "new_inv")
    return forward(Kernels(call), names)


def forward(kernels: Kernels, names: tuple[str, ...]) -> OpEnv:
    """Return the launch of the forward pass, given tensors of these names of `POINTERS`: "out" is
    the result, "added" the sum that is normalised, "wide" that before it was rounded to x's dtype.
    """

    def run(*values: torch.Tensor) -> None:
        tensors = dict(zip(names, values, strict=False))
        vector = kernels.vector(tensors)
        kernels.launch("forward", vector, kernels.blocks(False, vector), tensors)

    return OpEnv(kernels.deferred(run, "forward"), allocates=False)


def backward(call: CallValues, adds: bool = False, summed: bool = False) -> OpEnv:
    """Return the launches of a gradient. ``adds``: they are given another tensor, which is added to
    the gradient of x. ``summed``: they fill a float32 sum over all rows of that, too.
    """
    kernels = Kernels(call, call.args.x.dtype if adds else None, summed)
    present = given(call, "x", "scale", "dy", "mean", "invvar")
    added, shift = ("addend",) if adds else (), ("dbias",) if kernels.centers else ()
    names = (*present, *added, "out", "dscale", *shift, "dsum")
    sums = len(call.outputs) > 1

    def shape(vector: int) -> tuple[int, int]:
        made = kernels.variant(True, vector)
        return kernels.blocks(True, vector), made.sums * made.padded

    def run(*values: torch.Tensor) -> None:
        tensors = dict(zip(names, values, strict=False))
        vector = kernels.vector(tensors)
        blocks, columns = shape(vector)
        if sums:
            device = values[0].device
            tensors["partial"] = torch.empty(blocks * columns, dtype=torch.float32, device=device)
        kernels.launch("backward", vector, blocks, tensors)
        if sums:
            kernels.launch("finish", vector, blocks, tensors)

    used = ("backward", "finish") if sums else ("backward",)
    workspace = 4 * prod(shape(kernels.vector({}))) if sums else 0
    return OpEnv(kernels.deferred(run, *used), allocates=False, workspace=workspace)


def given(call: CallValues, *names: str) -> tuple[str, ...]:
    """Return the names of the arguments that a call has."""
    args: dict[str, Any] = call.args._asdict()
    return tuple(n for n in names if args.get(n) is not None)


for _op in (op.layer_norm, op.layer_norm_train):
    dialect.op(_op)(_forward)
# Statistics are given to the second, and computed once more by the others.
for _op in (op.layer_norm_dx, op.layer_norm_train_dx, op.rms_norm_dx):
    dialect.op(_op)(backward)
