"""What the converters of `meta/frontend/relay/converters/indexing.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], np.float32)
APART = np.array([[2, -4], [1, 3]], np.int64)
TWICE = np.array([[2, 2, -2], [1, 3, 1]], np.int32)
U = np.array([[0.5, -9.0], [10.0, 2.5]], np.float32)
V = np.array([[0.5, -9.0, 8.0], [10.0, 2.5, 3.0]], np.float32)
COORDINATES = np.array([[0, 1, 0], [2, -1, 2]], np.int64)
FUNCTIONS = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": min,
    "max": max,
    "mean": lambda old, new: (old + new) / 2,
}


def along(how, axis=1):
    def expected(x, indices, updates):
        x = x.copy()
        for place in np.ndindex(indices.shape):
            at = (*place[:axis], indices[place], *place[axis + 1 :])
            x[at] = FUNCTIONS[how](x[at], updates[place])
        return x

    return expected  # fmt: skip


def at_coordinates(how):
    def expected(x, indices, updates):
        x = x.copy()
        for place in np.ndindex(indices.shape[1:]):
            at = tuple(indices[(slice(None), *place)])
            x[at] = np.vectorize(FUNCTIONS[how])(x[at], updates[place])
        return x

    return expected  # fmt: skip


ROWS = np.array([[1, 0, 1]], np.int64)
NEW_ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)

CASES = [
    Case("scatter_elements", (X, APART, U), along("update"), {"axis": 1}),
    Case("scatter_elements", (X, APART % 2, U), along("update", 0), {"axis": 0}),
    *[Case("scatter_elements", (X, TWICE, V), along(how), {"axis": -1, "reduction": how})
      for how in ("add", "mul", "min", "max", "mean")],
    *[Case("scatter_elements", (X.astype(np.int32), TWICE, V.astype(np.int32)), along(how),
           {"axis": 1, "reduction": how}, label=f"ints {how}") for how in ("add", "mul", "max")],
    Case("scatter_elements", (X, TWICE, V), attrs={"axis": 1, "reduction": "sub"},
         refused="is unknown"),
    Case("scatter_elements", (X.astype(np.int32), TWICE, V.astype(np.int32)),
         attrs={"axis": 1, "reduction": "mean"}, refused="mean of integers"),
    Case("scatter", (X, APART, U), along("update"), {"axis": 1}, version=(0, 8)),
    Case("scatter_add", (X, TWICE, V), along("add"), {"axis": 1}, version=(0, 8)),
    Case("scatter_nd", (X, COORDINATES[:, :2], V[0, :2]), at_coordinates("update")),
    *[Case("scatter_nd", (X, COORDINATES, V[0]), at_coordinates(how), {"mode": how})
      for how in ("add", "mul", "min", "max")],
    *[Case("scatter_nd", (X, ROWS, NEW_ROWS), at_coordinates(how), {"mode": how},
           label=f"rows {how}") for how in ("add", "max")],
    Case("scatter_nd", (X, ROWS, NEW_ROWS), attrs={"mode": "mean"}, refused="is unknown"),
    Case("invert_permutation", (np.array([2, 0, 3, 1], np.int32),),
         np.array([1, 3, 0, 2], np.int32)),
]  # fmt: skip
