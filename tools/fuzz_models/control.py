"""How control flow is drawn: blocks of steps of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tools.fuzz_models.calls import drawn_call
from tools.fuzz_models.evaluate import Cell, Value
from tools.fuzz_models.generator import Missing
from tools.fuzz_models.program import Block, Ref, Step

if TYPE_CHECKING:
    from tools.fuzz_models.draw import Draw


def block(draw: Draw, params: list[Value], results: list[Value], most: int) -> Block:
    """Draw a block: ``params`` in, values of the types of ``results`` out.

    What is computed in it is forgotten: the step that it belongs to computes it again.
    """
    numbers = tuple(draw.fresh() for _ in params)
    outside = list(draw.scope)
    evaluations = (draw.quiet, *draw.noisy)
    mark = draw.quiet.done, len(draw.quiet.exact)
    for evaluation in evaluations:
        for number, value in zip(numbers, params, strict=True):
            cell = Cell(value.cell.data, value.exact)
            evaluation.values[number] = Value(cell, value.shape, value.dtype, True)
    draw.scope += numbers
    draw.depth += 1
    steps: list[Step] = []

    def step() -> bool:
        record = draw.record(elementwise=draw.chance(0.6))
        return not record.writes and draw.takes(drawn_call(draw, record), steps)

    for _ in range(20 * most):
        if len(steps) < most:
            draw.attempt(step)
    inner = [i for i in draw.scope if i not in outside]
    draw.depth -= 1
    found = []
    for number, wanted in zip(numbers, results, strict=False):
        alike = [
            i
            for i in inner
            if draw.value(i).shape == wanted.shape and draw.value(i).dtype == wanted.dtype
        ]
        found.append(draw.choice(alike[-3:]) if alike else number)
    draw.scope = outside
    for evaluation in evaluations:
        evaluation.done = mark[0]
    del draw.quiet.exact[mark[1] :]
    return Block(numbers, tuple(steps), tuple(found))


def _operands(draw: Draw, count: int) -> list[Ref]:
    return [draw.pick(lambda v: v.size <= 512) for _ in range(count)]


def _cond(draw: Draw) -> Step:
    try:
        pred = draw.pick(lambda v: v.shape == () and v.exact, dtype="bool")
    except Missing:
        pred = draw.input("bool", ())
    carried = _operands(draw, draw.int(1, 2))
    types = [draw.value(o) for o in carried]
    blocks = tuple(block(draw, types, types, draw.int(0, 3)) for _ in range(2))
    return Step("cond", (pred, *carried), {}, tuple(draw.fresh() for _ in carried), blocks)


def _while_loop(draw: Draw) -> Step:
    carried = _operands(draw, draw.int(1, 2))
    types = [draw.value(o) for o in carried]
    body = block(draw, types, types, draw.int(1, 3))
    results = tuple(draw.fresh() for _ in carried)
    return Step("while_loop", (draw.int(0, 3), *carried), {}, results, (body,))


def _scan(draw: Draw) -> Step:
    xs = draw.pick(lambda v: v.ndim >= 1 and 1 <= v.shape[0] <= 6 and 0 < v.size <= 512)
    (init,) = _operands(draw, 1)
    state, rows = draw.value(init), draw.value(xs)
    row = Value(Cell(rows.tensor[0].reshape(-1), rows.exact), rows.shape[1:], rows.dtype)
    body = block(draw, [state, row], [state, row], draw.int(1, 3))
    kwargs = {"reverse": True} if draw.chance(0.3) else {}
    return Step("scan", (init, xs), kwargs, (draw.fresh(), draw.fresh()), (body,))


def control_step(draw: Draw) -> Step:
    """Draw a step of control flow; Missing if there is nothing for it."""
    kind: Callable[[Draw], Step] = draw.choice((_cond, _cond, _while_loop, _scan))
    return kind(draw)
