"""Attention and rotary embeddings in TE.

Scores and probabilities are stages of their own; half precision is rounded once, at the end.
"""

from tvm import te, tirx

from meta import op
from meta.dialect.core import LIBRARY
from meta.dialect.tvm.broadcast import broadcast_at, cast, computing, rounded
from meta.dialect.tvm.compute import INJECTIVE, OPAQUE, compute
from meta.dialect.tvm.index import ints
from meta.dialect.tvm.random import mask_stage
from meta.ir.types import TensorType
from meta.op.attention import HEADS_FIRST, heads_first, mask_repeats, score_scale
from meta.op.norm import statistics_dtype


class _Attention:
    """The scores of one call, and sums over their axes."""

    def __init__(self, query, key, mask, causal, scale, options):
        """``options``: window, slopes, and key and probability of dropout."""
        self.wide = statistics_dtype(str(query.dtype))
        self.batch, self.heads, self.length, width = query.shape
        self.keys = key.shape[2]
        self.share = max(int(self.heads) // max(int(key.shape[1]), 1), 1)
        self.mask, self.causal = mask, causal
        self.window, self.slopes, dropout_key, dropout_p = options
        self.repeats = _repeats(mask, self.batch)
        self.scale = self.number(score_scale(scale, int(width)))
        self.shape = (self.batch, self.heads, self.length, self.keys)
        self.raw = self.dot(query, key, width, "products")
        self.factor = 1 / (1 - dropout_p)
        self.kept: te.Tensor | None = None
        if dropout_key is not None and dropout_p > 0:
            drawn = dropout_key(*[0] * len(dropout_key.shape))
            self.kept = mask_stage(self.shape, drawn, dropout_p)

    def number(self, value):
        """Return a constant."""
        return tirx.const(float(value), self.wide)

    def at(self, x, *i):
        """Return an element in the computing dtype."""
        return cast(x(*i), self.wide)

    def dot(self, rows, columns, width, name):
        """Return rows @ columns.T, where ``columns`` has the heads of key."""
        d = te.reduce_axis((0, width), name="d")

        def product(b, h, i, j):
            return te.sum(
                self.at(rows, b, h, i, d) * self.at(columns, b, h // self.share, j, d), axis=d
            )

        return te.compute(self.shape, product, name=name)

    def score(self, *index):
        """Return one score: scaled, masked."""
        i, j = index[2:]
        value, hidden = self.raw(*index) * self.scale, self.number(float("-inf"))
        if self.mask is not None:
            own = (index[0] % self.mask.shape[0], *index[1:]) if self.repeats != 1 else index
            entry = broadcast_at(self.mask, own)
            if str(self.mask.dtype) == "bool":
                value = tirx.Select(entry, value, hidden)
            else:
                value = value + cast(entry, self.wide)
        if self.slopes is not None:
            batch = index[:1] if len(self.slopes.shape) == 2 else ()
            slope = cast(self.slopes(*batch, index[1]), self.wide)
            value = value - slope * cast(tirx.Select(j > i, j - i, i - j), self.wide)
        left, right = self.window or (-1, -1)
        if self.causal:
            right = 0
        if right >= 0:
            value = tirx.Select(j <= i + right, value, hidden)
        return tirx.Select(j >= i - left, value, hidden) if left >= 0 else value

    def dropped(self, x, name):
        """Return weights, or the gradient of what becomes of them, with dropout."""
        mask, factor, zero = self.kept, self.number(self.factor), self.number(0)
        if mask is None:
            return x

        def element(*i):
            return tirx.Select(mask(*i), x(*i) * factor, zero)

        return te.compute(self.shape, element, name=name)

    def over_keys(self, combine, element, name):
        """Return the reduction of ``element(b, h, i, j)`` over the keys."""
        j = te.reduce_axis((0, self.keys), name="j")
        return te.compute(
            self.shape[:3], lambda b, h, i: combine(element(b, h, i, j), axis=j), name=name
        )

    def rows(self, weights, values, name):
        """Return weights @ values, where ``values`` has the heads of key."""
        j = te.reduce_axis((0, self.keys), name="j")
        shape = (*self.shape[:3], values.shape[3])

        def element(b, h, i, d):
            return te.sum(weights(b, h, i, j) * self.at(values, b, h // self.share, j, d), axis=j)

        return te.compute(shape, element, name=name)

    def columns(self, weights, rows, like, name):
        """Return weights.T @ rows, summed over the heads that share one of ``like``."""
        # None, where query has no heads; division by the share still needs one.
        sharing = min(self.share, int(self.heads))
        g = te.reduce_axis((0, sharing), name="g")
        i = te.reduce_axis((0, self.length), name="i")

        def element(b, h, j, d):
            head = h * self.share + g
            return te.sum(weights(b, head, i, j) * self.at(rows, b, head, i, d), axis=[g, i])

        return te.compute(like.shape, element, name=name)

    def backward(self, value, y, logsumexp, dy):
        """Return the probabilities and the gradient of the scores."""
        p = te.compute(
            self.shape,
            lambda b, h, i, j: te.exp(self.score(b, h, i, j) - logsumexp(b, h, i)),
            name="probability",
        )

        # What all values have in common, nearly the last row of y, cancels, but would take digits
        # of what they differ in with it. With dropout it does not.
        def centred(x, share):
            if self.kept is not None:
                return te.compute(x.shape, lambda *i: self.at(x, *i), name="wide")

            def element(b, h, i, d):
                common = self.at(y, b, h // share * self.share, self.length - 1, d)
                return self.at(x, b, h, i, d) - common

            return te.compute(x.shape, element, name="centred")

        products = self.dropped(self.dot(dy, centred(value, 1), dy.shape[3], "dp"), "dropped_dp")
        d, rest = te.reduce_axis((0, dy.shape[3])), centred(y, self.share)
        flat = te.compute(
            self.shape[:3],
            lambda b, h, i: te.sum(self.at(dy, b, h, i, d) * rest(b, h, i, d), axis=d),
            name="flat",
        )
        ds = te.compute(
            self.shape,
            lambda b, h, i, j: p(b, h, i, j) * (products(b, h, i, j) - flat(b, h, i)),
            name="ds",
        )
        return p, ds


def _repeats(mask, batch):
    """Return how often the batches of a mask follow one another in those of the scores."""
    if mask is None or len(mask.shape) != 4:
        return 1
    extents = [int(n) if isinstance(n, int | tirx.IntImm) else n for n in (batch, mask.shape[0])]
    return mask_repeats(TensorType((extents[1], 1, 1, 1), str(mask.dtype)), extents[0])


def _scaled(x, dtype, factor):
    """Return x times a factor in a dtype."""
    return te.compute(x.shape, lambda *i: cast(x(*i) * factor, dtype), name="rounded")


def _swapped(layout, *arrays):
    """Return arrays with their heads first, or back in ``layout``."""

    def swap(x):
        shape = [x.shape[i] for i in (0, 2, 1, 3)]
        return te.compute(shape, lambda b, i, j, d: x(b, j, i, d), name="swapped")

    return arrays if layout == HEADS_FIRST else tuple(map(swap, arrays))


def _of_single_query(call):
    """Raise the level of one query on a CPU, as of a token that is decoded: keys and values are
    read as they lie, where ATen's kernels copy those of heads that are not adjacent.
    """
    query = heads_first(call.args.query, call.args.layout)
    return LIBRARY + 1 if call.device.kind == "cpu" and query.shape[2] == 1 else None


@compute(op.fused_attention, OPAQUE, level_of=_of_single_query)
def fused_attention(
    query, key, value, mask, causal, scale, layout, window, slopes, dropout_key, dropout_p
):
    query, key, value = _swapped(layout, query, key, value)
    options = window, slopes, dropout_key, dropout_p
    a = _Attention(query, key, mask, causal, scale, options)
    # A maximum starts from the least finite number: -inf is never subtracted from -inf.
    top = a.over_keys(te.max, a.score, "top")
    power = te.compute(
        a.shape, lambda b, h, i, j: te.exp(a.score(b, h, i, j) - top(b, h, i)), name="power"
    )
    total = a.over_keys(te.sum, power, "total")
    weighted, zero = a.rows(a.dropped(power, "dropped"), value, "weighted"), a.number(0)

    def result(b, h, i, d):
        blind = total(b, h, i) == zero
        return cast(tirx.Select(blind, zero, weighted(b, h, i, d) / total(b, h, i)), query.dtype)

    def logsumexp(*i):
        return tirx.Select(total(*i) == zero, zero, te.log(total(*i)) + top(*i))

    y = te.compute(weighted.shape, result, name="y")
    return *_swapped(layout, y), te.compute(total.shape, logsumexp, name="logsumexp")


@compute(op.fused_attention_dx, OPAQUE)
def fused_attention_dx(
    query, key, value, mask, y, logsumexp, dy, causal, scale, layout, window, slopes, dropout_key,
    dropout_p,
):  # fmt: skip
    options = window, slopes, dropout_key, dropout_p
    query, key, value, y, dy = _swapped(layout, query, key, value, y, dy)
    a = _Attention(query, key, mask, causal, scale, options)
    p, ds = a.backward(value, y, logsumexp, dy)
    return _swapped(
        layout,
        _scaled(a.rows(ds, key, "dquery"), query.dtype, a.scale),
        _scaled(a.columns(ds, query, key, "dkey"), key.dtype, a.scale),
        rounded(a.columns(a.dropped(p, "dropped"), dy, value, "dvalue"), value.dtype),
    )


@compute(op.fused_attention_dmask, OPAQUE)
def fused_attention_dmask(
    query, key, value, mask, y, logsumexp, dy, causal, scale, layout, window, slopes, dropout_key,
    dropout_p,
):  # fmt: skip
    options = window, slopes, dropout_key, dropout_p
    query, key, value, y, dy = _swapped(layout, query, key, value, y, dy)
    a = _Attention(query, key, mask, causal, scale, options)
    _, ds = a.backward(value, y, logsumexp, dy)
    full = a.shape
    if a.repeats != 1:
        full, each, count = (mask.shape[0], *full[1:]), ds, int(mask.shape[0])
        r = te.reduce_axis((0, a.repeats), name="repeat")
        ds = te.compute(
            full, lambda b, *i: te.sum(each(r * count + b, *i), axis=r), name="over_repeats"
        )
    return rounded(_summed(full, mask.shape, ds, "dmask"), mask.dtype)


@compute(op.fused_attention_dslopes, OPAQUE)
def fused_attention_dslopes(
    query, key, value, mask, y, logsumexp, dy, causal, scale, layout, window, slopes, dropout_key,
    dropout_p,
):  # fmt: skip
    options = window, slopes, dropout_key, dropout_p
    query, key, value, y, dy = _swapped(layout, query, key, value, y, dy)
    a = _Attention(query, key, mask, causal, scale, options)
    _, ds = a.backward(value, y, logsumexp, dy)

    def element(b, h, i, j):
        return ds(b, h, i, j) * cast(tirx.Select(j > i, i - j, j - i), a.wide)

    shape = (*[1] * (2 - len(slopes.shape)), *slopes.shape, 1, 1)
    total = _summed(a.shape, shape, element, "dslopes")
    lead = [0] * (2 - len(slopes.shape))
    return te.compute(
        slopes.shape, lambda *i: cast(total(*lead, *i, 0, 0), slopes.dtype), name="rounded"
    )


def _summed(full, shape, value, name):
    """Sum ``value(*index)`` over the axes along which ``shape`` is broadcast to ``full``."""
    lead = len(full) - len(shape)
    extents = [1] * lead + ints(shape)
    over = {
        n: te.reduce_axis((0, extent), name=f"r{n}")
        for n, extent in enumerate(full)
        if extents[n] == 1 and int(extent) != 1
    }

    def element(*i):
        index = [over.get(n, 0 if n < lead else i[n - lead]) for n in range(len(full))]
        return te.sum(value(*index), axis=list(over.values())) if over else value(*index)

    return te.compute(shape, element, name=name)


@compute(op.rotary_embedding, INJECTIVE)
def rotary_embedding(x, cos, sin, interleaved):
    wide, half = computing(str(x.dtype)), int(x.shape[-1]) // 2

    def element(*i):
        *lead, d = i
        first = d % 2 == 0 if interleaved else d < half
        step = 1 if interleaved else half
        pair = d // 2 if interleaved else tirx.Select(first, d, d - half)
        other = tirx.Select(first, d + step, d - step)
        c, s = (cast(broadcast_at(table, (*lead, pair)), wide) for table in (cos, sin))
        own, partner = cast(x(*lead, d), wide), cast(x(*lead, other), wide)
        return cast(own * c + partner * tirx.Select(first, -s, s), x.dtype)

    return te.compute(x.shape, element, name="rotated")


@compute(op.rotary_embedding_dtable, OPAQUE)
def rotary_embedding_dtable(x, dy, cos, interleaved):
    wide, half = computing(str(x.dtype)), int(x.shape[-1]) // 2

    def summed(function, name):
        def value(*index):
            *lead, pair = index
            members = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
            return function(*[cast(t(*lead, m), wide) for t in (x, dy) for m in members])

        return rounded(_summed([*x.shape[:-1], half], cos.shape, value, name), cos.dtype)

    return (
        summed(lambda a, b, p, q: p * a + q * b, "dcos"),
        summed(lambda a, b, p, q: q * a - p * b, "dsin"),
    )
