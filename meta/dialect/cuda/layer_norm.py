"""Layer normalisation over the last axis, and its gradients: a row stays in registers.

The gradients of scale and bias are sums over all rows: each thread block adds up those of its rows,
and a second launch adds up the blocks, always in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Any

import torch

from meta import op
from meta.dialect.core import Launch, OpEnv, Unsupported, decline_if
from meta.dialect.core.knobs import ask, tunable
from meta.dialect.cuda import cubin
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import Parameters, source
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis
from meta.runtime import gpu_properties

THREADS = 256
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of an element."""
GROUPS = 32, 64, 128, THREADS
"""How many threads may share a row."""
REGISTERS = 200
"""For what a thread of the backward pass holds of rows; up to 255 there are."""
FORWARD_ELEMENTS = 32
"""Elements of a row that a thread of the forward pass holds, at most."""
MOST = THREADS * FORWARD_ELEMENTS
"""The widest row."""
PER_PROCESSOR = 1
"""Thread blocks of the backward pass for each processor: it keeps their sums."""
POSITIONS = 32
"""Columns that a thread block of the last launch adds up."""
FINISHING = 512
"""Its threads."""
BYTES = 16
"""Of an access, at most."""
FILLING, OTHER_FILLING = 64, (8, 16, 32)
"""Thread blocks of the forward pass for each processor."""
PARAMETERS = Parameters(
    (
        *("x", "dy", "more", "scale", "bias", "mean", "invvar", "addend"),
        *("out", "again", "new_mean", "new_inv", "partial", "dscale", "dbias", "dsum"),
        *("added", "wide"),
    ),
    "qif",
)
VECTORS = {name: name for name in ("x", "dy", "more", "addend", "out", "again")}
VECTORS |= {"added": "x", "wide": "addend", "scale": "parameters", "bias": "parameters"}
"""What is read or written by vectors, and by the dtype of which of them."""
LIKE_X = ("dy", "more", "addend", "out", "again")
"""What is of x's dtype where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a source is made for: dtypes by the names of `PARAMETERS`; rows of ``width`` elements,
    accesses of ``vector``, ``group`` threads of a row.

    adds: whether something is added to x before the forward pass, to the result of the backward
    pass. more: whether something is added to dy. rounds: whether the sum of the forward pass is
    rounded to x's dtype before it is normalised. summed: whether the result of the backward pass is
    summed over all rows. centers: whether the mean is taken off. ahead: whether the next row is
    read before one is worked on.
    """

    types: tuple[tuple[str, str], ...]
    width: int
    vector: int
    group: int
    adds: bool = False
    more: bool = False
    rounds: bool = True
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
            return each <= FORWARD_ELEMENTS
        types = dict(self.types)
        names = ["x", "dy", *["addend"] * self.adds, *["more"] * self.more]
        read = sum(SIZES[types[name]] for name in names)
        return each * (3 + self.sums + (read / 4 if self.ahead else 0)) <= REGISTERS

    def source(self, kernel: str) -> str:
        """Return the source of a kernel: "forward", "backward" or "finish"."""
        given = dict(self.types)
        types = {"DATA": given["x"], "PARAMETER": given["parameters"], "ADDEND": given["addend"]}
        types |= {"GRADIENT": given["dy"], "MORE": given["more"]}
        types |= {"RESULT": given["out"], "AGAIN": given["again"]}
        sizes: dict[str, object] = {"WIDTH": self.width, "VECTOR": self.vector}
        sizes |= {"GROUP": self.group, "THREADS": THREADS, "SUMS": self.sums}
        sizes |= {"ADDS": int(self.adds), "DY_ADDS": int(self.more), "ROUNDS": int(self.rounds)}
        sizes |= {"AHEAD": int(self.ahead)}
        sizes |= {"SUMMED": int(self.summed), "CENTERS": int(self.centers)}
        sizes |= {"POSITIONS": POSITIONS, "FINISHING": FINISHING, "PER_PROCESSOR": PER_PROCESSOR}
        return source(f"layer_norm_{kernel}", types, sizes)


class Kernels:
    """The kernels of a call, compiled when they are first launched.

    types: dtypes of what is not of x's, by the names of `PARAMETERS`; "addend" and "more" are there
    if they are named. rounds, summed: see `Variant`.
    """

    def __init__(
        self,
        call: CallValues,
        types: Mapping[str, str] = MappingProxyType({}),
        *,
        rounds: bool = True,
        summed: bool = False,
    ) -> None:
        args, x = call.args._asdict(), call.args.x
        present = [p for p in (args["scale"], args.get("bias")) if p is not None]
        parameters = {p.dtype for p in present} or {x.dtype}
        _require_fits(x, args["axis"], parameters)
        self.width, self.eps = x.static_shape[-1], args["eps"]
        self.rows: int = prod(x.static_shape[:-1])
        self.types = {"x": x.dtype, "parameters": parameters.pop()}
        self.types |= {name: types.get(name, x.dtype) for name in LIKE_X}
        self.adds, self.more, self.rounds = "addend" in types, "more" in types, rounds
        self.summed, self.device = summed, call.device.ordinal
        self.centers = call.op not in (op.rms_norm, op.rms_norm_dx)
        self.processors = gpu_properties.query(self.device).processors
        self.kernel, self.variant = cache(self._kernel), cache(self._variant)
        self.group, self.filling = 0, FILLING

    def decide(self, backward: bool) -> None:
        """Ask for the sizes of a pass: ``group``, the threads of a row, and of the forward pass the
        ``blocks`` of a processor.
        """
        vector = self.vector({})
        default, fit = self._variants(backward, vector)
        self.group = ask("group", default.group, [v.group for v in fit])
        self.variant.cache_clear()
        if not backward:
            self.filling = ask("blocks", FILLING, OTHER_FILLING)

    def _variant(self, backward: bool, vector: int) -> Variant:
        default, fit = self._variants(backward, vector)
        return next((v for v in fit if v.group == self.group), default)

    def _variants(self, backward: bool, vector: int) -> tuple[Variant, list[Variant]]:
        """Return the variant of a pass, and all that there are: as few threads for a row as can
        hold it, with the next one, and more where there are few rows.
        """
        given = tuple(self.types.items()), self.width, vector
        for ahead in (True, False):
            how = self.adds, self.more, self.rounds, self.summed, self.centers, ahead
            made = [Variant(*given, group, *how) for group in GROUPS]
            fit = [v for v in made if v.fits(backward)]
            if fit:
                break
        else:
            fit = made[-1:]
        busy = (v for v in fit if self.rows * v.group >= self.processors * THREADS)
        narrow = [v for v in fit if v.group * vector < 2 * self.width]
        return next(busy, narrow[-1] if narrow else fit[0]), fit

    def _kernel(self, name: str, vector: int) -> Launch:
        grid, threads = self.blocks(name != "forward", vector), THREADS
        if name == "finish":
            made = self.variant(True, vector)
            grid, threads = -(-made.sums * made.padded // POSITIONS), FINISHING
        text = self._source(name, vector)
        return cubin.launch(text, name, self.device, (grid, 1), threads, PARAMETERS.size)

    def _source(self, name: str, vector: int) -> str:
        return self.variant(name != "forward", vector).source(name)

    def env(self, run: Callable[..., None], *names: str, workspace: int = 0) -> OpEnv:
        """Return what launches kernels of these names, compiled before."""
        vector = self.vector({})
        return cubin.env(
            run, lambda: [self._source(n, vector) for n in names], self.device, workspace
        )

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
        most = self.processors * (PER_PROCESSOR if backward else self.filling)
        return min(most, -(-self.rows // at_once))

    def launch(self, vector: int, tensors: dict[str, torch.Tensor], *names: str) -> None:
        """Launch kernels, one after the other, with tensors by parameter."""
        blocks = self.blocks(names[0] != "forward", vector)
        given = PARAMETERS.packed(tensors, self.rows, blocks, self.eps)
        for name in names:
            self.kernel(name, vector)(given)


def _require_fits(x: TensorType, axis: int, parameters: set[str]) -> None:
    if not x.is_static or x.dtype not in SIZES:
        raise Unsupported(f"made for {', '.join(SIZES)} of extents that are numbers, not {x}")
    decline_if(normalize_axis(axis, x.ndim) != x.ndim - 1, "made for the last axis")
    decline_if(len(parameters) > 1, "scale and bias differ in dtype")
    if not 0 < x.static_shape[-1] <= MOST or 0 in x.static_shape:
        raise Unsupported(f"made for rows of 1 to {MOST} elements")


def _forward(call: CallValues) -> OpEnv:
    names = (*present_arguments(call, "x", "scale", "bias"), "out", "new_mean", "new_inv")
    return forward(Kernels(call), names)


def forward(kernels: Kernels, names: tuple[str, ...]) -> OpEnv:
    """Return the launch of the forward pass, given tensors of these names of `PARAMETERS`: "out" is
    the result, "added" the sum that is normalised, "wide" that before it was rounded to x's dtype.
    """
    kernels.decide(backward=False)

    def run(*values: torch.Tensor) -> None:
        tensors = dict(zip(names, values, strict=False))
        kernels.launch(kernels.vector(tensors), tensors, "forward")

    return kernels.env(run, "forward")


def backward(
    call: CallValues,
    types: Mapping[str, str] = MappingProxyType({}),
    results: tuple[str, ...] = ("out",),
    *,
    summed: bool = False,
) -> OpEnv:
    """Return the launches of a gradient.

    types: see `Kernels`; what is added to dy ("more") and to the gradient of x ("addend") is given
    behind the other tensors. results: of "out" and "again", which are filled. summed: they fill a
    float32 sum over all rows of the result, too.
    """
    kernels = Kernels(call, types, summed=summed)
    kernels.decide(backward=True)
    present = present_arguments(call, "x", "scale", "dy", "mean", "invvar")
    added = tuple(name for name in ("more", "addend") if name in types)
    shift = ("dbias",) if kernels.centers else ()
    names = (*present, *added, *results, "dscale", *shift, "dsum")
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
        kernels.launch(vector, tensors, *used)

    used = ("backward", "finish") if sums else ("backward",)
    workspace = 4 * prod(shape(kernels.vector({}))) if sums else 0
    return kernels.env(run, *used, workspace=workspace)


def _backward(call: CallValues) -> OpEnv:
    return backward(call)


def present_arguments(call: CallValues, *names: str) -> tuple[str, ...]:
    """Return the names of the arguments that a call has."""
    args: dict[str, Any] = call.args._asdict()
    return tuple(n for n in names if args.get(n) is not None)


for _op in (op.layer_norm, op.layer_norm_train):
    dialect.op(_op)(tunable(_forward))
# Statistics are given to the second, and computed once more by the others.
for _op in (op.layer_norm_dx, op.layer_norm_train_dx, op.rms_norm_dx):
    dialect.op(_op)(tunable(_backward))
