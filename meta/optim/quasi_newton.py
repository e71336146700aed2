"""`lbfgs`: minima by the limited memory BFGS method, with a line search for the strong Wolfe
conditions. Written of `while_loop`, it runs eagerly, and as one program where code is traced.

The numbers of the algorithms are those of Nocedal and Wright, Numerical Optimization, 2nd edition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from meta import op
from meta.base.errors import ArgumentError
from meta.grad.core import no_grad, value_and_grad
from meta.model.control_flow import while_loop
from meta.model.loop import require_functions
from meta.optim.vectors import TreeSpace, dot

__all__ = ["Minimum", "lbfgs"]

SUFFICIENT, CURVATURE = 1e-4, 0.9
"""c1 and c2 of the strong Wolfe conditions (3.7)."""
MAX_SEARCH = 25
"""Evaluations of one line search."""


class Minimum(NamedTuple):
    """What a minimizer found.

    Attributes
    ----------
    x: in the structure of ``x0``. value, gradient: of the function there. iterations, evaluations:
    int64[]. converged: bool[], whether a tolerance was met; else the evaluations or iterations were
    used up, or no step along the last direction gave less.

    >>> found = meta.optim.lbfgs(lambda x: ((x - 3.0) ** 2).sum(), meta.zeros(2))
    >>> found.x.tolist(), found.value.item(), found.converged.item()
    ([3.0, 3.0], 0.0, True)
    """

    x: Any
    value: Any
    gradient: Any
    iterations: Any
    evaluations: Any
    converged: Any


class _Point(NamedTuple):
    """A step along a direction, with the function's value, slope and gradient there."""

    step: Any
    value: Any
    slope: Any
    gradient: Any


class _Search(NamedTuple):
    """A line search: ``low`` is the best point so far. A minimum lies between it and ``high``,
    which is infinitely far until one is known to.
    """

    trial: Any
    low: _Point
    high: _Point
    evaluations: Any
    done: Any


class _State(NamedTuple):
    x: Any
    value: Any
    gradient: Any
    steps: Any
    changes: Any
    scale: Any
    iterations: Any
    evaluations: Any
    converged: Any
    moves: Any


def lbfgs(
    f: Callable[[Any], Any],
    x0: Any,
    *,
    history: int = 10,
    gtol: float = 1e-5,
    ftol: float = 1e-9,
    max_iter: int = 1000,
    max_evaluations: int = 10000,
    has_gradient: bool = False,
) -> Minimum:
    """Return a local minimum of f from x0 on, by L-BFGS (algorithms 7.4 and 7.5), with a line
    search for the strong Wolfe conditions (algorithms 3.5 and 3.6).

    f: a function of a tree of arrays like ``x0``, of one dtype, float32 or float64, that returns
    one number of that dtype; with ``has_gradient`` it returns ``(value, gradient)``, as a compiled
    `meta.grad.value_and_grad` does. history: how many steps are remembered. It ends when no element
    of the gradient is larger than ``gtol``, when a step changes the value by at most ``ftol *
    max(abs(value), 1)``, when the iterations or evaluations are used up, or when no step gives
    less. Nothing of it is recorded for gradients; of what it finds `custom_root` has them.

    Parameters of a model are minimized over by `meta.model.functional_call`; ``x0`` is then
    ``dict(model.named_parameters())``.

    Raises ArgumentError for other arrays or a number out of its range, and what `value_and_grad`
    raises.

    >>> import meta
    >>> found = meta.optim.lbfgs(lambda x: meta.sum((x - 3.0) ** 2), meta.zeros(2))
    >>> found.x.tolist(), found.converged.item()
    ([3.0, 3.0], True)
    """
    require_functions(f)
    numbers = {"history": history, "max_iter": max_iter, "max_evaluations": max_evaluations}
    for name, number in numbers.items():
        if number < 1:
            raise ArgumentError(f"lbfgs needs {name} of at least 1", found=number)
    space = TreeSpace(x0, "x0")
    both = f if has_gradient else value_and_grad(f)

    def evaluate(x: Any) -> tuple[Any, Any]:
        value, gradient = both(space.tree(x))
        return op.reshape(value, ()), space.vector(gradient)

    def goes_on(state: _State) -> Any:
        more = (state.iterations < max_iter) & (state.evaluations < max_evaluations)
        return more & state.moves & ~state.converged

    def step(state: _State) -> _State:
        p = _direction(state)
        one = space.number(1.0)
        # Where nothing is known of the scale: a step of length 1, or less.
        known = op.any(state.steps != 0.0)
        first = op.where(known, one, one / op.maximum(op.sqrt(dot(p, p)), one))
        g = state.gradient
        start = _Point(space.number(0.0), state.value, dot(g, p), g)

        def at(size: Any) -> _Point:
            value, gradient = evaluate(state.x + size * p)
            return _Point(size, value, dot(gradient, p), gradient)

        left = op.minimum(max_evaluations - state.evaluations, MAX_SEARCH)
        found = _search(at, first, start, left)
        end = found.low
        s, y = end.step * p, end.gradient - g
        sy, yy = dot(s, y), dot(y, y)
        keeps, moves = sy > 1e-10 * yy, end.step > 0.0
        # Where a direction leads nowhere, what gave it is forgotten.
        steps, changes = (
            op.where(
                keeps, op.concat((rows[1:], op.expand_dims(row, 0)), 0), op.where(moves, rows, 0.0)
            )
            for rows, row in ((state.steps, s), (state.changes, y))
        )
        scale = op.where(keeps, sy / op.where(keeps, yy, 1.0), op.where(moves, state.scale, one))
        size = op.maximum(op.maximum(op.abs(end.value), op.abs(state.value)), one)
        still = (op.abs(end.value - state.value) <= ftol * size) & moves
        converged = still | (op.max(op.abs(end.gradient)) <= gtol)
        counts = state.iterations + 1, state.evaluations + found.evaluations
        rest = (*counts, converged, moves | known)
        return _State(state.x + s, end.value, end.gradient, steps, changes, scale, *rest)

    with no_grad():
        x = space.vector(x0)
        value, gradient = evaluate(x)
        rows = op.zeros((history, sum(space.sizes)), space.dtype, space.device)
        count = op.full((), 0, "int64", space.device)
        rest = count, count + 1, op.max(op.abs(gradient)) <= gtol, op.isfinite(value)
        start = _State(x, value, gradient, rows, rows, space.number(1.0), *rest)
        last = while_loop(goes_on, step, start)
        tree, slope = space.tree(last.x), space.tree(last.gradient)
    return Minimum(tree, last.value, slope, last.iterations, last.evaluations, last.converged)


def _direction(state: _State) -> Any:
    """Return minus the approximate inverse of the Hessian times the gradient (algorithm 7.4)."""
    sy = op.sum(state.steps * state.changes, 1)
    rhos = op.where(sy > 0.0, 1.0 / op.where(sy > 0.0, sy, 1.0), 0.0)  # zeros: nothing there yet
    pairs = list(zip(*map(op.unstack, (state.steps, state.changes, rhos)), strict=True))
    q, alphas = state.gradient, []
    for s, y, rho in reversed(pairs):
        alphas.append(rho * dot(s, q))
        q = q - alphas[-1] * y
    r = state.scale * q
    for (s, y, rho), alpha in zip(pairs, reversed(alphas), strict=True):
        r = r + (alpha - rho * dot(y, r)) * s
    return op.negative(r)


def _search(at: Callable[[Any], _Point], first: Any, start: _Point, limit: Any) -> _Search:
    """Return a search whose ``low`` meets the strong Wolfe conditions, or is the best point met
    within ``limit`` evaluations.

    Algorithm 3.5 is algorithm 3.6 with one end of the interval at infinity.
    """

    def goes_on(search: _Search) -> Any:
        return ~search.done & (search.evaluations < limit)

    def step(search: _Search) -> _Search:
        low, high, new = search.low, search.high, at(search.trial)
        finite = op.isfinite(new.value) & op.isfinite(new.slope)
        less = new.value <= start.value + SUFFICIENT * new.step * start.slope
        good = finite & less & (new.value < low.value)
        flat = op.abs(new.slope) <= -CURVATURE * start.slope
        # Of what is not finite nothing is known; so the next trial is in the middle.
        end = _select(finite, new, low._replace(step=new.step, slope=-low.slope))
        rises = op.where(high.step > low.step, new.slope, -new.slope) >= 0.0
        high = _select(good, _select(rises, low, high), end)
        low = _select(good, new, low)
        trial = op.where(op.isfinite(high.step), _between(low, high), 2.0 * search.trial)
        return _Search(trial, low, high, search.evaluations + 1, good & flat)

    far = start._replace(step=op.full_like(first, float("inf")), slope=-start.slope)
    begin = _Search(first, start, far, op.zeros_like(limit), op.less(first, first))
    found: _Search = while_loop(goes_on, step, begin)
    return found


def _select(condition: Any, a: _Point, b: _Point) -> _Point:
    return _Point(*(op.where(condition, x, y) for x, y in zip(a, b, strict=True)))


def _between(a: _Point, b: _Point) -> Any:
    """Return the minimum of the cubic that has the values and slopes at two ends (3.59), at least a
    tenth of the interval away from both; the middle if there is none.
    """
    width = op.where(op.isfinite(b.step), b.step - a.step, 1.0)
    d1 = a.slope + b.slope + 3.0 * (a.value - b.value) / width
    square = d1 * d1 - a.slope * b.slope
    d2 = op.sign(width) * op.sqrt(op.maximum(square, 0.0))
    divisor = b.slope - a.slope + 2.0 * d2
    exists = (square >= 0.0) & (divisor != 0.0)
    ratio = (b.slope + d2 - d1) / op.where(exists, divisor, 1.0)
    share = op.where(exists, op.minimum(op.maximum(1.0 - ratio, 0.1), 0.9), 0.5)
    return a.step + width * share
