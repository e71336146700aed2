"""Test records of attention and rotary embeddings."""

import torch

from meta.testing import B, C, F, OpCase, error, refusals, sample

INF = float("inf")


def repeated(mask, batch):
    """Return a mask whose batches follow one another as often as they fit."""
    if mask is None or mask.ndim < 4 or mask.shape[0] in (1, batch):
        return mask
    return mask.repeat(batch // mask.shape[0], 1, 1, 1)


def scores(query, key, mask, causal, scale):
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    found = query @ key.mT * (max(query.shape[-1], 1) ** -0.5 if scale is None else scale)
    mask = repeated(mask, query.shape[0])
    if mask is not None and mask.dtype == torch.bool:
        found = found.masked_fill(~mask, -INF)
    elif mask is not None:
        found = found + mask
    seen = torch.ones(found.shape[-2:], dtype=torch.bool).tril()
    return found.masked_fill(~seen, -INF) if causal else found


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
def attention(query, key, value, mask=None, causal=False, scale=None):
    found = scores(query, key, mask, causal, scale)
    value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    blind = (found == -INF).all(-1)
    # A finite score where all are hidden, so that no NaN gets into torch's gradient.
    found = found.masked_fill(blind.unsqueeze(-1), 0.0)
    p = torch.softmax(found, -1).masked_fill(blind.unsqueeze(-1), 0.0)
    logsumexp = torch.logsumexp(found, -1).masked_fill(blind, 0.0)
    return p @ value, logsumexp.detach()


@in_layout((0, 1, 2, 4, 6), (0, 1, 2))
def attention_dx(query, key, value, mask, y, logsumexp, dy, causal=False, scale=None):
    """The formula, for y and logsumexp as given."""
    p, ds, share = _backward(query, key, value, mask, y, logsumexp, dy, causal, scale)
    factor = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    dkey, dvalue = ds.mT @ query * factor, p.mT @ dy
    return (
        ds @ key.repeat_interleave(share, 1) * factor,
        dkey.unflatten(1, (-1, share)).sum(2),
        dvalue.unflatten(1, (-1, share)).sum(2),
    )


def _backward(query, key, value, mask, y, logsumexp, dy, causal, scale):
    share = query.shape[1] // key.shape[1]
    p = torch.exp(scores(query, key, mask, causal, scale) - logsumexp.unsqueeze(-1))
    ds = p * (dy @ value.repeat_interleave(share, 1).mT - (dy * y).sum(-1, keepdim=True))
    return p, ds, share


@in_layout((0, 1, 2, 4, 6), ())
def attention_dmask(query, key, value, mask, y, logsumexp, dy, causal=False, scale=None):
    ds = _backward(query, key, value, mask, y, logsumexp, dy, causal, scale)[1]
    times = repeated(mask, query.shape[0]).numel() // max(mask.numel(), 1)
    if times != 1:
        ds = ds.unflatten(0, (times, -1)).sum(0)
    return ds.sum_to_size(mask.shape)


def logsumexps(*shape):
    """What a logsumexp may be: float64 beside float64, else float32."""
    spec = F(*shape, low=1.0, high=3.0)

    def make(dtype, generator):
        return spec.make("float64" if dtype == "float64" else "float32", generator)

    return type(spec)(make, f"logsumexps{list(shape)}")


def inputs(b, h, l, d, g, s, e):  # noqa: E741
    """Query, key and value."""
    return F(b, h, l, d), F(b, g, s, d), F(b, g, s, e)


def backward(b, h, l, d, g, s, e, mask=None, **how):  # noqa: E741
    """A sample of a gradient operator."""
    rest = F(b, h, l, e), logsumexps(b, h, l), F(b, h, l, e)
    return sample(*inputs(b, h, l, d, g, s, e), mask, *rest, **how)


HIDDEN = C([[0.0, -INF, 1.0], [-INF, -INF, -INF]])


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
        ],
        "fused_attention_dx": [
            error(_Q, _K, _V, None, *_RESULTS, F(2, 4, 3, 5), match="dy does not fit"),
            error(_Q, _K, _V, None, _RESULTS[0], F(2, 4), _RESULTS[0], match="logsumexp does not"),
        ],
        "fused_attention_dmask": [
            error(_Q, _K, _V, B(3, 6), *_RESULTS, _RESULTS[0], match="mask must be floating"),
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
