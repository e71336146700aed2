"""Test records of attention and rotary embeddings."""

import math

import torch

from meta.testing import B, C, F, OpCase, error, refusals, sample
from tests.op.random import philox

INF = float("inf")


def repeated(mask, batch):
    """Return a mask whose batches follow one another as often as they fit."""
    if mask is None or mask.ndim < 4 or mask.shape[0] in (1, batch):
        return mask
    return mask.repeat(batch // mask.shape[0], 1, 1, 1)


def kept(shape, key, p):
    """What dropout multiplies weights by, a word of Philox for each."""
    if key is None or p == 0:
        return 1.0
    words = [philox(i // 4, int(key))[i % 4] for i in range(math.prod(shape))]
    return torch.tensor([w >= p * 2**32 for w in words]).reshape(shape).double() / (1 - p)


def scores(query, key, mask, causal, scale, window=None, slopes=None):
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    found = query @ key.mT * (max(query.shape[-1], 1) ** -0.5 if scale is None else scale)
    mask = repeated(mask, query.shape[0])
    if mask is not None and mask.dtype == torch.bool:
        found = found.masked_fill(~mask, -INF)
    elif mask is not None:
        found = found + mask
    rows, keys = (torch.arange(n) for n in found.shape[-2:])
    distance = keys - rows.unsqueeze(-1)
    if slopes is not None:
        found = found - slopes[..., None, None] * distance.abs()
    left, right = window or (-1, -1)
    if left >= 0:
        found = found.masked_fill(distance < -left, -INF)
    if right >= 0:
        found = found.masked_fill(distance > right, -INF)
    return found.masked_fill(distance > 0, -INF) if causal else found


def in_layout(places, results):
    """Let an oracle of tensors with their heads first serve both layouts.

    places, results: which arguments and which results have heads.
    """

    def decorate(oracle):
        def run(*args, layout="BHSD", **how):
            if layout == "BHSD":
                return oracle(*args, **how)
            args = [t.transpose(1, 2) if i in places else t for i, t in enumerate(args)]
            found = oracle(*args, **how)
            if isinstance(found, torch.Tensor):
                return found
            return tuple(t.transpose(1, 2) if i in results else t for i, t in enumerate(found))

        return run

    return decorate


@in_layout((0, 1, 2), (0,))
def attention(
    query, key, value, mask=None, causal=False, scale=None, window=None, slopes=None,
    dropout_key=None, dropout_p=0.0,
):  # fmt: skip
    found = scores(query, key, mask, causal, scale, window, slopes)
    value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    blind = (found == -INF).all(-1)
    # A finite score where all are hidden, so that no NaN gets into torch's gradient.
    found = found.masked_fill(blind.unsqueeze(-1), 0.0)
    p = torch.softmax(found, -1).masked_fill(blind.unsqueeze(-1), 0.0)
    logsumexp = torch.logsumexp(found, -1).masked_fill(blind, 0.0)
    return p * kept(p.shape, dropout_key, dropout_p) @ value, logsumexp.detach()


@in_layout((0, 1, 2, 4, 6), (0, 1, 2))
def attention_dx(query, key, value, mask, y, logsumexp, dy, causal=False, scale=None, **more):
    """The formula, for y and logsumexp as given."""
    p, ds, share = _backward(query, key, value, mask, y, logsumexp, dy, causal, scale, **more)
    factor = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    dkey, dvalue = ds.mT @ query * factor, p.mT @ dy
    return (
        ds @ key.repeat_interleave(share, 1) * factor,
        dkey.unflatten(1, (-1, share)).sum(2),
        dvalue.unflatten(1, (-1, share)).sum(2),
    )


def _backward(
    query, key, value, mask, y, logsumexp, dy, causal, scale, window=None, slopes=None,
    dropout_key=None, dropout_p=0.0,
):  # fmt: skip
    """Return the weights after dropout, and the gradient of the scores."""
    share = query.shape[1] // key.shape[1]
    found = scores(query, key, mask, causal, scale, window, slopes)
    p = torch.exp(found - logsumexp.unsqueeze(-1))
    factor = kept(p.shape, dropout_key, dropout_p)
    slope = dy @ value.repeat_interleave(share, 1).mT * factor
    return p * factor, p * (slope - (dy * y).sum(-1, keepdim=True)), share


@in_layout((0, 1, 2, 4, 6), ())
def attention_dmask(query, key, value, mask, y, logsumexp, dy, causal=False, scale=None, **more):
    ds = _backward(query, key, value, mask, y, logsumexp, dy, causal, scale, **more)[1]
    times = repeated(mask, query.shape[0]).numel() // max(mask.numel(), 1)
    if times != 1:
        ds = ds.unflatten(0, (times, -1)).sum(0)
    return ds.sum_to_size(mask.shape)


@in_layout((0, 1, 2, 4, 6), ())
def attention_dslopes(
    query, key, value, mask, y, logsumexp, dy, causal=False, scale=None, *, slopes, **more
):
    given = query, key, value, mask, y, logsumexp, dy, causal, scale
    ds = _backward(*given, slopes=slopes, **more)[1]
    rows, keys = (torch.arange(n) for n in ds.shape[-2:])
    total = -(ds * (keys - rows.unsqueeze(-1)).abs()).sum((2, 3))
    return total.sum_to_size(slopes.shape)


def logsumexps(*shape):
    """What a logsumexp may be: float64 beside float64, else float32."""
    spec = F(*shape, low=1.0, high=3.0)

    def make(dtype, generator):
        return spec.make("float64" if dtype == "float64" else "float32", generator)

    return type(spec)(make, f"logsumexps{list(shape)}")


def single(*shape, **bounds):
    """Floats in float32 whatever the dtype under test, as tables beside half precision data."""
    spec = F(*shape, **bounds)
    return type(spec)(lambda _, generator: spec.make("float32", generator), f"single{list(shape)}")


HALVES = ("float16", "bfloat16", "float32")


def inputs(b, h, l, d, g, s, e):  # noqa: E741
    """Query, key and value."""
    return F(b, h, l, d), F(b, g, s, d), F(b, g, s, e)


def backward(b, h, l, d, g, s, e, mask=None, **how):  # noqa: E741
    """A sample of a gradient operator."""
    rest = F(b, h, l, e), logsumexps(b, h, l), F(b, h, l, e)
    return sample(*inputs(b, h, l, d, g, s, e), mask, *rest, **how)


HIDDEN = C([[0.0, -INF, 1.0], [-INF, -INF, -INF]])

HIDDEN_4 = C([[-INF] * 4, [0.0, 1.0, -INF, -INF], [0.5] * 4, [-INF, -INF, 1.0, 2.0]])

SEEN = C([[True, False, True], [False, False, False]], "bool")

# Results are sums of products of the order of 5; ATen rounds probabilities to half precision.
COARSE = {"float16": 2e-2, "bfloat16": 2e-1}

CASES = [
    OpCase(
        "fused_attention",
        [
            sample(*inputs(2, 2, 2, 4, 2, 3, 4)),
            sample(*inputs(1, 2, 3, 2, 2, 3, 2), causal=True),
            sample(*inputs(1, 2, 2, 4, 2, 5, 4), causal=True, scale=0.3),
            sample(*inputs(1, 1, 5, 4, 1, 2, 4), causal=True),
            sample(*inputs(1, 4, 2, 3, 2, 3, 3)),
            sample(*inputs(2, 3, 2, 3, 1, 3, 2)),
            sample(*inputs(1, 2, 2, 4, 2, 3, 4), SEEN),
            sample(*inputs(1, 2, 2, 4, 1, 3, 4), B(1, 2, 1, 3), True),
            sample(*inputs(2, 2, 2, 2, 2, 3, 2), F(2, 3)),
            sample(*inputs(2, 2, 2, 2, 2, 3, 2), F(2, 1, 1, 3), True),
            sample(*inputs(1, 2, 2, 2, 2, 3, 2), F(3)),
            sample(*inputs(4, 2, 2, 2, 2, 3, 2), F(2, 2, 2, 3)),
            sample(*inputs(6, 1, 2, 2, 1, 3, 2), B(2, 1, 1, 3), True),
            sample(*inputs(1, 2, 2, 4, 2, 3, 4), HIDDEN),
            sample(*inputs(1, 2, 70, 16, 1, 50, 16), causal=True),
            sample(F(2, 3, 4, 8), F(2, 5, 2, 8), F(2, 5, 2, 8), B(2, 1, 1, 5), layout="BSHD"),
            sample(F(2, 3, 4, 2), F(2, 5, 4, 2), F(2, 5, 4, 2), causal=True, layout="BSHD"),
        ],
        attention,
        atol=COARSE,
    ),
    OpCase(
        "fused_attention",
        [
            sample(*inputs(0, 2, 2, 4, 2, 3, 4)),
            sample(*inputs(1, 2, 0, 4, 2, 3, 4)),
            sample(*inputs(1, 2, 2, 4, 2, 3, 0)),
            sample(*inputs(1, 2, 2, 4, 2, 0, 4)),
            sample(*inputs(1, 2, 2, 0, 2, 3, 4)),
        ],
        attention,
        grad=False,
    ),
    OpCase(
        "fused_attention_dx",
        [
            backward(2, 2, 2, 4, 2, 3, 4),
            backward(1, 4, 3, 4, 2, 5, 4, causal=True, scale=0.3),
            backward(1, 2, 2, 4, 1, 3, 4, SEEN),
            backward(1, 2, 2, 4, 2, 3, 2, HIDDEN, causal=True),
            backward(4, 2, 2, 2, 2, 3, 2, B(2, 1, 2, 3)),
            sample(
                *(F(2, 3, 4, 8), F(2, 5, 2, 8), F(2, 5, 2, 8), None),
                *(F(2, 3, 4, 8), logsumexps(2, 4, 3), F(2, 3, 4, 8)),
                layout="BSHD",
            ),
        ],
        attention_dx,
        grad=False,
        why="it is the second gradient of attention",
        rtol={"float16": 2e-2, "bfloat16": 1e-1},
        # The statistics are not those of the scores, so that results are large.
        atol={"float16": 2e-1, "bfloat16": 2.0, "float32": 1e-4},
    ),
    OpCase(
        "fused_attention_dmask",
        [
            backward(2, 2, 2, 4, 2, 3, 4, F(2, 3)),
            backward(2, 4, 2, 4, 2, 3, 4, F(1, 4, 2, 1), causal=True),
            backward(1, 2, 2, 4, 2, 3, 2, F(1, 2, 2, 3), scale=0.3),
            backward(1, 2, 2, 4, 2, 3, 4, F()),
            backward(6, 2, 2, 2, 2, 3, 2, F(2, 2, 2, 3)),
            backward(4, 2, 2, 2, 1, 3, 2, F(2, 1, 1, 3), causal=True),
            sample(
                *(F(2, 3, 4, 2), F(2, 5, 2, 2), F(2, 5, 2, 2), F(2, 4, 3, 1)),
                *(F(2, 3, 4, 2), logsumexps(2, 4, 3), F(2, 3, 4, 2)),
                layout="BSHD",
            ),
        ],
        attention_dmask,
        grad=False,
        why="it is the second gradient of attention",
        atol={"float16": 1e-1, "bfloat16": 1.0},
    ),
]


def drops(p=0.4, key=7):
    """Arguments of dropout."""
    return {"dropout_key": C([key], "int64"), "dropout_p": p}


def falling(*shape, make=F):
    """Slopes, with which far keys count less."""
    return make(*shape, low=0.1, high=1.0)


LATER = {"layout": "BSHD"}
# A bias of slopes in half precision is rounded.
CASES += [
    OpCase(
        "fused_attention",
        [
            sample(*inputs(2, 2, 3, 4, 2, 5, 4), **drops()),
            sample(*inputs(1, 4, 3, 4, 2, 5, 3), B(3, 5), True, **drops(0.2, 2**40 + 3)),
            sample(F(2, 3, 4, 8), F(2, 5, 2, 8), F(2, 5, 2, 8), **drops(), **LATER),
            sample(*inputs(1, 2, 6, 4, 2, 6, 4), window=(2, 1)),
            sample(*inputs(1, 2, 6, 4, 2, 4, 4), window=(-1, 1)),
            sample(*inputs(1, 2, 7, 4, 1, 3, 4), window=(2, 0)),
            sample(*inputs(1, 2, 5, 4, 2, 5, 4), F(1, 1, 1, 5), True, window=(2, -1)),
            sample(*inputs(2, 3, 3, 4, 3, 5, 4), slopes=falling(3)),
            sample(*inputs(1, 2, 3, 2, 2, 3, 2), slopes=falling(2), **drops()),
            sample(*inputs(2, 2, 3, 4, 1, 3, 4), None, True, slopes=falling(2, 2), **drops()),
            sample(*inputs(2, 2, 4, 4, 2, 4, 3), HIDDEN_4, window=(1, 1), slopes=falling(2)),
        ],
        attention,
        atol=COARSE,
    ),
    OpCase(
        "fused_attention",
        [
            sample(*inputs(1, 2, 0, 4, 2, 3, 4), **drops()),
            sample(*inputs(1, 2, 2, 4, 2, 0, 4), slopes=falling(2), **drops()),
            sample(*inputs(1, 2, 2, 4, 2, 0, 4), window=(1, 1)),
        ],
        attention,
        grad=False,
    ),
    OpCase(
        "fused_attention",
        [sample(*inputs(2, 2, 3, 4, 2, 5, 4), slopes=falling(2, make=single))],
        attention,
        HALVES,
        atol=COARSE,
        grad=False,
    ),
    OpCase(
        "fused_attention_dx",
        [
            backward(2, 2, 3, 4, 2, 5, 4, **drops()),
            backward(1, 4, 4, 4, 2, 4, 3, B(4, 4), window=(1, 2), slopes=falling(4), **drops()),
            backward(1, 2, 6, 4, 1, 6, 4, window=(2, 1)),
            backward(2, 2, 3, 4, 2, 3, 4, causal=True, slopes=falling(2, 2)),
        ],
        attention_dx,
        grad=False,
        why="it is the second gradient of attention",
        rtol={"float16": 2e-2, "bfloat16": 1e-1},
        atol={"float16": 4e-1, "bfloat16": 4.0, "float32": 1e-4},
    ),
    OpCase(
        "fused_attention_dmask",
        [
            backward(2, 2, 3, 4, 2, 5, 4, F(3, 5), **drops()),
            backward(4, 2, 3, 4, 1, 3, 4, F(2, 1, 3, 3), window=(1, 1), slopes=falling(2)),
        ],
        attention_dmask,
        grad=False,
        why="it is the second gradient of attention",
        rtol={"float16": 2e-2, "bfloat16": 1e-1},
        atol={"float16": 2e-1, "bfloat16": 2.0},
    ),
    OpCase(
        "fused_attention_dslopes",
        [
            backward(2, 2, 3, 4, 2, 5, 4, slopes=falling(2)),
            backward(2, 4, 3, 4, 2, 3, 4, B(3, 3), window=(1, 0), slopes=falling(2, 4), **drops()),
            sample(
                *(F(2, 3, 4, 2), F(2, 5, 2, 2), F(2, 5, 2, 2), None),
                *(F(2, 3, 4, 2), logsumexps(2, 4, 3), F(2, 3, 4, 2)),
                slopes=falling(4),
                **LATER,
            ),
        ],
        attention_dslopes,
        grad=False,
        why="it is the second gradient of attention",
        rtol={"float16": 2e-2, "bfloat16": 1e-1},
        atol={"float16": 4e-1, "bfloat16": 4.0},
    ),
]

_Q, _K, _V = F(2, 4, 3, 5), F(2, 2, 6, 5), F(2, 2, 6, 7)

_RESULTS = F(2, 4, 3, 7), F(2, 4, 3)

CASES += refusals(
    {
        "fused_attention": [
            error(F(4, 3, 5), _K, _V, match="query must have 4 axes"),
            error(_Q, C([[[[1.0] * 5] * 6] * 2] * 2, "float64"), _V, match="differ in dtype"),
            error(_Q, F(2, 2, 6, 4), _V, match="do not fit together"),
            error(_Q, F(2, 3, 6, 5), F(2, 3, 6, 7), match="must divide those of query"),
            error(_Q, _K, _V, C([0], "int64"), match="mask must be bool"),
            error(_Q, _K, _V, B(5, 6), match="mask|broadcast"),
            error(F(6, 1, 3, 5), F(6, 1, 6, 5), F(6, 1, 6, 5), B(4, 1, 3, 6), match="broadcast"),
            error(_Q, _K, _V, layout="SBHD", match="layout is not supported"),
            error(_Q, _K, _V, window=(1,), match="window does not fit"),
            error(_Q, _K, _V, window=(-2, 1), match="window does not fit"),
            error(_Q, _K, _V, slopes=F(2), match="slopes do not fit"),
            error(_Q, _K, _V, slopes=F(1, 4), match="slopes do not fit"),
            error(_Q, _K, _V, slopes=C([1] * 4, "int64"), match="slopes do not fit"),
            error(_Q, _K, _V, dropout_p=0.1, match="weights are dropped by a key"),
            error(_Q, _K, _V, **drops(1.0), match="p is not a probability"),
            error(_Q, _K, _V, dropout_key=C([1, 2], "int64"), match="dropout_key is no key"),
        ],
        "fused_attention_dx": [
            error(_Q, _K, _V, None, *_RESULTS, F(2, 4, 3, 5), match="dy does not fit"),
            error(_Q, _K, _V, None, _RESULTS[0], F(2, 4), _RESULTS[0], match="logsumexp does not"),
        ],
        "fused_attention_dmask": [
            error(_Q, _K, _V, B(3, 6), *_RESULTS, _RESULTS[0], match="mask must be floating"),
            error(_Q, _K, _V, None, *_RESULTS, _RESULTS[0], match="there is no mask"),
        ],
        "fused_attention_dslopes": [
            error(_Q, _K, _V, None, *_RESULTS, _RESULTS[0], match="there are no slopes"),
        ],
    }
)


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

CASES += [
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
        [sample(F(2, 3, 4), single(3, 2), single(3, 2))],
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
