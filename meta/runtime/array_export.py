"""What an array gives to Python, NumPy and other libraries: numbers, copies of its values, and its
memory.

Memory that is given away may be written by others unseen (`external_memory.py`), and no gradient
knows of what they compute. So an array that requires a gradient gives none; `x.detach()` does.
Torch's gradients know: `x.torch()` takes the history along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from meta.base import dtype as dtypes
from meta.base.call_context import Default
from meta.base.device import CPU
from meta.base.errors import ArgumentError, GradientError, IndexOutOfRange
from meta.base.html import Html, bytes_text, details, fragment, join, table, tag
from meta.base.methods import Methods
from meta.runtime import external_memory, trace_checks
from meta.runtime.array_coercion import BITS
from meta.runtime.array_key import ArrayKey

if TYPE_CHECKING:
    from meta.runtime.ndarray import ndarray


class ArrayExport(Methods):
    """Mixin of `ndarray`: its values and its memory for others."""

    __slots__ = ()
    # What the array has; stated for the type checker alone.
    tensor: Tensor
    key: ArrayKey
    tracked: bool
    requires_grad: Any
    # What `torch` is of an array that is recorded; set once by `meta.grad.core.torch_autograd`.
    to_torch: ClassVar[Callable[[Any], Tensor]]

    def torch(self) -> Tensor:
        """Return the buffer as a torch tensor that shares memory.

        That of an array that requires a gradient has history: its backward pass gives gradients to
        what the array was computed from, as `backward` does, and torch lets nobody write to it.
        Without: ``x.detach().torch()``, and where nothing is recorded (`meta.no_grad`).
        """
        trace_checks.require_values(self)
        if not self.tracked:
            return self.tensor
        if not hasattr(ArrayExport, "to_torch"):
            Default.complete()
        return ArrayExport.to_torch(self)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a numpy copy of the values (bfloat16 and float8 as those of `ml_dtypes`)."""
        trace_checks.refuse_read(self)
        host = self.tensor.detach().cpu()
        if self.key.dtype in BITS:
            bits = host.contiguous().view(BITS[self.key.dtype]).numpy()
            return bits.copy().view(dtypes.TO_NUMPY[self.key.dtype])
        return host.numpy().copy()

    def item(self, *index: Any) -> Any:
        """Return the value of an array with one element as a Python number.

        index: that of one element of others, as NumPy's: by axes, or in row-major order.
        TraceError for an array of a model that is being traced, as for `numpy`. ArgumentError for
        several elements, IndexOutOfRange where there is none.
        """
        trace_checks.refuse_read(self)
        if index:
            place = index[0] if isinstance(index[0], tuple) else index
            flat = len(place) == 1 and len(self.key.shape) != 1
            try:
                return (self.tensor.flatten() if flat else self.tensor)[place].item()
            except (IndexError, RuntimeError, TypeError):
                raise IndexOutOfRange(
                    "there is no such element",
                    op="item",
                    expected=f"an index below {self.tensor.numel()}, or {self.tensor.ndim} of them",
                    found=f"{index} of shape {self.key.shape}",
                ) from None
        if self.tensor.numel() != 1:
            raise ArgumentError(
                "item() needs an array with one element", found=f"shape {self.key.shape}"
            )
        return self.tensor.item()

    def tolist(self) -> Any:
        """Return the values as nested lists of Python numbers; of a 0-d array one number.

        TraceError for an array of a model that is being traced, as for `numpy`.
        """
        trace_checks.refuse_read(self)
        return self.tensor.tolist()

    def __dlpack__(
        self,
        *,
        stream: Any = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule: of this memory, or of a copy, with ``copy`` or for another
        device. GradientError for an array that requires a gradient.
        """
        self._refuse_exit("the consumer of a DLPack capsule")
        external_memory.mark_shared(self.tensor)
        return self.tensor.detach().__dlpack__(
            stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self.tensor.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return a numpy array: of this memory if it is on the CPU and has the dtype, else of a
        copy, which ``copy=False`` refuses; ``copy=True`` always copies. Use `numpy` for a copy.
        """
        self._refuse_exit("numpy")
        own = dtypes.TO_NUMPY[self.key.dtype]
        kind = own if dtype is None else np.dtype(dtype)
        shared = self.key.device == CPU and kind == own
        if copy or (copy is None and not shared):
            return self.numpy().astype(kind, copy=False)
        if not shared:
            raise ArgumentError(
                "numpy cannot see this array without a copy",
                expected=f"dtype {self.key.dtype} on the CPU",
                found=f"dtype {dtype or self.key.dtype}, an array on {self.key.device}",
            )
        external_memory.mark_shared(self.tensor)
        if self.key.dtype in BITS:
            return self.tensor.view(BITS[self.key.dtype]).numpy().view(own)
        return self.tensor.numpy()

    def __buffer__(self, flags: int, /) -> memoryview:
        """Return the memory for ``memoryview(x)``, which Python asks for from 3.12 on (PEP 688);
        before, write ``memoryview(numpy.asarray(x))``.

        ArgumentError for an array that is not on the CPU, or of a dtype without a format of the
        buffer protocol: bfloat16 and float8. GradientError for one that requires a gradient.
        """
        if self.key.device != CPU or self.key.dtype in BITS:
            raise ArgumentError(
                "this array has no memory that Python's buffer protocol can describe",
                expected="an array on the CPU, of a dtype but bfloat16 and float8",
                found=f"{self.key.dtype} on {self.key.device}",
                hint="x.numpy(), or x.cpu()",
            )
        return self.__array__(copy=False).data

    def _refuse_exit(self, who: str) -> None:
        """Raise an error if others must not compute with this array: TraceError for one of a model
        that is traced, GradientError for one that requires a gradient.
        """
        trace_checks.refuse_read(self)
        if self.requires_grad:
            raise GradientError(
                f"{who} would compute with this array, of which no gradient knows",
                found=f"an array of shape {self.key.shape} that requires a gradient",
                hint="use the function of meta; or give away x.detach()",
            )

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self._real_item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __int__(self) -> int:
        return int(self._real_item())

    def __index__(self) -> int:
        if dtypes.has_gradient(self.key.dtype) or self.key.dtype == "bool":
            raise ArgumentError("only an integer array can be an index", found=self.key.dtype)
        return int(self._real_item())

    def _real_item(self) -> Any:
        value = self.item()
        if isinstance(value, complex):
            raise ArgumentError(
                "a complex number is no real one",
                found=value,
                hint="complex(x), or a part of it: meta.real(x)",
            )
        return value

    def __format__(self, spec: str) -> str:
        """Format a 0-d array as its number, on one line; an array with axes takes no format."""
        if not spec and self.key.shape:
            return str(self)
        if self.key.shape:
            raise ArgumentError(
                "only a 0-d array takes a format",
                found=f"{spec!r} of an array of shape {self.key.shape}",
                hint="format x.item(), or x.numpy() with numpy.array2string",
            )
        return format(self.item(), spec) if spec else str(self.numpy())


# What a notebook shows of an array: its type, and its values or their corners.
#
# Only what is shown is copied from the device.


EDGE_ITEMS = 3
"""Rows and columns shown at each end of an axis that is not shown whole, as NumPy does."""
MAX_EXTENT = 4 * EDGE_ITEMS
"""Axes of a matrix up to this length are shown whole."""
EDGE_MATRICES = 2
"""Matrices of a stack shown at each end."""


def array_html(array: ndarray) -> Html:
    """Return a fragment of HTML: a title, and a table of each matrix that is shown."""
    kind = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
    facts = [f"on {array.device}", bytes_text(array.nbytes)]
    facts += ["requires a gradient"] * array.requires_grad
    title = [tag("span", kind, class_="code title"), tag("span", ", ".join(facts), class_="dim")]
    head = tag("div", join([*([f"{array.name}:"] if array.name else []), *title], " "))
    tensor = array.tensor
    if tensor.numel() == 0:
        return fragment(head, tag("div", "no elements", class_="dim"))
    if tensor.ndim == 0:
        return fragment(head, tag("div", number_text(_to_lists(tensor)), class_="code"))
    if tensor.ndim == 1:
        return fragment(head, _matrix(tensor.reshape(1, -1), rows=False))
    shown, left_out = _edge_matrices(tensor.shape[:-2])
    parts = []
    for number, index in enumerate(shown):
        if left_out and number == EDGE_MATRICES:
            parts.append(tag("div", f"… {left_out:,} more matrices …", class_="dim"))
        matrix = _matrix(tensor[index])
        if index:
            place = f"[{', '.join(map(str, index))}]"
            matrix = details(tag("span", place, class_="code"), matrix, open_=number == 0)
        parts.append(matrix)
    return fragment(head, *parts)


def _edge_matrices(extents: Sequence[int]) -> tuple[list[tuple[int, ...]], int]:
    """Return the indices of the matrices that are shown, and how many are not."""
    count = prod(extents)
    if count <= 2 * EDGE_MATRICES + 1:
        return list(product(*map(range, extents))), 0
    numbers = [*range(EDGE_MATRICES), *range(count - EDGE_MATRICES, count)]
    return [_unravel_index(number, extents) for number in numbers], count - len(numbers)


def _unravel_index(number: int, extents: Sequence[int]) -> tuple[int, ...]:
    index = []
    for extent in reversed(extents):
        number, one = divmod(number, extent)
        index.append(one)
    return tuple(reversed(index))


def _matrix(tensor: torch.Tensor, rows: bool = True) -> Html:
    """Return the table of a matrix, with the numbers of its rows and columns."""
    down, across = map(_edge_ranges, tensor.shape)
    lines: list[list[object]] = []
    for number, (top, bottom) in enumerate(down):
        parts = [_to_lists(tensor[top:bottom, left:right]) for left, right in across]
        if number:
            lines.append([_dimmed("⋮") if rows else "", *[""] * (len(lines[0]) - 1)])
        for i in range(bottom - top):
            values: list[object] = [number_text(v) for v in parts[0][i]]
            for part in parts[1:]:
                values += [_dimmed("…"), *map(number_text, part[i])]
            lines.append([*([_dimmed(top + i)] if rows else []), *values])
    columns: list[object] = [_dimmed(i) for i in range(*across[0])]
    for piece in across[1:]:
        columns += ["", *(_dimmed(i) for i in range(*piece))]
    head = [*([""] if rows else []), *columns]
    return table(head, lines, numbers=range(len(head)), most=None)


def _edge_ranges(extent: int) -> list[tuple[int, int]]:
    """Return the ranges of an axis that are shown."""
    if extent <= MAX_EXTENT:
        return [(0, extent)]
    return [(0, EDGE_ITEMS), (extent - EDGE_ITEMS, extent)]


def _to_lists(piece: torch.Tensor) -> Any:
    """Copy a piece of at most `MAX_EXTENT` by `MAX_EXTENT` elements, as nested lists of numbers."""
    return piece.detach().cpu().tolist()


def _dimmed(content: object) -> Html:
    return tag("span", content, class_="dim")


def number_text(value: Any) -> str:
    """Return a number as a table has it: of a floating point one four digits."""
    if isinstance(value, complex):
        return f"{value:.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
