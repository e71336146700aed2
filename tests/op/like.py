"""What the operators of `meta/op/like.py` have to do."""

from meta.testing import B, F, I, OpCase, error, refusals, sample

# Rounding to the dtype under test, which may be coarser than the argument's.
COARSE = dict.fromkeys(("float16", "bfloat16", "float32", "float64"), 1e-2)


CASES = [
    OpCase(
        "reshape_like",
        samples=[
            sample(F(2, 6), F(3, 4)),
            sample(F(6), B(2, 3)),
            sample(F(1, 1), I(low=0, high=2)),
            sample(F(), F(1)),
            sample(F(0, 3), F(3, 0)),
            sample(I(4, low=0, high=9), B(2, 2)),
        ],
        oracle=lambda x, like_type: x.reshape(like_type.shape),
    ),
    OpCase(
        "broadcast_to_like",
        samples=[
            sample(F(3, 1), F(2, 3, 4)),
            sample(F(), F(2, 3)),
            sample(F(), F()),
            sample(F(1), I(0, low=0, high=2)),
            sample(F(2, 3), B(2, 3)),
            sample(B(1), B(4)),
        ],
        oracle=lambda x, like_type: x.expand(like_type.shape),
    ),
    OpCase(
        "collapse_sum_like",
        samples=[
            sample(F(2, 3, 4), F(3, 1)),
            sample(F(2, 3, 4), F()),
            sample(F(2, 3), F(2, 3)),
            sample(F(2, 3), F(1, 3)),
            sample(F(1, 3), F(1)),
            sample(F(1, 1, 3), F(3)),
            sample(F(), F()),
            sample(F(0, 3), F(3)),
            sample(F(3, 0), F(1, 0)),
            sample(I(3, 2, low=-99, high=99, dtype="int8"), B(2)),
            sample(I(3, 2, low=-99, high=99, dtype="int32"), B(3, 2)),
            sample(B(3, 2), B(1, 2)),
        ],
        oracle=lambda x, like_type: (x if x.is_floating_point() else x.long()).sum_to_size(
            like_type.shape
        ),
    ),
    OpCase(
        "cast_like",
        samples=[
            sample(F(2, 3), F(1)),
            sample(F(2, 3), I(2, low=0, high=2)),
            sample(F(2, 3), B()),
            sample(F(), F(2)),
            sample(F(0, 2), F()),
            sample(I(3, low=-9, high=9), F(2)),
            sample(B(3), F(2)),
        ],
        oracle=lambda x, like_type: x.to(like_type.dtype),
        grad=False,
        why="rounding has no numeric derivative; see test_like.py",
    ),
    OpCase(
        "group_cast",
        samples=[
            sample((F(2, 3), F(), F(0, 2)), "float16"),
            sample((F(2, 3), I(2, low=-9, high=9), B(3)), "float32"),
            sample((F(4),), "float64"),
        ],
        oracle=lambda tensor_list, dtype: tuple(t.double() for t in tensor_list),
        rtol=COARSE,
        atol=COARSE,
        grad=False,
        why="rounding has no numeric derivative; see test_like.py",
    ),
]

CASES += refusals(
    {
        "reshape_like": [error(F(2, 3), F(5), match="the number of elements differs")],
        "broadcast_to_like": [
            error(F(2), F(3), match="broadcast"),
            error(F(2, 3), F(3), match="one shape does not broadcast to the other"),
        ],
        "collapse_sum_like": [
            error(F(3), F(2), match="broadcast"),
            error(F(3), F(2, 3), match="one shape does not broadcast to the other"),
        ],
        "group_cast": [error((), "float32", match="tensor_list is empty")],
    }
)
