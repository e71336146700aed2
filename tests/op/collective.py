"""Test records of collectives, along an axis of one rank: what they are among several is tested in
tests/distributed.
"""

import torch

from meta.testing import B, C, F, I, OpCase, error, sample

ALONE = ("dp", 1)
MOVED = [sample(F(4, 6), *ALONE), sample(F(2, 0), *ALONE), sample(B(3), *ALONE)]
NO_RANK = error(F(2), "dp", 0, match="there is no rank")


def itself(x, over, size, *_, **__):
    return x.clone()


def moved(name, *more, **errors):
    return OpCase(name, samples=[*MOVED, *more], oracle=itself, dialects=("torch",), **errors)


def reduced(name, *more, **options):
    return OpCase(
        name,
        samples=[
            sample(F(4, 6), *ALONE),
            sample(F(0), *ALONE, "max"),
            sample(F(2), *ALONE, "mean"),
            sample(I(3, low=-9, high=9), *ALONE, "min"),
            *more,
        ],
        oracle=itself,
        dialects=("torch",),
        errors=[
            NO_RANK,
            error(F(2), *ALONE, "sun", match="no such reduction"),
            error(B(2), *ALONE, match="bool is not reduced"),
            error(I(2, low=0, high=2), *ALONE, "mean", match="mean of integers"),
        ],
        **options,
    )


SEVERAL = [
    error((F(2), C([1.0], "float16")), *ALONE, match="x has several dtypes"),
    error((F(2),), *ALONE, "sun", match="no such reduction"),
    error((F(2),), *ALONE, "sum", 0, match="align counts bytes"),
]

GATHERED = [
    error((F(2), C([1.0], "float16")), *ALONE, match="x has several dtypes"),
    error((F(2), F(3)), "dp", 2, match="not divided by 2 ranks"),
]

CASES = [
    reduced("all_reduce", sample(F(), *ALONE)),
    reduced("reduce_to", sample(F(), *ALONE)),
    reduced("reduce_scatter", sample(F(2, 3), *ALONE, "sum", 1)),
    reduced("reduce_scatter_start", sample(F(2, 3), *ALONE, "sum", 1), grad=False),
    moved("all_gather_start", sample(F(2, 3), *ALONE, 1), errors=[NO_RANK], grad=False),
    moved(
        "all_gather",
        sample(F(2, 3), *ALONE, 1),
        errors=[NO_RANK, error(F(), *ALONE, match="axis"), error(F(2), *ALONE, 1, match="axis")],
    ),
    moved(
        "all_to_all",
        sample(F(2, 3), *ALONE, 0, 1),
        errors=[error(F(3), "dp", 2, match="not divided by 2 ranks")],
    ),
    moved("broadcast_from", errors=[error(F(2), *ALONE, 1, match="root is no rank")]),
    moved("gather_to", sample(F(2, 3), *ALONE, 1)),
    moved(
        "scatter_from",
        sample(F(2, 3), *ALONE, -1),
        errors=[error(F(3), "dp", 2, match="not divided by 2 ranks")],
    ),
    moved("gather_from", sample(F(2, 3), *ALONE, 1), errors=[NO_RANK]),
    moved(
        "scatter_to",
        sample(F(2, 3), *ALONE, -1),
        errors=[error(F(3), "dp", 2, match="not divided by 2 ranks")],
    ),
    OpCase(
        "send_recv",
        samples=[sample(F(2, 3), *ALONE, 0, 0), sample(F(2), *ALONE, (), ())],
        oracle=lambda x, over, size, sources, targets: x * (sources == 0),
        dialects=("torch",),
        errors=[
            error(F(2), "dp", 2, (0, 1), (1, 1), match="twice in targets"),
            error(F(2), "dp", 2, (0,), (2,), match="targets is no rank"),
            error(F(2), "dp", 2, (0, 1), (1,), match="2 sources and 1 targets"),
        ],
    ),
    OpCase("copy_to", samples=MOVED, oracle=itself, dialects=(), errors=[NO_RANK]),
    OpCase(
        "reduce_from",
        samples=[sample(F(4, 6), *ALONE), sample(F(), *ALONE)],
        oracle=itself,
        dialects=("torch",),
        errors=[NO_RANK],
    ),
    *(
        OpCase(
            name,
            samples=[sample((F(4, 6), F(2), F(0, 3)), *ALONE)],
            oracle=lambda x, over, size, *_: tuple(one.clone() for one in x),
            dialects=("torch",),
            grad=False,
            errors=[
                error((F(2),), "dp", 0, match="there is no rank"),
                error((), *ALONE, match="no tensors"),
                error((F(2), C([1.0], "float16")), *ALONE, match="x has several dtypes"),
            ],
        )
        for name in (
            *("multi_tensor_all_gather", "multi_tensor_all_gather_start"),
            *("multi_tensor_reduce_scatter", "multi_tensor_reduce_scatter_start"),
        )
    ),
    *(
        OpCase(
            name,
            samples=[
                sample((F(4, 6), F(), F(0)), *ALONE),
                sample((I(3, low=-9, high=9),), *ALONE, *least),
            ],
            oracle=lambda x, over, size, *_: x,
            dialects=("torch",),
            grad=False,
            errors=[
                error((F(2),), "dp", 0, match="there is no rank"),
                error((), *ALONE, match="no tensors"),
                *more,
            ],
        )
        for name, least, more in (
            ("multi_tensor_all_reduce", ("min", 64), SEVERAL),
            ("multi_tensor_all_reduce_start", ("max",), SEVERAL),
            ("multi_tensor_all_gather_in_place", (), GATHERED),
            ("multi_tensor_all_gather_in_place_start", (), GATHERED),
            ("collective_wait", (), ()),
        )
    ),
    OpCase(
        "own_shard",
        # Given by value: a view of what is not compact is refused.
        samples=[sample(C(x), *ALONE) for x in ([[1.0, 2.0], [3.0, 4.0]], [[]], 1.0)],
        oracle=lambda x, over, size: x.reshape(-1),
        dialects=(),
        grad=False,
        errors=[NO_RANK, error(F(3), "dp", 2, match="not divided by 2 ranks")],
    ),
    OpCase(
        "axis_index",
        samples=[sample(*ALONE)],
        oracle=lambda over, size: torch.zeros((), dtype=torch.int64),
        dialects=("torch",),
        grad=False,
    ),
]
