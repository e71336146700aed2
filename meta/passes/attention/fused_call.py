"""An attention that was found in a program: its arguments, and the call that computes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meta import op
from meta.base.dtype import TO_TORCH, bits, is_float
from meta.dialect.core.ir_calls import OpCall, op_call, tensor_of
from meta.ir import Constant, Expr, Var
from meta.op.attention import HEADS_FIRST, HEADS_LATER
from meta.op.core.tracing import Trace
from meta.op.norm import statistics_dtype
from meta.passes.alias_analysis import Definitions
from meta.passes.attention.axes import (
    AxisGroup,
    Refused,
    ScoreAxis,
    ScoreOperand,
    ScoreStep,
    arranged,
    extent,
    leaves,
    source,
)
from meta.passes.attention.masks import Masking, emitted, masking, spread_out
from meta.passes.attention.scores import Chain, ScoreProduct, product, replay, trace_back


@dataclass(frozen=True, slots=True)
class Heads:
    """Which axes are the operator's batch and heads, and how its arguments lie.

    ``shared``: the last axes of heads, along which key and value are one.
    """

    batch: tuple[ScoreAxis, ...]
    heads: tuple[ScoreAxis, ...]
    shared: tuple[ScoreAxis, ...]
    layout: str

    def parts(
        self, rows: Sequence[ScoreAxis], width: Sequence[ScoreAxis], own: bool
    ) -> list[list[ScoreAxis]]:
        """Return the axes of the four dimensions; ``own``: whether each head has its own."""
        heads = list(self.heads if own else self.heads[: len(self.heads) - len(self.shared)])
        if self.layout == HEADS_FIRST:
            return [list(self.batch), heads, list(rows), list(width)]
        return [list(self.batch), list(rows), heads, list(width)]


@dataclass(frozen=True, slots=True)
class AttentionMatch:
    """What is computed: query, key and value with their axes, masks, and the result's dimensions.

    ``members``: all that is computed for it alone. rows, keys: the axes of the scores; ``widths``:
    those of key and of value. dropped: the step of dropout, if there is one.
    """

    query: ScoreOperand
    key: ScoreOperand
    value: ScoreOperand
    masking: Masking
    scale: float
    lead: tuple[ScoreAxis, ...]
    rows: tuple[ScoreAxis, ...]
    keys: tuple[ScoreAxis, ...]
    widths: tuple[tuple[ScoreAxis, ...], tuple[ScoreAxis, ...]]
    result: tuple[AxisGroup, ...]
    members: frozenset[Var]
    dropped: ScoreStep | None

    @property
    def dtype(self) -> str:
        """The dtype of query, key and value."""
        return tensor_of(self.query.atom).dtype

    def arguments(self, heads: Heads) -> Iterator[tuple[ScoreOperand, list[list[ScoreAxis]]]]:
        """Yield query, key and value, each with the axes of its dimensions."""
        yield self.query, heads.parts(self.rows, self.widths[0], True)
        yield self.key, heads.parts(self.keys, self.widths[0], False)
        yield self.value, heads.parts(self.keys, self.widths[1], False)

    def heads(self) -> Heads:
        """Return how the leading axes are split that takes the least copies."""
        missing = [[a for a in self.lead if a not in o.axes] for o in (self.key, self.value)]
        last = len(self.lead) - len(missing[0])
        repeats = missing[0] == missing[1] == list(self.lead[last:])
        options = []
        for n in range(len(self.lead) + 1):
            shared = self.lead[last:] if repeats and n <= last else ()
            for layout in (HEADS_FIRST, HEADS_LATER):
                options.append(Heads(self.lead[:n], self.lead[n:], shared, layout))
        usual = int(len(self.lead) > 1)

        def cost(heads: Heads) -> tuple[int, ...]:
            return *self._copies(heads), self._cut(heads), abs(len(heads.batch) - usual)

        return min(options, key=cost)

    def _cut(self, heads: Heads) -> int:
        """Return of how many arguments a dimension is cut, a part of it being batches."""
        batch, later = set(heads.batch), set(heads.heads)
        groups = [[set(leaves(g)) for g in o.groups] for o in (self.query, self.key, self.value)]
        return sum(any(g & batch and g & later for g in own) for own in groups)

    def _copies(self, heads: Heads) -> tuple[int, int]:
        """Return how many elements are repeated, and how many arguments are transposed."""
        parts = [heads.batch, heads.heads, self.rows, self.keys]
        repeated, transposed = spread_out(self.masking, parts), 0
        for operand, wanted in self.arguments(heads):
            flat = [a for group in wanted for a in group]
            if len(flat) > len(operand.axes):
                repeated += extent(flat)
            transposed += [a for a in flat if a in operand.axes] != operand.axes
        return repeated, transposed

    def emit(self, trace: Trace, dropout_key: Expr | None) -> Any:
        """Append the call, and what makes its arguments and the old result; return that.

        dropout_key: of `dropped`.
        """
        heads = self.heads()
        query, key, value = (
            _full(arranged(trace.symbols(o.atom), o.axes, wanted), wanted)
            for o, wanted in self.arguments(heads)
        )
        mask = None
        if self.masking.masks and not self.masking.known:
            dims = [heads.batch, heads.heads, self.rows, self.keys]
            mask, sees = emitted(self.masking, trace, self.dtype, dims)
            if sees is not None:
                sees = sees if heads.layout == HEADS_FIRST else op.permute_dims(sees, (0, 2, 1, 3))
                query = op.where(sees, query, 0.0)
        scale = self.scale * self.query.factor * self.key.factor
        how: dict[str, Any] = {"window": self.masking.window}
        if self.masking.slopes is not None:
            how["slopes"] = self._slopes(trace, self.masking.slopes, heads)
        if self.dropped is not None and dropout_key is not None:
            how["dropout_key"] = trace.symbols(dropout_key)
            how["dropout_p"] = self.dropped.value[0]
        given = query, key, value, mask, self.masking.causal, scale, heads.layout
        y, _ = op.fused_attention(*given, **how)
        own = [a for part in heads.parts(self.rows, self.widths[1], True) for a in part]
        return arranged(y, own, [leaves(group) for group in self.result])

    def _slopes(self, trace: Trace, slopes: Any, heads: Heads) -> Any:
        """Return the operator's slopes: of heads, or of batches and heads where these differ."""
        own = [a for a, n in zip(self.lead, slopes.shape, strict=True) if n != 1]
        whole = [list(heads.batch), list(heads.heads)]
        wanted = whole if any(a in heads.batch for a in own) else whole[1:]
        x = trace.symbols(Constant(slopes.to(TO_TORCH[statistics_dtype(self.dtype)])))
        return _full(arranged(x, own, wanted), wanted)


def _full(x: Any, wanted: Sequence[Sequence[ScoreAxis]]) -> Any:
    """Return an argument with all elements that its dimensions say."""
    shape = tuple(map(extent, wanted))
    return x if tuple(x.shape) == shape else op.broadcast_to(x, shape)


def attention_of(
    var: Var, made: OpCall, known: Definitions, sloped: Collection[str]
) -> AttentionMatch | None:
    """Return the attention whose last product a call is; None if there is no softmax before it.
    ``sloped``: dtypes in which numbers that fall evenly with the distance become slopes.

    Raises Refused with the reason why it is none.
    """
    last = product(made)
    if last is None:
        return None
    for place in (0, 1):
        chain = trace_back(last.operands[place], known)
        if chain is not None:
            return _described(var, last, place, chain, known, sloped)
    return None


def _described(
    var: Var,
    last: ScoreProduct,
    place: int,
    chain: Chain,
    known: Definitions,
    sloped: Collection[str],
) -> AttentionMatch:
    first = product(op_call(known.get(chain.product)))
    if first is None:
        raise Refused("the scores are no product over one axis, of known extents")
    if not all((*first.extents.values(), *last.extents.values())):
        raise Refused("there is an axis without elements: no scores are kept out of memory")
    axes = {label: ScoreAxis(n) for label, n in first.extents.items()}
    seen = replay(chain, [(axes[label],) for label in first.result])
    keys = leaves(seen.scores[-1])
    if len(keys) != 1 or keys[0] not in axes.values():
        raise Refused("softmax is not over the keys of one product, or there is one only")
    keys[0].solid = axes[first.summed].solid = True
    whose = [i for i in (0, 1) if any(s and axes[s] is keys[0] for s in first.labels[i])]
    if len(whose) != 1:
        raise Refused("softmax is over an axis that query and key share")
    operands = [
        ScoreOperand(atom, tuple((axes[s],) if s else () for s in labels))
        for atom, labels in zip(first.operands, first.labels, strict=True)
    ]
    key, query = operands[whose[0]], operands[1 - whose[0]]
    # A query's own axis; others that key does not have are heads that share one.
    own = [a for a in leaves(*seen.scores) if a not in key.axes and a is not keys[0]]
    rows = tuple(own[-1:])
    for row in rows:
        row.solid = True
    value, width, result = _last(last, place, seen.probabilities, keys[0], rows)
    _check_types(var, chain, (query, key, value))
    query, key = (source(o, known, scaled=True) for o in (query, key))
    value = source(value, known)
    order = leaves(*(seen.scores if seen.dropped is None else seen.dropped))
    lead = tuple(a for a in order if a not in (*rows, *keys))
    if seen.dropped is not None and order != [*lead, *rows, *keys]:
        raise Refused("probabilities are dropped out in another order than that of the operator")
    # A query that is alone has an axis, too.
    score_axes = (*lead, *(rows or (ScoreAxis(1),)), *keys)
    with_slopes = tensor_of(query.atom).dtype in sloped
    shown = masking(seen.masks, score_axes, chain.clears, known, with_slopes)
    return AttentionMatch(
        *(query, key, value, shown, seen.scale, lead, rows, tuple(keys)),
        (tuple(axes[first.summed].leaves()), tuple(width.leaves())),
        result,
        chain.members,
        chain.dropped,
    )


def _last(
    last: ScoreProduct,
    place: int,
    groups: Sequence[AxisGroup],
    keys: ScoreAxis,
    rows: Sequence[ScoreAxis],
) -> tuple[ScoreOperand, ScoreAxis, tuple[AxisGroup, ...]]:
    """Return value, the axis that is its width, and the dimensions of the result."""
    labels, others = last.labels[place], last.labels[1 - place]
    known = {s: group for s, group in zip(labels, groups, strict=True) if s is not None}
    if None in labels or leaves(known.get(last.summed, ())) != [keys]:
        raise Refused("the last product is not a sum over the keys")
    widths = [s for s in others if s is not None and s not in known]
    if len(widths) != 1:
        raise Refused("value has not one axis of its own")
    width = ScoreAxis(last.extents[widths[0]], solid=True)
    known[widths[0]] = (width,)
    value = ScoreOperand(last.operands[1 - place], tuple(known[s] if s else () for s in others))
    if any(row in value.axes for row in rows):
        raise Refused("each query has values of its own")
    return value, width, tuple(known[s] for s in last.result)


def _check_types(var: Var, chain: Chain, operands: Sequence[ScoreOperand]) -> None:
    """Refuse dtypes that the operator does not compute in as the program does."""
    atoms = (*(o.atom for o in operands), var, chain.product)
    dtypes = {tensor_of(atom).dtype for atom in atoms}
    if len(dtypes) != 1:
        raise Refused(f"query, key, value and products are of {', '.join(sorted(dtypes))}")
    (dtype,) = dtypes
    between = {tensor_of(step.var).dtype for step in chain.steps if step is not chain.dropped}
    if not all(is_float(d) and bits(d) >= bits(dtype) for d in between):
        raise Refused(f"scores of {dtype} become {', '.join(sorted(between))} on the way")
