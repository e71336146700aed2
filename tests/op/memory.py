"""What the operators of `meta/op/memory.py` have to do."""

import torch

from meta.testing import B, F, I, OpCase, error, sample


def defuse(data, sizes, shapes, shape_indices):
    """Cut the vector, and the list of extents, tensor by tensor."""
    sizes, shapes, ends = (
        [v] if isinstance(v, int) else list(v) for v in (sizes, shapes, shape_indices)
    )
    begins = [0, *ends[:-1]]
    parts = torch.split(data, sizes)
    return tuple(p.reshape(shapes[a:b]) for p, a, b in zip(parts, begins, ends, strict=True))


CASES = [
    OpCase(
        "assign",
        samples=[
            sample(F(2, 3), F(2, 3)),
            sample(F(), F()),
            sample(F(0, 2), F(0, 2)),
            sample(I(3, low=-9, high=9), I(3, low=-9, high=9)),
            sample(B(2), B(2)),
        ],
        oracle=lambda x, value: (value.clone(),),
        dialects=("torch",),
        grad=False,
        errors=[error(F(2), F(3), match="value does not fit")],
    ),
    OpCase(
        "fuse_tensor",
        samples=[
            sample((F(2, 3), F(4), F())),
            sample((F(),)),
            sample((F(0, 2), F(0))),
            sample((F(2), F(0, 3), F(1, 1, 3))),
            sample((I(3, low=-9, high=9, dtype="int8"), I(2, 2, low=-9, high=9, dtype="int8"))),
            sample((B(3), B(1, 2))),
        ],
        oracle=lambda data: torch.cat([x.flatten() for x in data]),
    ),
    OpCase(
        "defuse_tensor",
        samples=[
            sample(F(11), (6, 4, 1), (2, 3, 4), (2, 3, 3)),
            sample(F(5), 5, 5, 1),
            sample(F(1), (1,), (), (0,)),
            sample(F(3), (0, 3, 0), (2, 0, 3, 1, 0), (2, 4, 5)),
            sample(F(0), (0,), (0, 4), (2,)),
            sample(I(6, low=0, high=9, dtype="uint8"), (2, 4), (2, 2, 2), (1, 3)),
            sample(B(3), (1, 2), (1, 1, 2), (2, 3)),
        ],
        oracle=defuse,
    ),
    OpCase(
        "device_copy",
        samples=[
            sample(F(2, 3)),
            sample(F(), "cpu", "cpu"),
            sample(F(0, 2), dst_device="cpu"),
            sample(I(4, low=-9, high=9, dtype="int32")),
            sample(B(1)),
        ],
        oracle=lambda data, src_device="cpu", dst_device="cpu": data.clone(),
        devices=("cpu",),
    ),
    OpCase(
        "optimization_barrier",
        samples=[
            sample(F(2, 3), (F(4), B(2))),
            sample(F(), ()),
            sample(F(0, 2), (F(1),)),
            sample(I(4, low=-9, high=9, dtype="int32"), (B(),)),
            sample(B(1), (I(2, low=0, high=3),)),
        ],
        oracle=lambda x, after: x + 0 * sum(a.sum() for a in after if a.is_floating_point()),
    ),
]
