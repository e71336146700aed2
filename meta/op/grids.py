"""Functions that make coordinates, and that bring arrays to one shape or split them.

They are composed of operators, so they work on arrays and on traced values, and have gradients.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base import dtype as dtypes
from meta.base.errors import ArgumentError
from meta.op.core.check import broadcast_shapes as common_shape
from meta.op.core.check import normalize_axis
from meta.op.core.function import as_operand, function


@function
def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: object = None,
    device: object = None,
) -> Any:
    """Return a matrix with ones on the diagonal ``k`` (above the main one if positive), else zeros.

    n_rows, n_cols: its shape; n_cols is n_rows if None. Result: [n_rows, n_cols] of ``dtype``
    (None: float32).
    Source: Array API 2024.12.

    >>> meta.eye(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    columns = n_rows if n_cols is None else n_cols
    k = max(-n_rows, min(k, columns))  # beyond, there is no such diagonal
    rows = op.expand_dims(op.arange(0, n_rows, 1, "int64", device), 1)
    diagonal = op.equal(op.add(rows, k), op.arange(0, columns, 1, "int64", device))
    return op.astype(diagonal, dtype or "float32")


@function
def linspace(
    start: int | float,
    stop: int | float,
    /,
    num: int,
    *,
    dtype: object = None,
    device: object = None,
    endpoint: bool = True,
) -> Any:
    """Return ``num`` evenly spaced numbers from ``start`` to ``stop``, as a vector of ``dtype``.

    ``endpoint``: ``stop`` is the last of them, exactly; else it would be the next one. ``dtype``:
    None is float32. Computed in float64, then converted; for an integer dtype the fraction is
    dropped.
    Raises ArgumentError for a negative ``num`` or a dtype of no real numbers.

    >>> meta.linspace(0.0, 1.0, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    kind = dtypes.canonical(dtype or "float32")
    if num < 0 or kind == "bool":
        raise ArgumentError(
            "linspace makes num >= 0 real numbers", found=f"num={num}, dtype={kind}"
        )
    steps = max(num - 1 if endpoint else num, 1)
    index = op.arange(0, num, 1, "float64", device)
    # start + i * step, of which neither the span nor a product overflows for finite ends.
    rise = op.multiply(index, float(stop) / steps)
    numbers = op.add(op.subtract(float(start), op.multiply(index, float(start) / steps)), rise)
    if endpoint and num > 1:
        numbers = op.where(op.equal(index, float(num - 1)), float(stop), numbers)
    return op.astype(numbers, kind)


@function
def empty(shape: int | tuple[int, ...], dtype: object = None, device: object = None) -> Any:
    """Return an array whose values do not matter: they are zeros. See `zeros`.

    >>> meta.empty((2, 3)).shape
    (2, 3)
    """
    return op.zeros(shape, dtype, device)


@function
def empty_like(x: Any, dtype: object = None, device: object = None) -> Any:
    """Return an array of the shape, dtype and device of ``x`` whose values do not matter.

    >>> meta.empty_like(meta.ones((2, 3))).shape
    (2, 3)
    """
    found = op.zeros_like(x, dtype)
    return found if device is None else found.to(device=device)


@function
def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Any, ...]:
    """Return the coordinates of the grid that vectors span, one array for each.

    arrays: vectors or 0-d arrays. indexing: "ij", result i varies along axis i; "xy",
    the first two axes are exchanged, as in NumPy and the Array API (torch's default is "ij").

    >>> [x.shape for x in meta.meshgrid(meta.ones(2), meta.ones(3), indexing="ij")]
    [(2, 3), (2, 3)]
    """
    if indexing not in ("ij", "xy"):
        raise ArgumentError("unknown indexing", expected="'ij' or 'xy'", found=repr(indexing))
    vectors = [as_operand(a) for a in arrays]
    if any(v.ndim > 1 for v in vectors):
        found = ", ".join(str(v.shape) for v in vectors)
        raise ArgumentError("an axis of a grid must be a vector", found=found)
    places = list(range(len(vectors)))
    if indexing == "xy":
        places[:2] = reversed(places[:2])
    extents = [v.shape[0] if v.ndim else 1 for v in vectors]
    shape = tuple(extents[place] for place in places)  # the exchange undoes itself

    def spread(vector: Any, place: int) -> Any:
        own = tuple(extent if a == place else 1 for a, extent in enumerate(shape))
        return op.broadcast_to(op.reshape(vector, own), shape)

    return tuple(map(spread, vectors, places))


@function
def broadcast_arrays(*arrays: Any) -> list[Any]:
    """Return arrays of any dtypes, each broadcast to the shape that all have in common.

    >>> a, b = meta.broadcast_arrays(meta.array([[1], [2]]), meta.array([10, 20, 30]))
    >>> a.tolist(), b.shape
    ([[1, 1, 1], [2, 2, 2]], (2, 3))
    """
    given = [as_operand(a) for a in arrays]
    shape = common_shape(*[a.shape for a in given])
    return [op.broadcast_to(a, shape) for a in given]


@function
def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which arrays of these shapes broadcast; TypeInferError for none.

    >>> meta.broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    return common_shape(*shapes)  # type: ignore[return-value]  # numbers in, numbers out


@function
def moveaxis(x: Any, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Any:
    """Return ``x`` with the axes ``source`` at the places ``destination``; others keep their order.

    Both are ints or equally many ints, negative ones counted from the end. ArgumentError else.

    >>> meta.moveaxis(meta.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = as_operand(x)
    ends = [(e,) if isinstance(e, int) else tuple(e) for e in (source, destination)]
    olds, news = ([normalize_axis(a, x.ndim) for a in end] for end in ends)
    if len(olds) != len(news) or len(set(olds)) != len(olds) or len(set(news)) != len(news):
        raise ArgumentError(
            "source and destination must name equally many distinct axes",
            found=f"source={source}, destination={destination}",
        )
    order = [axis for axis in range(x.ndim) if axis not in olds]
    for new, old in sorted(zip(news, olds, strict=True)):
        order.insert(new, old)
    return op.permute_dims(x, tuple(order))


@function
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """Return the parts of ``x`` along ``axis``, which they do not have. The reverse of `stack`.

    >>> [x.tolist() for x in meta.unstack(meta.array([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    x = as_operand(x)
    at = normalize_axis(axis, x.ndim)
    count = x.shape[at]
    if not isinstance(count, int):
        raise ArgumentError("an axis of unknown extent cannot be unstacked", found=f"axis {axis}")
    if count == 0:
        return ()
    parts = op.split(x, count, at)
    return tuple(op.squeeze(part, at) for part in parts)


@function
def positive(x: Any, /) -> Any:
    """Return +x, a copy of ``x``. Source: Array API 2024.12.

    >>> meta.positive(meta.array([1, -2])).tolist()
    [1, -2]
    """
    return op.copy(x)


@function
def diff(x: Any, /, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Return the ``n``-th difference of neighbours along ``axis``, which gets shorter by ``n``.

    ``prepend``, ``append``: arrays put before and behind ``x`` first. Of bools a difference is
    whether neighbours differ, as in NumPy. Raises ArgumentError for a negative ``n``.

    >>> meta.diff(meta.array([1, 4, 9])).tolist()
    [3, 5]
    """
    if n < 0:
        raise ArgumentError("a difference has an order n >= 0", found=n)
    x = as_operand(x)
    at = normalize_axis(axis, x.ndim)
    parts = [as_operand(p) for p in (prepend, x, append) if p is not None]
    x = op.concat(tuple(parts), at) if len(parts) > 1 else x
    before = (slice(None),) * at
    for _ in range(n):
        later, earlier = x[(*before, slice(1, None))], x[(*before, slice(None, -1))]
        x = op.not_equal(later, earlier) if x.dtype == "bool" else op.subtract(later, earlier)
    return x if n or len(parts) > 1 else op.copy(x)
