"""What the converters of `meta/frontend/relay/converters/indexing.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.arange(120, dtype=np.float32).reshape(5, 4, 6)
V = -1 - np.arange(4, dtype=np.float32).reshape(2, 2)
M = np.arange(12, dtype=np.float32).reshape(4, 3)


def bounds(begin, end, strides=None, **more):
    return {"begin": begin, "end": end, "strides": strides, **more}


def part(*index):
    return lambda x, *_: x[index]


def parts(*places):
    return lambda x: tuple(np.split(x, places, -1))


def written(*index):
    def expected(x, v, *_):
        x = x.copy()
        x[index] = v
        return x

    return expected  # fmt: skip


def windows(x):
    """Of 2 by 3, every place and every second one, over the last two axes."""
    return np.stack([[[x[n, i : i + 2, j : j + 3] for j in range(0, 4, 2)] for i in range(3)]
                     for n in range(5)])  # fmt: skip


def vectors(*values):
    return tuple(np.array(v, np.int32) for v in values)


CASES = [
    Case("split", (X,), lambda x: tuple(np.split(x, 3, 2)), {"indices_or_sections": 3, "axis": 2}),
    Case("split", (X,), parts(1, 4), {"indices_or_sections": (1, 4), "axis": -1}),
    Case("split", (X,), parts(2, 2), {"indices_or_sections": (2, 2), "axis": -1}),
    Case("split", (X,), attrs={"indices_or_sections": None}, refused="indices_or_sections is None"),
    Case("strided_slice", (X,), part(slice(1, 4, 2), slice(3, 0, -1), slice(-1, -5, -2)),
         bounds((1, 3, -1), (4, 0, -5), (2, -1, -2))),
    Case("strided_slice", (X,), part(slice(1, 3)), bounds((1, 0), (2, -1), (1,),
         slice_mode="size")),
    Case("strided_slice", (X,), part(slice(2, 5), slice(1, 3)), bounds((2, 1), (99, 2), (7, 7),
         slice_mode="size"), label="with sizes strides do not count"),
    Case("strided_slice", (X,), part(slice(None), slice(1, 3), slice(0, 4)),
         bounds((0, 1), (4, 3), (1,), axes=(2, 1))),
    Case("strided_slice", (X,), part(slice(None), slice(None), slice(None, None, -1)),
         bounds((-1,), (-7,), (-1,), axes=(-1,))),
    Case("strided_slice", (X,), part(slice(2, None), slice(None, 3)),
         bounds((2, None), (None, 3), (1, 1))),
    Case("strided_slice", (X,), part(slice(None, 1, -2)), bounds((None,), (1,), (-2,))),
    Case("strided_slice", (X,), part(slice(1, 3), slice(0, 2)), bounds((1,), (3, 2)),
         label="fewer begins than ends"),
    Case("strided_slice", (X,), part(slice(4, 2)), bounds((4,), (2,), (1,)), label="empty"),
    Case("strided_slice", (X,), attrs=bounds((0,) * 4, (1,) * 4), refused="do not fit 3 axes"),
    Case("slice_like", (X, M), part(slice(4), slice(3)), {"axes": None}),
    Case("slice_like", (X, np.zeros((9, 2, 5))), part(slice(None), slice(2), slice(5)),
         {"axes": (1, -1)}),
    Case("strided_set", (M, V, *vectors([1, 0], [3, 3], [1, 2])),
         written(slice(1, 3), slice(0, 3, 2)), constants=(2, 3, 4)),
    Case("strided_set", (M, M[:2], *vectors([3], [1], [-1])), written(slice(3, 1, -1)),
         constants=(2, 3, 4)),
    Case("strided_set", (M, V, *vectors([1, 0], [3, 3], [1, 2])),
         written(slice(1, 3), slice(0, 3, 2)), constants=(4,), label="bounds are inputs"),
    Case("strided_set", (M, M[:2], *vectors([-1], [1], [-1])), written(slice(3, 1, -1)),
         constants=(4,), label="backwards, bounds are inputs"),
    Case("sliding_window", (X,), windows,
         {"axis": 1, "window_shape": (2, 3), "strides": (1, 2)}),
    Case("sliding_window", (X,), attrs={"axis": 1, "window_shape": (2,), "strides": (1,)},
         refused="does not fit 3 axes"),
]  # fmt: skip
