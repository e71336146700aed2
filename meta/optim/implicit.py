"""Implicit differentiation: solutions of equations, whose derivatives are those of the implicit
function theorem, not of the steps that led there.

With ``f(x, *args) = 0``, a gradient v by x becomes ``-u`` times the derivative of f by the
arguments, where ``J^T u = v`` and J is the derivative of f by x. The solution of that linear system
has such a rule, too, in which J and its transpose change places: so there are derivatives of any
order, backwards and forwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from meta import op
from meta.grad.core import jacobian, linearize, vjp
from meta.model.control_flow import while_loop
from meta.model.custom_rule import custom_vjp
from meta.model.loop import require_functions
from meta.op.core import tree
from meta.optim.conjugate_gradients import Solution
from meta.optim.vectors import TreeSpace, dot

__all__ = ["custom_root", "dense_solve", "fixed_point"]

LinearSolve = Callable[[Callable[[Any], Any], Any], Any]
"""Returns x with ``A(x) = b``, given A and b."""


def dense_solve(A: Callable[[Any], Any], b: Any) -> Any:
    """Return x with ``A(x) = b``, of the matrix that A is: as many products as b has numbers.

    A: a linear function from trees like ``b`` to such. b: a tree of arrays of one dtype, float32
    or float64.

    >>> import meta
    >>> meta.optim.dense_solve(lambda v: v * 2.0, meta.array([1.0, 2.0])).tolist()
    [0.5, 1.0]
    """
    space = TreeSpace(b, "b")
    right = space.vector(b)
    matrix = jacobian(space.map(A))(op.zeros_like(right))
    return space.tree(op.linalg_solve(matrix, right))


def custom_root(
    f: Callable[..., Any],
    solve: Callable[..., Any],
    linear_solve: LinearSolve = dense_solve,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Return the function that ``solve`` computes, ``x = solve(*args)`` with ``f(x, *args) = 0``.
    Its derivatives are those of x by the arguments, whatever solve does.

    f: returns a tree like x, floating point arrays. solve: with ``has_aux`` it returns ``(x,
    aux)``, of which aux has no derivatives. Both are given what they depend on: to differentiate by
    what they close over is an error. linear_solve: ``linear_solve(A, b)`` returns u with ``A(u) =
    b``, where A is the derivative of f by x, or its transpose: `dense_solve`, or where it is
    symmetric and positive definite, as at a minimum, ``lambda A, b: conjugate_gradient(A, b).x``.

    Raises what `meta.custom_vjp` raises. That f is 0 at x is not looked at.

    >>> import meta
    >>> root = meta.optim.custom_root(lambda x, a: x * x - a, lambda a: meta.sqrt(a))
    >>> meta.grad(root)(meta.array(4.0)).item()
    0.25
    """
    require_functions(f, solve, linear_solve)

    def product(transposed: bool, x: Any, args: Any) -> Callable[[Any], Any]:
        """Return the product with f's derivative by x, or with its transpose."""
        if not transposed:
            return linearize(lambda x: f(x, *args), x)[1]
        pull = vjp(lambda x: f(x, *args), x)[1]
        return lambda u: pull(u)[0]

    linear: Any = custom_vjp(
        lambda transposed, x, args, v: linear_solve(product(transposed, x, args), v), static=0
    )
    root: Any = custom_vjp(solve)

    def linear_forward(transposed: bool, x: Any, args: Any, v: Any) -> Any:
        u = linear(transposed, x, args, v)
        return u, (u, x, args)

    def linear_backward(transposed: bool, kept: Any, du: Any) -> Any:
        u, x, args = kept
        dv = linear(not transposed, x, args, du)
        pull = vjp(lambda x, args: product(transposed, x, args)(u), x, args)[1]
        return (*pull(_map(op.negative, dv)), dv)

    def root_forward(*args: Any) -> Any:
        found = root(*args)
        return found, (found[0] if has_aux else found, args)

    def root_backward(kept: Any, dy: Any) -> Any:
        x, args = kept
        u = linear(True, x, args, dy[0] if has_aux else dy)
        return vjp(lambda *args: f(x, *args), *args)[1](_map(op.negative, u))

    linear.defvjp(linear_forward, linear_backward)
    root.defvjp(root_forward, root_backward)
    return cast(Callable[..., Any], root)


def _map(f: Callable[..., Any], *trees: Any) -> Any:
    leaves = [tree.flatten(t)[0] for t in trees]
    structure = tree.flatten(trees[0])[1]
    return tree.unflatten(structure, [f(*xs) for xs in zip(*leaves, strict=True)])


def fixed_point(
    f: Callable[..., Any],
    x0: Any,
    *args: Any,
    rtol: float = 1e-6,
    max_iter: int = 1000,
    linear_solve: LinearSolve | None = None,
) -> Solution:
    """Return x with ``x = f(x, *args)``, where ``x0, f(x0), f(f(x0)), ...`` leads to: a f that
    brings any two points nearer to each other. x has derivatives by ``args``, as `custom_root`
    says, and none by ``x0``.

    f: a function of a tree of arrays like ``x0``, of one dtype, float32 or float64, and of what it
    depends on, that returns such a tree. It ends when a step is no longer than ``rtol`` times the
    norm of x, or without ``converged`` after ``max_iter`` steps. linear_solve: as for
    `custom_root`; by default, it is the same iteration, to the same tolerance. Where that does not
    converge, the derivatives are NaN.

    >>> import meta
    >>> root_of_two = lambda a: meta.optim.fixed_point(lambda x, a: 0.5 * (x + a / x), 1.0, a).x
    >>> meta.grad(root_of_two)(meta.array(4.0)).item()
    0.25
    """
    require_functions(f)

    def iterate(step: Callable[[Any], Any], start: Any, space: TreeSpace) -> Solution:
        def goes_on(state: Any) -> Any:
            x, change, count = state
            return ~(change <= rtol * op.sqrt(dot(x, x))) & (count < max_iter)

        def next_state(state: Any) -> Any:
            x, _, count = state
            new = step(x)
            return new, op.sqrt(dot(new - x, new - x)), count + 1

        far, count = space.number(float("inf")), op.full((), 0, "int64", space.device)
        x, change, count = while_loop(goes_on, next_state, (start, far, count))
        return Solution(space.tree(x), change, count, change <= rtol * op.sqrt(dot(x, x)))

    def solve(x0: Any, *args: Any) -> Any:
        space = TreeSpace(x0, "x0")
        found = iterate(space.map(lambda x: f(x, *args)), space.vector(x0), space)
        return found.x, tuple(found[1:])

    def by_iteration(A: Callable[[Any], Any], b: Any) -> Any:
        space = TreeSpace(b, "b")
        right, product = space.vector(b), space.map(A)
        found = iterate(lambda v: v + right - product(v), right, space)
        return _map(lambda leaf: op.where(found.converged, leaf, float("nan")), found.x)

    def residual(x: Any, x0: Any, *args: Any) -> Any:
        return _map(op.subtract, x, f(x, *args))

    root = custom_root(residual, solve, linear_solve or by_iteration, has_aux=True)
    x, rest = root(x0, *args)
    return Solution(x, *rest)
