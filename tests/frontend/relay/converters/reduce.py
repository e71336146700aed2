"""What the converters of `meta/frontend/relay/converters/math.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.random.default_rng(3).normal(size=(2, 3, 4)).astype(np.float32)
INTS = np.random.default_rng(4).integers(-9, 9, (2, 3, 4)).astype(np.int32)
TIES = np.array([[1, 5, 5], [7, 2, 7]], np.float32)
BOOLS = np.array([[True, False], [True, True]])


def in_dtype(function, **options):
    """A reduction of numpy in float64 or int64, then in the dtype of the data."""

    def expected(x, *_):
        wide = np.float64 if x.dtype.kind == "f" else np.int64
        return function(x.astype(wide), **options).astype(x.dtype)

    return expected  # fmt: skip


def last(function, axis):
    """The last of equal elements, by looking from behind."""
    return lambda x: (x.shape[axis] - 1 - function(np.flip(x, axis), axis)).astype(np.int32)


def mean_of_ints(axis):
    return lambda x: np.trunc(x.sum(axis) / x.shape[axis]).astype(x.dtype)


AXIS = {"axis": (1,)}
MEAN = X.mean(1, keepdims=True)

CASES = [
    *[Case(n, (X,), in_dtype(getattr(np, n), axis=1), AXIS)
      for n in ("sum", "prod", "mean", "max", "min")],
    *[Case(n, (INTS,), in_dtype(getattr(np, n), axis=1), AXIS, label="ints")
      for n in ("sum", "prod", "max", "min")],
    Case("sum", (X,), in_dtype(np.sum)),
    Case("sum", (X,), in_dtype(np.sum), {"axis": None, "exclude": True}, label="nothing excluded"),
    Case("sum", (X,), in_dtype(np.sum, axis=(0, 2)), {"axis": (-2,), "exclude": True}),
    Case("sum", (X,), in_dtype(np.sum, axis=(0, 2), keepdims=True),
         {"axis": (0, -1), "keepdims": True}),
    Case("sum", (np.array([100, 100], np.int8),), np.array(-56, np.int8), label="int8 wraps"),
    Case("mean", (X,), in_dtype(np.mean, keepdims=True), {"keepdims": True}),
    Case("mean", (INTS,), mean_of_ints(2), {"axis": (2,)}, label="of ints has no fraction"),
    Case("max", (X,), in_dtype(np.max, axis=(0, 1)), {"axis": (2,), "exclude": True}),
    Case("variance", (X, MEAN), in_dtype(np.var, axis=1), AXIS),
    Case("variance", (X, MEAN), in_dtype(np.var, axis=1, ddof=1, keepdims=True),
         {**AXIS, "keepdims": True, "unbiased": True}),
    Case("all", (BOOLS,), np.all),
    Case("all", (BOOLS,), lambda x: np.all(x, 1, keepdims=True), {**AXIS, "keepdims": True}),
    Case("any", (~BOOLS,), lambda x: np.any(x, 1), AXIS),
    Case("any", (~BOOLS,), lambda x: np.any(x, 0), {**AXIS, "exclude": True}),
    Case("argmax", (TIES,), lambda x: np.argmax(x, 1).astype(np.int32), AXIS),
    Case("argmin", (TIES,), lambda x: np.argmin(x, 0).astype(np.int32), {"axis": (0,)}),
    Case("argmax", (TIES,), np.array(3, np.int32), label="over all axes"),
    Case("argmax", (TIES,), last(np.argmax, 1), {**AXIS, "select_last_index": True}),
    Case("argmax", (TIES,), np.array([[5]], np.int32),
         {"keepdims": True, "select_last_index": True}),
    Case("argmin", (-TIES,), last(np.argmin, 1), {**AXIS, "select_last_index": True}),
]  # fmt: skip
