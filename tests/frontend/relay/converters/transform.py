"""What the converters of `meta/frontend/relay/converters/transform.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
WIDE = np.arange(120, dtype=np.float32).reshape(4, 3, 5, 2)
ONES = np.arange(3, dtype=np.float32).reshape(1, 3, 1, 1)
INTS = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
ROW, COLUMN = np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float32)


def to(*shape):
    return lambda x, *_: x.reshape(shape)


def codes(*newshape, **more):
    return {"newshape": newshape, **more}


def grid(indexing):
    return lambda vectors: tuple(np.ascontiguousarray(g)
                                 for g in np.meshgrid(*vectors, indexing=indexing))  # fmt: skip


def blocked(x):
    """NCHW to NHWC4c."""
    n, c, h, w = x.shape
    return x.reshape(n, c // 4, 4, h, w).transpose(0, 3, 4, 1, 2)


CASES = [
    Case("reshape", (X,), to(4, 6), codes(-1, 6)),
    Case("reshape", (X,), to(2, 12), codes(0, -1)),
    Case("reshape", (WIDE,), to(2, 2, 15, 2), codes(-4, 2, -1, -3, -2)),
    Case("reshape", (X,), to(2, 1, 3, 4), codes(-4, -1, 1, -2)),
    Case("reshape", (X,), to(6, 4), codes(-3, 0)),
    Case("reshape", (X,), to(2, 3, 4), codes(-2)),
    Case("reshape", (X,), to(2, 3, 4, 1, 1), codes(-2, 1, 1)),
    Case("reshape", (np.zeros((3, 0), np.float32),), np.zeros((0, 7), np.float32),
         codes(0, 7, allowzero=True)),
    Case("reshape", (WIDE,), to(12, 5, 2), codes(-1, 0, 0, reverse=True), version=(0, 6)),
    Case("reshape", (WIDE,), to(12, 10), codes(-3, -3, reverse=True), version=(0, 6)),
    Case("reshape", (np.float32(3),), to(1), codes(1), label="of a scalar"),
    Case("reshape", (X[:1, :1, :1],), to(), codes(), label="to a scalar"),
    Case("reshape", (X,), attrs=codes(-4, 5), refused="two extents"),
    Case("reshape", (X,), attrs=codes(-4, -1, -1, -2), refused="cannot split"),
    Case("reshape", (X,), attrs=codes(-3, -3), refused="no axis left"),
    Case("reshape", (X,), attrs=codes(-5, 24), refused="is no code"),
    *[Case(n, (WIDE,), to(4, 15, 2), codes(-1, -3, 0)) for n in
      ("contrib_reverse_reshape", "_contrib_reverse_reshape")],
    Case("reshape_like", (X, np.zeros((4, 6))), to(4, 6)),
    Case("reshape_like", (WIDE, np.zeros((7, 2, 2, 9))), to(2, 2, 3, 5, 2),
         {"lhs_end": 1, "rhs_begin": 1, "rhs_end": 3}),
    Case("reshape_like", (WIDE, np.zeros((7, 15))), to(4, 15, 2),
         {"lhs_begin": 1, "lhs_end": 3, "rhs_begin": -1}),
    Case("transpose", (X,), lambda x: x.transpose(2, 0, 1), {"axes": (2, 0, 1)}),
    Case("transpose", (X,), lambda x: x.transpose(0, 2, 1), {"axes": (0, -1, 1)}),
    Case("transpose", (X,), np.transpose, {"axes": None}),
    Case("squeeze", (ONES,), to(3, 1), {"axis": (0, 2)}),
    Case("squeeze", (ONES,), to(3)),
    Case("expand_dims", (X,), to(2, 1, 1, 3, 4), {"axis": 1, "num_newaxis": 2}),
    Case("expand_dims", (X,), to(2, 3, 4, 1), {"axis": -1}),
    Case("broadcast_to", (X[:, :1],), lambda x: np.broadcast_to(x, (5, 2, 3, 4)),
         {"shape": (5, 2, 3, 4), "dtype": ""}),
    Case("broadcast_to_like", (X[:, :1], X), lambda x, y: np.broadcast_to(x, y.shape)),
    Case("collapse_sum_like", (X, X[0, :, :1]), lambda x, _: x.sum((0, 2))[:, None]),
    Case("collapse_sum_like", (INTS, INTS[0]), lambda x, _: x.sum(0, dtype=np.int32),
         label="ints"),
    Case("collapse_sum_to", (X, np.array([3, 1])), lambda x, _: x.sum((0, 2))[:, None],
         constants=(1,)),
    Case("collapse_sum_to", (INTS, np.array([2, 3, 4])), lambda x, _: x, constants=(1,)),
    Case("repeat", (X,), lambda x: np.repeat(x, 2, 1), {"repeats": 2, "axis": 1}),
    Case("repeat", (X,), lambda x: np.repeat(x, 3), {"repeats": 3}),
    Case("tile", (X,), lambda x: np.tile(x, (2, 1, 3)), {"reps": (2, 1, 3)}),
    Case("tile", (ROW,), lambda x: np.tile(x, (2, 2)), {"reps": (2, 2)}),
    Case("reverse", (X,), lambda x: np.flip(x, 1), {"axis": 1}),
    Case("reverse", (X,), lambda x: np.flip(x, 0)),
    Case("concatenate", ((X, X[:, :1]),), lambda p: np.concatenate(p, 1), {"axis": 1}),
    Case("concatenate", ((ROW, COLUMN),), lambda p: np.concatenate(p)),
    Case("stack", ((ROW, -ROW),), lambda p: np.stack(p, -1), {"axis": -1}),
    Case("stack", ((ROW, -ROW),), np.stack),
    Case("meshgrid", ((ROW, COLUMN),), grid("ij")),
    Case("meshgrid", ((ROW, COLUMN, ROW[:2]),), grid("xy"), {"indexing": "xy"}),
    Case("meshgrid", ((ROW,),), grid("xy"), {"indexing": "xy"}),
    Case("meshgrid", ((ROW,) * 2,), attrs={"indexing": "yx"}, refused="is unknown"),
    Case("einsum", ((X, X),), lambda p: np.einsum("bij,bkj->bik", *p),
         {"equation": "bij, bkj -> bik"}),
    Case("layout_transform", (WIDE,), lambda x: x.transpose(0, 2, 3, 1),
         {"src_layout": "NCHW", "dst_layout": "NHWC"}),
    Case("layout_transform", (WIDE.reshape(1, 8, 3, 5),), blocked,
         {"src_layout": "NCHW", "dst_layout": "NHWC4c"}),
    Case("layout_transform", (X,), attrs={"src_layout": "N_C", "dst_layout": "NCW"},
         refused="is no layout"),
    Case("auto_scheduler_layout_transform", (WIDE,),
         lambda x: x.reshape(2, 2, 3, 5, 2).transpose(3, 0, 2, 1, 4),
         {"src_layout": "4N3C5H2W", "dst_layout": "5H2N3C2N2W"}),
    Case("auto_scheduler_layout_transform", (X,),
         attrs={"src_layout": "2N3C4H", "dst_layout": "2N3C5H"}, refused="do not fit"),
    Case("auto_scheduler_layout_transform", (X,),
         attrs={"src_layout": "N3C4H", "dst_layout": "2N3C5H"}, refused="no layout of the auto"),
    Case("meta_schedule_layout_transform", (X,), refused="before tuning"),
    Case("shape_of", (X,), np.array([2, 3, 4], np.int64), {"dtype": "int64"}),
    Case("shape_of", (X,), np.array([2, 3, 4], np.int32)),
    Case("vm.shape_of", (X,), np.array([2, 3, 4], np.int64)),
    Case("ndarray_size", (X,), np.array(24, np.int32), {"dtype": "int32"}),
    Case("contrib.ndarray_size", (X,), np.array(24, np.int64), {"dtype": "int64"},
         version=(0, 6)),
]  # fmt: skip
