"""Batch normalisation of arrays whose channels come last, and its gradients: two launches each.

The gradients want no statistics of the forward pass: they are had from the pass that adds up dy.
What stands beside it in a network is done in the same launches.

Forward, a sum and an activation are done where the result is written. Backward, relu's mask is
applied where its gradient is read: by itself, a bit per element goes from the first launch to the
second; where the masked gradient is used elsewhere too, as that of the sum's other part, or is made
of two gradients, the first launch writes it and the second reads it. What another activation was of
is not saved, but computed again of x: in a third launch before these are the sums that it needs. In
arrays of x's size that are read or written, beside one generated kernel for what is not the
normalisation:

==================================================  =====  =====
normalisation and                                   fused  apart
==================================================  =====  =====
activation                                          3      5
sum, activation                                     4      6
gradient of relu                                    6.1    8
gradient of relu, used elsewhere                    7      8
gradient of relu, of two gradients, used elsewhere  8      9
gradient of another activation                      6      8
==================================================  =====  =====
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core import Launch, OpEnv, Unsupported, decline_if
from meta.dialect.core.knobs import ask, tunable
from meta.dialect.cuda import cubin
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.activations import ACTIVATIONS, Activation, macros, with_numbers
from meta.dialect.cuda.source import Parameters, source
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axes, normalize_axis
from meta.runtime import gpu_properties

THREADS, OTHER_THREADS = 512, (256, 1024)
"""Of a block, one per processor: registers are for what is read ahead."""
LINE = 128
"""Bytes of a row that a thread block takes."""
ACCESS = 16
"""Bytes of an access, where channels and addresses allow."""
PER_PROCESSOR, OTHER_BLOCKS = 1, (2, 4)
"""Thread blocks of `THREADS`: each one's sums are read by all others of its channels."""
AHEAD, OTHER_AHEAD = 8, (4, 16)
"""Accesses of a thread before it waits for the first."""
DTYPES = "float16", "bfloat16", "float32"
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
PARAMETERS = Parameters(
    (
        *("x", "z", "y", "dy", "w", "b", "running_mean", "running_var"),
        *("out", "masked", "dw", "db", "mask", "partial"),
    ),
    "qiff4x",
)
DATA = "x", "z", "y", "dy", "out", "masked"
"""Those of x's type."""
NO_ACTIVATION: Mapping[str, str] = {}
OTHERS = "PARAMETER", "RUNNING", "DW", "DB"
"""The types of the others in the source."""


class Kernels:
    """The two kernels of a pass, compiled when they are first launched.

    Parameters
    ----------
    x, axis, eps, momentum: of the call. backward: which of the passes. types: the dtypes of
    parameters and results by their names in the source. flags: what is done beside it, see there.
    activation: the macros of one. returns_masked: whether the masked gradient is a result, if it is
    written at all.
    """

    def __init__(
        self,
        x: TensorType,
        axis: int,
        eps: float,
        device: Device,
        types: dict[str, str],
        *,
        momentum: float = 0.0,
        backward: bool = False,
        flags: frozenset[str] = frozenset(),
        activation: Mapping[str, str] = NO_ACTIVATION,
        returns_masked: bool = False,
    ) -> None:
        """Raise Unsupported for x of another dtype, or with its channels elsewhere."""
        _require_fits(x, axis)
        self.dtype, self.channels = x.dtype, x.static_shape[-1]
        self.rows, self.backward, self.flags = x.size // self.channels, backward, flags
        self.returns_masked, self.activation = returns_masked, activation
        self.names = ["sums", "apply"]
        if backward and activation:
            self.names.insert(0, "moments")
        full = ACCESS // BYTES[self.dtype]
        self.vector = 1 if self.channels % full else full
        self.types = {"DATA": x.dtype, **dict.fromkeys(OTHERS, "float32"), **types}
        self.threads = ask("threads", THREADS, OTHER_THREADS)
        self.ahead = ask("ahead", AHEAD, OTHER_AHEAD)
        self.each = ask("blocks", PER_PROCESSOR, OTHER_BLOCKS)
        self.momentum, self.eps, self.device = momentum, eps, device.ordinal
        self.processors = gpu_properties.query(self.device).processors
        self.kernel = cache(self._kernel)

    def _kernel(self, name: str, vector: int) -> Launch:
        lanes, tiles, blocks = self._grid(vector)
        text, grid = self._source(vector, lanes), (blocks, tiles)
        return cubin.launch(text, name, self.device, grid, self.threads, PARAMETERS.size)

    def _source(self, vector: int, lanes: int) -> str:
        # How many arrays each of the kernels reads.
        adds, masks = "ADDS" in self.flags, "MASK" in self.flags
        first = 2 + adds + masks if self.backward else 1
        second = 2 if self.backward else 1 + adds
        sizes: dict[str, object] = {
            "VECTOR": vector,
            "LANES": lanes,
            "SUMS": 4 if self.backward else 2,
        }
        sizes |= {"SUMS_AHEAD": self.ahead // first, "APPLY_AHEAD": self.ahead // second}
        sizes |= {"THREADS": self.threads, **dict.fromkeys(sorted(self.flags), 1)}
        sizes |= self.activation
        return source(f"batch_norm_{'backward' if self.backward else 'forward'}", self.types, sizes)

    def env(self, run: Callable[..., None]) -> OpEnv:
        """Return what launches the kernels, compiled before."""
        lanes, _, blocks = self._grid(self.vector)
        workspace = sum(self._scratch(self.vector, blocks).values())
        return cubin.env(run, lambda: [self._source(self.vector, lanes)], self.device, workspace)

    def run(self, tensors: dict[str, torch.Tensor]) -> None:
        """Launch the kernels with tensors by the names of their parameters."""
        moved = 0
        for name in DATA:
            if name in tensors:
                moved |= tensors[name].data_ptr()
        vector = 1 if moved % ACCESS else self.vector
        _, _, blocks = self._grid(vector)
        device = tensors["x"].device
        for name, size in self._scratch(vector, blocks).items():
            tensors[name] = torch.empty(size, dtype=torch.uint8, device=device)
        numbers = self.rows, self.channels, self.momentum, self.eps
        given = PARAMETERS.packed(tensors, *numbers)
        for name in self.names:
            self.kernel(name, vector)(given)

    def _grid(self, vector: int) -> tuple[int, int, int]:
        """Return lanes, tiles, and into how many thread blocks the rows are divided."""
        lanes, tiles = shares(self.channels // vector, LINE // (ACCESS if vector > 1 else 4))
        at_once = self.threads // lanes
        most = self.processors * self.each // tiles
        return lanes, tiles, max(1, min(most, -(-self.rows // at_once)))

    def _scratch(self, vector: int, blocks: int) -> dict[str, int]:
        """Return the bytes of what goes from the first kernel to the second, by parameters."""
        found = {"partial": 4 * blocks * (4 if self.backward else 2) * self.channels}
        count = self.rows * self.channels
        if "KEEPS" in self.flags and not self.returns_masked:
            found["masked"] = count * BYTES[self.dtype]
        elif "MASK" in self.flags and "KEEPS" not in self.flags:
            found["mask"] = count // vector
        return found


def shares(vectors: int, most: int) -> tuple[int, int]:
    """Return how many threads share a row's ``vectors``, a power of 2 up to ``most``, and how often
    that is done beside one another.
    """
    lanes = 1
    while lanes < most and lanes < vectors:
        lanes *= 2
    return lanes, -(-vectors // lanes)


def _require_fits(x: TensorType, axis: int) -> None:
    if not x.is_static or x.dtype not in DTYPES:
        raise Unsupported(f"made for {', '.join(DTYPES)} of extents that are numbers, not {x}")
    decline_if(normalize_axis(axis, x.ndim) != x.ndim - 1, "made for channels on the last axis")
    decline_if(not x.size, "there is an empty tensor")


def common_dtype(**parameters: TensorType | None) -> str:
    """Return the dtype of those that there are; Unsupported if they differ."""
    found = {p.dtype for p in parameters.values() if p is not None}
    decline_if(len(found) > 1, f"{' and '.join(parameters)} differ in dtype")
    return found.pop() if found else "float32"


@dialect.op(op.batch_norm_train)
@tunable
def batch_norm_train(call: CallValues) -> OpEnv:
    """Return the launches that normalise, and write the running statistics."""
    args: dict[str, Any] = call.args._asdict()
    kernels = forward(args, call.device)
    return env(kernels, args, "x", "running_mean", "running_var", "w", "b", results=("out",))


@dialect.op(op.batch_norm_train_dxwb)
@tunable
def batch_norm_train_dxwb(call: CallValues) -> OpEnv:
    """Return the launches that compute the statistics once more."""
    args: dict[str, Any] = call.args._asdict()
    kernels = backward(args, call.outputs, call.device)
    return env(kernels, args, "dy", "x", "w", "b", results=("out", "dw", "db"))


def forward(
    args: dict[str, Any],
    device: Device,
    *flags: str,
    activation: Mapping[str, str] = NO_ACTIVATION,
) -> Kernels:
    """Return the kernels for arguments of `batch_norm_train`, tensors as their types."""
    running = common_dtype(running_mean=args["running_mean"], running_var=args["running_var"])
    types = {"PARAMETER": common_dtype(w=args["w"], b=args["b"]), "RUNNING": running}
    x, axis, eps, momentum = (args[n] for n in ("x", "axis", "eps", "momentum"))
    return Kernels(
        x, axis, eps, device, types,
        momentum=momentum, flags=frozenset(flags), activation=activation,
    )  # fmt: skip


def backward(
    args: dict[str, Any],
    results: tuple[TensorType, ...],
    device: Device,
    *flags: str,
    activation: Mapping[str, str] = NO_ACTIVATION,
) -> Kernels:
    """Return the kernels for arguments of `batch_norm_train_dxwb`, tensors as their types."""
    parameters = {"w": args["w"], "b": args["b"]} if activation else {"w": args["w"]}
    types = {"PARAMETER": common_dtype(**parameters)}
    types |= {"DW": results[1].dtype, "DB": results[2].dtype}
    x, axis, eps = (args[n] for n in ("x", "axis", "eps"))
    return Kernels(
        x, axis, eps, device, types,
        backward=True, flags=frozenset(flags), activation=activation,
        returns_masked=len(results) > 3,
    )  # fmt: skip


def env(kernels: Kernels, args: dict[str, Any], *names: str, results: tuple[str, ...]) -> OpEnv:
    """Return what runs the kernels with those of the named arguments that there are."""
    given = (*(n for n in names if args[n] is not None), *results)

    def run(*values: torch.Tensor) -> None:
        kernels.run(dict(zip(given, values, strict=True)))

    return kernels.env(run)


def _normalised(x, running_mean, running_var, w, b, momentum, eps, axis):
    return op.batch_norm_train(x, running_mean, running_var, w, b, momentum, eps, axis)


def _sum(x, running_mean, running_var, w, b, momentum, eps, axis, z):
    return op.add(_normalised(x, running_mean, running_var, w, b, momentum, eps, axis), z)


def _activated(activation: Activation) -> Callable[..., Any]:
    def described(numbers, x, running_mean, running_var, w, b, momentum, eps, axis, z):
        y = _normalised(x, running_mean, running_var, w, b, momentum, eps, axis)
        return activation.value(op.add(y, z) | y, *numbers)

    return with_numbers(activation.numbers, described)


def _define_forward(name: str, describes: Callable[..., Any], activation: str = "") -> None:
    """Register the launches of y + z, or of an activation of y or y + z."""

    @tunable
    def make(
        x: TensorType, running_mean: Any, running_var: Any, w: Any, b: Any, momentum: float,
        eps: float, axis: int, z: TensorType | None, device: Device, first: float | None = None,
        second: float | None = None,
    ) -> OpEnv:  # fmt: skip
        values = x, running_mean, running_var, w, b, momentum, eps, axis, z
        args = dict(zip((*op.batch_norm_train.schema.names, "z"), values, strict=True))
        adds = () if z is None else ("ADDS",)
        _require_like(x, z=z)
        behind = macros(activation, first=first, second=second) if activation else NO_ACTIVATION
        kernels = forward(args, device, *adds, activation=behind)
        names = "x", "running_mean", "running_var", "w", "b", "z"
        return env(kernels, args, *names, results=("out",))

    dialect.pattern_op(describes, name=name)(make)


def _masked(dy: Any, z: Any, y: Any) -> Any:
    """The gradient of relu, which was of y or gave it, for dy or dy + z."""
    total = op.add(dy, z) | dy
    return op.relu_dx(None, y, total) | op.relu_dx(y, None, total)


def _gradients(dy, z, y, x, w, b, eps, axis):
    found = op.batch_norm_train_dxwb(_masked(dy, z, y), x, w, b, eps, axis)
    return found[0], found[1], found[2]


def _all_gradients(dy, z, y, x, w, b, eps, axis):
    masked = _masked(dy, z, y)
    found = op.batch_norm_train_dxwb(masked, x, w, b, eps, axis)
    return found[0], found[1], found[2], masked


def _define_backward(name: str, describes: Callable[..., Any], *results: str) -> None:
    """Register the launches of the gradients; "masked" is what comes out of the relu."""

    @tunable
    def make(
        dy: TensorType, z: TensorType | None, y: TensorType, x: TensorType, w: Any, b: Any,
        eps: float, axis: int, result: tuple[TensorType, ...], device: Device,
    ) -> OpEnv:  # fmt: skip
        _require_like(x, dy=dy, z=z, y=y)
        flags = ["MASK"] if z is None else ["MASK", "ADDS"]
        if z is not None or "masked" in results:
            flags.append("KEEPS")
        args = {"dy": dy, "z": z, "y": y, "x": x, "w": w, "b": b, "eps": eps, "axis": axis}
        kernels = backward(args, result, device, *flags)
        return env(kernels, args, "dy", "z", "y", "x", "w", "b", results=results)

    dialect.pattern_op(describes, name=name)(make)


def _again(activation: Activation) -> Callable[..., Any]:
    """The gradients of an activation and of the normalisation that it was of, which is done again
    for the first.
    """

    def described(numbers, dy, x, w, b, over, momentum, c, eps, axis):
        wide = x | op.astype(x, "float32")
        y = op.batch_norm_infer(
            x, op.mean(wide, over), op.var(wide, over), w, b, momentum, eps, axis
        )
        found = op.batch_norm_train_dxwb(activation.gradient(y, dy, *numbers), x, w, c, eps, axis)
        return found[0], found[1], found[2]

    return with_numbers(activation.numbers, described)


def _define_gradient(name: str, activation: str) -> None:
    """Register the launches of the gradients of an activation of a normalisation."""

    @tunable
    def make(
        dy: TensorType, x: TensorType, w: Any, b: Any, over: Any, momentum: float, c: Any,
        eps: float, axis: int, result: tuple[TensorType, ...], device: Device,
        first: float | None = None, second: float | None = None,
    ) -> OpEnv:  # fmt: skip
        _require_like(x, dy=dy)
        others = tuple(i for i in range(x.ndim) if i != axis % x.ndim)
        decline_if(normalize_axes(over, x.ndim) != others, "the statistics are not by channels")
        args = {"dy": dy, "x": x, "w": w, "b": b, "eps": eps, "axis": axis}
        behind = macros(activation, first=first, second=second)
        kernels = backward(args, result, device, activation=behind)
        return env(kernels, args, "dy", "x", "w", "b", results=("out", "dw", "db"))

    dialect.pattern_op(_again(ACTIVATIONS[activation]), name=name)(make)


def _require_like(x: TensorType, **others: TensorType | None) -> None:
    for name, type_ in others.items():
        decline_if(type_ not in (None, x), f"{name} is of {type_}, not of x's type {x}")


_define_forward("batch_norm_add", _sum)
for _name, _activation in ACTIVATIONS.items():
    _define_forward(f"batch_norm_{_name}", _activated(_activation), _name)
    # Another one of relu reads its result, where that is saved.
    _define_gradient(f"batch_norm_{_name}{'_again' * (_name == 'relu')}_dxwb", _name)
_define_backward("batch_norm_relu_dxwb", _gradients, "out", "dw", "db")
_define_backward("batch_norm_add_relu_dxwb", _all_gradients, "out", "dw", "db", "masked")
