"""Indexing by several tensors at once. ``x[index]`` with all of numpy's forms: `indexing.py`."""

from collections.abc import Iterator

from meta.op.core import Tensor, op
from meta.op.core.check import broadcast_shapes, require
from meta.op.core.indices import IndexRange
from meta.op.transform import require_index


def _indexed(inputs: tuple[Tensor, ...]) -> Tensor:
    require(len(inputs) > 0, "inputs is empty", expected="a tensor, then its indices")
    x, *indices = inputs
    require(
        len(indices) <= x.ndim,
        "there are more indices than axes",
        expected=f"at most {x.ndim}",
        found=len(indices),
    )
    for index in indices:
        require_index(index)
    picked = broadcast_shapes(*(i.shape for i in indices))
    require(
        0 not in x.shape[: len(indices)] or 0 in picked,
        "nothing can be picked of an empty axis",
        found=x,
    )
    return x.with_shape((*picked, *x.shape[len(indices) :]))


def _ranges(inputs: tuple[Tensor, ...]) -> Iterator[IndexRange]:
    x, *indices = inputs
    for axis in range(len(indices)):
        into = f"axis {axis} of inputs[0]"
        yield IndexRange("inputs", x.shape[axis], into, from_end=True, field=axis + 1)


@op(indices=_ranges)
def adv_index(inputs: tuple[Tensor, ...]) -> Tensor:
    """``x[i0, i1, ...]`` with numpy's meaning, for inputs (x, i0, i1, ...).

    The indices, of any integer dtypes, broadcast together and name elements of the leading axes of
    x; the result has their common shape in place of these axes. Negative indices count from the
    end. TypeInferError for more indices than axes, or an empty axis; IndexOutOfRange for an index
    outside [-extent, extent): on CUDA with META_CHECK_INDICES only, without it the nearest element
    is read.
    """
    return _indexed(inputs)


@op(indices=_ranges)
def adv_index_dx(dy: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    """The gradient of `adv_index` at x: zeros of its type, plus ``dy`` at every index.

    Duplicates add up, half precision in float32. Of x only the type counts.
    """
    result = _indexed(inputs)
    require(
        dy.shape == result.shape,
        "dy has another shape than the result of adv_index",
        expected=result,
        found=dy,
    )
    return inputs[0]
