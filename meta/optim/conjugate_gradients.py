"""`conjugate_gradient`: linear systems of which only products with the matrix are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from meta import op
from meta.model.control_flow import while_loop
from meta.model.loop import require_functions
from meta.optim.vectors import TreeSpace, dot

__all__ = ["Solution", "conjugate_gradient"]


class Solution(NamedTuple):
    """What an iteration found.

    Attributes
    ----------
    x: the solution. residual: how far it is off, a norm: of ``b - A(x)``, or of the last step.
    iterations: int64[]. converged: bool[], whether the residual is within the tolerance.

    >>> found = meta.optim.conjugate_gradient(lambda v: 4.0 * v, meta.array([2.0, 8.0]))
    >>> found.x.tolist(), found.iterations.item(), found.converged.item()
    ([0.5, 2.0], 1, True)
    """

    x: Any
    residual: Any
    iterations: Any
    converged: Any


class _State(NamedTuple):
    x: Any
    r: Any
    p: Any
    rz: Any
    iterations: Any
    definite: Any


def conjugate_gradient(
    A: Callable[[Any], Any],
    b: Any,
    x0: Any = None,
    *,
    preconditioner: Callable[[Any], Any] | None = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    max_iter: int | None = None,
) -> Solution:
    """Solve ``A(x) = b`` by preconditioned conjugate gradients (Nocedal and Wright, Numerical
    Optimization, 2nd edition, algorithm 5.3).

    A: a linear function, symmetric and positive definite, from trees like ``b`` to such: arrays of
    one dtype, float32 or float64, or nested containers of them. x0: where to begin, zeros by
    default. preconditioner: such a function, too, close to the inverse of A. It ends when the norm
    of ``b - A(x)`` is at most ``max(rtol * norm(b), atol)``, after ``max_iter`` products (10 for
    each number in b), or at a direction in which A is not positive, all but the first without
    ``converged``. In traced code it is a `while_loop`.

    Raises ArgumentError for other arrays, and for what A returns in another structure.

    >>> import meta
    >>> A = meta.array([[4.0, 1.0], [1.0, 3.0]])
    >>> found = meta.optim.conjugate_gradient(lambda v: A @ v, meta.array([6.0, 7.0]))
    >>> found.converged.item(), found.iterations.item(), meta.round(found.x, 4).tolist()
    (True, 2, [1.0, 2.0])
    """
    M = preconditioner
    require_functions(A, *([] if M is None else [M]))
    space = TreeSpace(b, "b")
    product = space.map(A)
    precondition = space.map((lambda v: v) if M is None else M)
    right = space.vector(b)
    zero = space.number(0.0)
    x = op.zeros_like(right) if x0 is None else space.vector(x0)
    r = right if x0 is None else right - product(x)
    limit = op.maximum(op.sqrt(dot(right, right)) * rtol, space.number(atol))
    most = 10 * sum(space.sizes) if max_iter is None else max_iter

    def is_solved(state: _State) -> Any:
        return op.sqrt(dot(state.r, state.r)) <= limit

    def goes_on(state: _State) -> Any:
        return (state.iterations < most) & state.definite & ~is_solved(state)

    def step(state: _State) -> _State:
        p, rz = state.p, state.rz
        q = product(p)
        curvature = dot(p, q)
        definite = curvature > zero
        alpha = op.where(definite, rz / op.where(definite, curvature, 1.0), zero)
        r = state.r - alpha * q
        z = precondition(r)
        new = dot(r, z)
        count = state.iterations + 1
        return _State(state.x + alpha * p, r, z + (new / rz) * p, new, count, definite)

    z = precondition(r)
    iterations = op.full((), 0, "int64", space.device)
    first = _State(x, r, z, dot(r, z), iterations, zero <= zero)
    last = while_loop(goes_on, step, first)
    residual = op.sqrt(dot(last.r, last.r))
    return Solution(space.tree(last.x), residual, last.iterations, is_solved(last))
