"""Slices and reshapes as arithmetic on shapes; type functions, kernels and indexing share it."""

from __future__ import annotations

from collections.abc import Sequence

from meta.base.errors import TypeInferError
from meta.ir.dims import product
from meta.ir.types import UNKNOWN, Dim, SymbolicDim, TensorType, UnknownDim
from meta.op.core.check import require


def slice_ranges(
    shape: Sequence[Dim],
    begin: int | tuple[int, ...],
    end: int | tuple[int, ...],
    strides: int | tuple[int, ...] | None,
    mode: str,
) -> tuple[range | None, ...]:
    """Return the indices that a strided slice picks on each of the leading axes it names.

    ``len``, ``start`` and ``step`` of a range say everything. Bounds count from the end if
    negative and are clipped as Python's slices are. An axis of symbolic extent gives None: all of
    it is kept if the slice says so, otherwise its new extent is unknown.
    """
    begins, ends = _ints(begin), _ints(end)
    steps = (1,) * len(begins) if strides is None else _ints(strides)
    if isinstance(strides, int) or len(steps) == 1:
        steps = steps * len(begins)
    require(
        mode in ("end", "size"), "slice_mode is unknown", expected="'end' or 'size'", found=mode
    )
    require(
        len(begins) == len(ends) == len(steps) <= len(shape),
        "begin, end and strides must have one entry for each of the leading axes",
        expected=f"equally many entries, at most {len(shape)}",
        found=f"begin={begin}, end={end}, strides={strides}",
    )
    require(0 not in steps, "a stride is 0", expected="nonzero strides", found=strides)
    if mode == "size":
        require(set(steps) <= {1}, "slice_mode 'size' takes no strides", found=strides)
    ranges: list[range | None] = []
    for n, b, e, s in zip(shape, begins, ends, steps, strict=False):
        if not isinstance(n, int):
            ranges.append(None)
            continue
        stop: int | None = e
        if mode == "size":
            first = slice(b, None).indices(n)[0]
            stop = None if e < 0 else first + e
        ranges.append(range(*slice(b, stop, s).indices(n)))
    return tuple(ranges)


def is_full_slice(begin: int, end: int, stride: int, mode: str) -> bool:
    """Whether a slice keeps an axis whole, whatever its extent."""
    return begin == 0 and stride == 1 and (end == -1 if mode == "size" else end >= 2**31 - 1)


def _ints(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else value


def reshape_result(
    x: TensorType, shape: int | tuple[int, ...], kept: int | tuple[int, ...] = ()
) -> tuple[Dim, ...]:
    """Return the shape that `reshape` gives; see there for -1 and ``kept``."""
    wanted, copied = _ints(shape), _ints(kept)
    own = [w for i, w in enumerate(wanted) if i not in copied]
    require(all(w >= -1 for w in own), "a negative extent", expected="-1 or more", found=shape)
    require(own.count(-1) <= 1, "-1 is given twice: only one extent can be inferred", found=shape)
    ends = min(len(wanted), x.ndim)
    if not all(0 <= i < ends for i in copied):
        raise TypeInferError(
            "an axis is to be kept that x or the result does not have",
            expected=f"0 to {ends - 1}",
            found=f"kept={kept} for {x}",
        )
    # What is kept cancels out, so that -1 is defined next to an empty or unknown extent.
    result: list[Dim] = [x.shape[i] if i in copied else w for i, w in enumerate(wanted)]
    source_left = [d for i, d in enumerate(x.shape) if i not in copied]
    inferred: Dim = UNKNOWN
    elements = product(source_left)
    if not isinstance(elements, UnknownDim):
        given = product(d for d in own if d != -1)
        assert not isinstance(given, UnknownDim)
        rest = quotient(elements, given)
        fits = rest is not None if -1 in own else elements == given
        require(
            fits,
            "the number of elements does not fit the shape",
            expected=f"a shape of {x.elements} elements" if x.is_static else f"a reshape of {x}",
            found=f"shape={shape} of {x}",
        )
        inferred = 0 if rest is None else rest
    return tuple(inferred if isinstance(d, int) and d == -1 else d for d in result)


def quotient(a: int | SymbolicDim, b: int | SymbolicDim) -> int | SymbolicDim | None:
    """Return a / b if there is no rest, whatever the extents; else None."""
    if b == 0:
        return None
    if isinstance(a, SymbolicDim):
        return a.exactly_by(b)
    if isinstance(b, SymbolicDim):
        return 0 if a == 0 else None
    return a // b if a % b == 0 else None
