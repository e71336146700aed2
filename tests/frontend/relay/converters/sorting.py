"""What the converters of `meta/frontend/relay/converters/math.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.array([[3.0, 1.0, 2.0, 1.0], [0.5, 4.0, -1.0, 4.0]], np.float32)
V = np.array([4, 5, 1, 2, 3, 3, 4, 5], np.int32)
SORTED = np.array([1.0, 2.0, 2.0, 5.0], np.float32)


def order(x, axis=-1, ascending=True):
    return np.argsort(x if ascending else -x, axis, kind="stable")


def ordered(x, axis=-1, ascending=True):
    return np.take_along_axis(x, order(x, axis, ascending), axis)


def first(k, axis=-1, ascending=False, dtype=np.int32):
    def expected(x):
        places = np.take(order(x, axis, ascending), range(k), axis)
        return np.take_along_axis(x, places, axis), places.astype(dtype)

    return expected  # fmt: skip


def distinct(by_value, counted=False):
    def expected(x):
        values, places, inverse, counts = np.unique(x, True, True, True)
        if not by_value:
            ranks = np.argsort(places)
            values, counts = values[ranks], counts[ranks]
            inverse = np.argsort(ranks)[inverse]

        def filled(v, rest=0):
            return np.concatenate([v, np.full(x.size - v.size, rest, v.dtype)]).astype(np.int32)

        found = filled(values).astype(x.dtype), filled(places, x.size), filled(inverse)
        number = np.array([values.size], np.int32)
        return (*found, number, *((filled(counts),) if counted else ()))

    return expected  # fmt: skip


CASES = [
    Case("argsort", (X,), lambda x: order(x).astype(np.int32)),
    Case("argsort", (X,), lambda x: order(x, 0, False), {"axis": 0, "is_ascend": False,
         "dtype": "int64"}),
    Case("argsort", (X,), lambda x: order(x).astype(np.float32), {"dtype": "float32"}),
    Case("sort", (X,), ordered),
    Case("sort", (X,), lambda x: ordered(x, 0, False), {"axis": 0, "is_ascend": False}),
    Case("topk", (X,), first(2, dtype=np.int64), {"k": 2, "dtype": "int64"}),
    Case("topk", (X,), first(1, 0, True), {"k": 1, "axis": 0, "is_ascend": True}),
    Case("topk", (X,), first(4), {"k": 0}, label="all"),
    Case("topk", (X,), first(4), {"k": None}),
    Case("topk", (X,), first(1), {"axis": -1}, version=(0, 6), label="not stated: one"),
    Case("topk", (X,), lambda x: first(3)(x)[0], {"k": 3, "ret_type": "values"}),
    Case("topk", (X,), lambda x: first(3)(x)[1], {"k": 3, "ret_type": "indices"}),
    Case("topk", (X,), first(2, dtype=np.float32), {"k": 2, "dtype": "float32"}),
    Case("searchsorted", (SORTED, X), lambda s, v: np.searchsorted(s, v).astype(np.int32)),
    Case("searchsorted", (SORTED, X), lambda s, v: np.searchsorted(s, v, "right"),
         {"right": True, "dtype": "int64"}),
    Case("searchsorted", (np.sort(X), X),
         lambda s, v: np.stack([np.searchsorted(*p) for p in zip(s, v, strict=True)]).astype(
             np.int32), label="rows"),
    Case("argwhere", (X > 1,), lambda x: np.argwhere(x).astype(np.int32), dialects=("torch",)),
    Case("argwhere", (X - 1,), lambda x: np.argwhere(x).astype(np.int32), dialects=("torch",)),
    Case("unique", (V,), distinct(True)),
    Case("unique", (V,), distinct(True, True), {"return_counts": True}),
    Case("unique", (V,), distinct(False, True), {"sorted": False, "return_counts": True}),
    Case("unique", (X[0],), distinct(False), {"sorted": False}),
    Case("unique", (V[:1],), distinct(True, True), {"return_counts": True}, label="of one"),
]  # fmt: skip
