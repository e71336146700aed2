"""Rotary position embedding in tensor expressions. Half precision is computed in float32."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast, computing
from meta.dialect.tvm.compute import INJECTIVE, OPAQUE, compute


def _members(pair, half, interleaved):
    """Return where the members of a pair are on the last axis."""
    return (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)


def _at(table, index):
    """Return the element of a table that is broadcast to ``index``."""
    own = index[len(index) - len(table.shape) :]
    return table(*[0 if int(e) == 1 else i for e, i in zip(table.shape, own, strict=True)])


@compute(op.rotary_embedding, INJECTIVE)
def rotary_embedding(x, cos, sin, interleaved):
    wide, half = computing(str(x.dtype)), int(x.shape[-1]) // 2

    def element(*i):
        *lead, d = i
        first = d % 2 == 0 if interleaved else d < half
        step = 1 if interleaved else half
        pair = d // 2 if interleaved else tirx.Select(first, d, d - half)
        other = tirx.Select(first, d + step, d - step)
        c, s = (cast(_at(table, (*lead, pair)), wide) for table in (cos, sin))
        own, partner = cast(x(*lead, d), wide), cast(x(*lead, other), wide)
        return cast(own * c + partner * tirx.Select(first, -s, s), x.dtype)

    return te.compute(x.shape, element, name="rotated")


@compute(op.rotary_embedding_dtable, OPAQUE)
def rotary_embedding_dtable(x, dy, cos, interleaved):
    wide, half = computing(str(x.dtype)), int(x.shape[-1]) // 2
    full = [*[int(e) for e in x.shape[:-1]], half]
    extents = [1] * (len(full) - len(cos.shape)) + [int(e) for e in cos.shape]
    lead = len(full) - len(cos.shape)

    def summed(function, name):
        over = {
            n: te.reduce_axis((0, e), name=f"r{n}")
            for n, e in enumerate(full)
            if extents[n] == 1 and e != 1
        }

        def element(*i):
            index = [over.get(n, 0 if n < lead else i[n - lead]) for n in range(len(full))]
            members = _members(index[-1], half, interleaved)
            a, b, p, q = (cast(t(*index[:-1], m), wide) for t in (x, dy) for m in members)
            value = function(a, b, p, q)
            return te.sum(value, axis=list(over.values())) if over else value

        total = te.compute(cos.shape, element, name=name)
        return te.compute(cos.shape, lambda *i: cast(total(*i), cos.dtype), name="rounded")

    return (
        summed(lambda a, b, p, q: p * a + q * b, "dcos"),
        summed(lambda a, b, p, q: q * a - p * b, "dsin"),
    )
