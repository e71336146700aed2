"""Cases of the rotary position embedding, as products of complex numbers."""

import torch

from meta.testing import F, OpCase, error, refusals, sample


def as_complex(x, interleaved):
    pairs = (
        x.unflatten(-1, (x.shape[-1] // 2, 2))
        if interleaved
        else x.unflatten(-1, (2, x.shape[-1] // 2)).mT
    )
    return torch.complex(pairs[..., 0], pairs[..., 1])


def rotary_embedding(x, cos, sin, interleaved=False):
    y = torch.view_as_real(as_complex(x, interleaved) * torch.complex(cos, sin))
    return (y if interleaved else y.mT).flatten(-2)


def rotary_embedding_dtable(x, dy, cos, interleaved=False):
    product = as_complex(x, interleaved).conj() * as_complex(dy, interleaved)
    product = product.sum_to_size(cos.shape) + 0 * cos
    return product.real, product.imag


def wide(*shape):
    """Floats in float32 whatever the dtype under test, as tables beside half precision data."""
    spec = F(*shape)
    return type(spec)(lambda _, generator: spec.make("float32", generator), f"wide{list(shape)}")


SHAPES = [
    ((2, 3, 4), (3, 2), {}),
    ((2, 3, 4), (3, 2), {"interleaved": True}),
    ((2, 2, 3, 6), (2, 1, 3, 3), {}),
    ((2, 2, 3, 6), (1, 3, 3), {"interleaved": True}),
    ((3, 2), (3, 1), {}),
    ((6,), (3,), {}),
    ((4, 8), (1,), {}),
    ((2, 70, 32), (70, 16), {}),
]
HALVES = ("float16", "bfloat16", "float32")

CASES = [
    OpCase(
        "rotary_embedding",
        [sample(F(*x), F(*t), F(*t), **how) for x, t, how in SHAPES],
        rotary_embedding,
    ),
    OpCase(
        "rotary_embedding",
        [sample(F(0, 3, 4), F(3, 2), F(3, 2)), sample(F(3, 0), F(3, 0), F(3, 0))],
        rotary_embedding,
        grad=False,
    ),
    OpCase(
        "rotary_embedding",
        [sample(F(2, 3, 4), wide(3, 2), wide(3, 2))],
        rotary_embedding,
        HALVES,
        grad=False,
    ),
    OpCase(
        "rotary_embedding_dtable",
        [sample(F(*x), F(*x), F(*t), **how) for x, t, how in SHAPES],
        rotary_embedding_dtable,
        # Sums of up to 64 products, rounded to half precision at the end.
        atol={"float16": 2e-2, "bfloat16": 2e-1},
    ),
]

_X, _TABLE = F(2, 3, 4), F(3, 2)

CASES += refusals(
    {
        "rotary_embedding": [
            error(F(2, 3), _TABLE, _TABLE, match="the last axis of x must hold pairs"),
            error(_X, F(3, 4), F(3, 4), match="cos does not fit|broadcast"),
            error(_X, _TABLE, F(1, 2), match="cos and sin differ"),
        ],
        "rotary_embedding_dtable": [error(_X, F(2, 4), _TABLE, match="dy is not of x's type")],
    }
)
