"""Buffers for results: the caller's tensors, which of them a program fills itself, and views of
those that are larger than the result.

A result lies compactly at the beginning of its buffer, which may be larger along the dimensions
that are not fixed: a buffer of the maximum shape serves all calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch.autograd.graph import increment_version

from meta.base.errors import ArgumentError
from meta.ir import TensorType
from meta.runtime import buffer_replacement
from meta.runtime.allocate import address_span
from meta.runtime.inplace_writes import writable_buffer
from meta.runtime.ndarray import from_dlpack, ndarray
from meta.vm.executable import Executable
from meta.vm.run.signature import (
    Extents,
    Signature,
    extent_of,
    in_order,
    named,
    require_kind,
    tensor_like,
)

ALIGNMENT = {"cpu": 64, "cuda": 256}
"""Bytes that the address of memory which a kernel fills is a multiple of, as of what torch
allocates. A result goes to memory at other addresses by a copy.
"""


class Memory:
    """Where tensors lie, to find which of them another one shares memory with."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        spans = sorted({span for t in tensors if (span := address_span(t)) is not None})
        self._starts = [start for start, _ in spans]
        # The furthest end of all spans up to each: spans may lie in one another.
        self._ends: list[int] = []
        for _, end in spans:
            self._ends.append(max(end, self._ends[-1] if self._ends else 0))

    def meets(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor shares memory with one of them."""
        span = address_span(tensor)
        return span is not None and self.meets_span(span)

    def meets_span(self, span: tuple[int, int]) -> bool:
        """Whether one of them lies, in part, between two addresses."""
        begun = bisect_left(self._starts, span[1])
        return begun > 0 and self._ends[begun - 1] > span[0]


@dataclass(slots=True)
class Buffer:
    """A tensor for one result.

    Attributes
    ----------
    name, type: of the result. tensor: the whole buffer, None where the result is allocated.
    view: the part for this call's result; None if its shape is not known before.
    """

    name: str
    type: TensorType
    tensor: torch.Tensor | None
    view: torch.Tensor | None = None

    def place(self) -> torch.Tensor | None:
        """Return where the program may put the result itself."""
        view = self.view
        if view is None or not view.numel():
            return None
        return None if view.data_ptr() % ALIGNMENT[view.device.type] else view

    def fill(self, result: torch.Tensor) -> torch.Tensor:
        """Put a result into the buffer, if it is not there; return it there."""
        if self.tensor is None:
            return result
        if self.view is None:
            self.view = self.part(tuple(result.shape))
        view = self.view
        if result.data_ptr() != view.data_ptr() or not view.numel():
            view.copy_(result)
        elif not view.is_inference():
            increment_version(view)  # kernels write past torch's counters
        return view

    def part(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the beginning of the buffer as a tensor of a shape; ArgumentError if it is not
        large enough, or of another size along a fixed dimension.
        """
        assert self.tensor is not None
        found = tuple(self.tensor.shape)
        for axis, (extent, has) in enumerate(zip(shape, found, strict=True)):
            dim = self.type.shape[axis]
            if has < extent or (isinstance(dim, int) and has != dim):
                at_least = "" if isinstance(dim, int) else f"{dim} = {extent}, or more"
                raise ArgumentError(
                    f"the buffer of output {self.name!r} does not fit along axis {axis}",
                    expected=f"{at_least or dim}, as the result is {self.type}",
                    found=f"{has} in shape {found}",
                    hint="module.get_output_maximum_shape(name) is enough for every call",
                )
        if found == shape:
            return self.tensor
        return self.tensor.view(-1)[: prod(shape)].view(shape)


class Buffers:
    """Checks and fills buffers for the results of one program."""

    def __init__(self, executable: Executable, signature: Signature) -> None:
        self._executable, self._signature = executable, signature
        self._known_arrays = Memory(())
        self._seen = -1
        # Of extents that are not known a view may be a kernel's result.
        self._may_return_inputs = bool(executable.returned or executable.code.dims)

    def apart(self, results: list[torch.Tensor], inputs: Sequence[ndarray]) -> list[torch.Tensor]:
        """Return results, of those in memory of inputs or constants copies."""
        if not self._may_return_inputs:
            return results
        given = Memory(a.tensor for a in inputs)
        arrays = self._arrays()
        return [r.clone() if given.meets(r) or arrays.meets(r) else r for r in results]

    def _arrays(self) -> Memory:
        """Return where the constants are."""
        if self._seen != buffer_replacement.replacement_count:
            self._known_arrays = Memory(a.tensor for a in self._executable.arrays)
            self._seen = buffer_replacement.replacement_count
        return self._known_arrays

    def of(self, outputs: object, inputs: Sequence[ndarray], extents: Extents) -> list[Buffer]:
        """Return the buffers of a call; ``outputs``: a list, or a dict by name, of tensors, None
        for what is to be allocated.

        Raises ArgumentError, UnknownName or DeviceError, naming the output, for a buffer of another
        device, dtype or shape, one that is not contiguous or cannot be written, or that shares
        memory with another one, with an input, or with a constant.
        """
        types = self._signature.outputs
        if outputs is None:
            return [Buffer(name, type_, None) for name, type_ in types.items()]
        given = in_order(outputs, types, "output")
        found = []
        for (name, type_), value in zip(types.items(), given, strict=True):
            if value is None:
                found.append(Buffer(name, type_, None))
                continue
            buffer = Buffer(name, type_, self._writable(value, name, type_))
            shape = type_.static_shape if type_.is_static else _evaluated(type_, extents)
            if shape is not None:
                buffer.view = buffer.part(shape)
            found.append(buffer)
        self._require_apart(found, inputs)
        return found

    def _writable(self, value: object, name: str, type_: TensorType) -> torch.Tensor:
        # Of a numpy array that cannot be written, or not be shared, `tensor_like` takes a copy.
        with named("output", name):
            shared = from_dlpack(value) if isinstance(value, np.ndarray) else value
        array = tensor_like(shared, "output", name)
        require_kind(array, "output", name, type_, self._signature.device)
        what = f"output {name!r}"
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise ArgumentError(
                f"{what} requires a gradient, which would not know of what is written to it",
                found=f"shape {tuple(value.shape)}",
                hint="give x.detach(), or a tensor of its own",
            )
        if isinstance(value, torch.Tensor) and value.data_ptr() != array.tensor.data_ptr():
            raise ArgumentError(
                f"{what} is a view whose memory does not have its values",
                expected="a tensor that torch does not conjugate or negate when it is read",
                found=f"shape {tuple(value.shape)}",
            )
        with named("output", name):
            memory = writable_buffer(
                array, what, "run the module outside of the function that is traced"
            )
        if not memory.is_contiguous():
            raise ArgumentError(
                f"{what} is not contiguous",
                expected="a contiguous tensor",
                found=f"shape {tuple(memory.shape)}, strides {memory.stride()}",
                hint="give a tensor of its own, and copy from it",
            )
        return memory

    def _require_apart(self, buffers: Sequence[Buffer], inputs: Sequence[ndarray]) -> None:
        arrays = self._arrays()
        spans = [address_span(array.tensor) for array in inputs]
        count = len(spans)
        for buffer in buffers:
            span = None if buffer.tensor is None else address_span(buffer.tensor)
            if span is None:
                spans.append(None)
                continue
            met = [n for n, s in enumerate(spans) if s and s[0] < span[1] and span[0] < s[1]]
            if met or arrays.meets_span(span):
                names = list(self._signature.inputs), list(self._signature.outputs)
                what = "a constant of the module"
                if met:
                    kind, at = ("input", met[0]) if met[0] < count else ("output", met[0] - count)
                    what = f"{kind} {names[kind == 'output'][at]!r}"
                raise ArgumentError(
                    f"the buffer of output {buffer.name!r} shares memory with {what}",
                    expected="a buffer with memory of its own",
                    hint="the program reads the one while it writes to the other",
                )
            spans.append(span)


def _evaluated(type_: TensorType, extents: Extents) -> tuple[int, ...] | None:
    """Return the shape of a type; None if extents do not say it."""
    found = [extent_of(d, extents) for d in type_.shape]
    known = tuple(n for n in found if n is not None)
    return known if len(known) == len(found) else None
