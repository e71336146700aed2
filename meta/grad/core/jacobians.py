"""Matrices of derivatives: Jacobians, by rows or by columns, Hessians, and products with these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from meta.base.call_context import current
from meta.base.dtype import is_float
from meta.base.errors import GradientError
from meta.base.registry import OPERATORS
from meta.grad.core.arguments import Argument, Arrays, ByArguments, dtype_of, zeros_for
from meta.grad.core.functional import Linear, differentiate, grad
from meta.grad.core.transforms import Call, jvp, tangents_in_trace, transposed, vjp
from meta.op.core.function import device_of
from meta.op.core.tracing import Trace
from meta.runtime.ndarray import as_array

Wrt = Argument | Sequence[Argument]


def jacrev(f: Callable[..., Any], wrt: Wrt = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """Return the function of f's Jacobian, computed backwards, by a pullback for each element of
    the result: for fewer results than arguments. Where code is traced, and so in compiled programs,
    all of them are one (`meta.vmap`).

    f: a function of real floating point arrays, or nested containers of them. wrt: by which
    arguments, by position or by name. The Jacobian of a result of shape S by an argument of shape T
    has the shape S + T. It stands in the structure of the result, and there in that of the
    argument, a tuple of several. With ``has_aux``, f returns ``(result, aux)``, and so the function
    ``(jacobian, aux)``.

    Raises what `value_and_grad` raises, but that the result may be of any shape, and GradientError
    for complex numbers and integers.

    >>> import meta
    >>> meta.grad.jacrev(lambda x: x * x)(meta.array([1.0, 3.0])).tolist()
    [[2.0, 0.0], [0.0, 6.0]]
    """

    return _by(f, wrt, has_aux, "jacrev", _rows)


def jacfwd(f: Callable[..., Any], wrt: Wrt = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """Return the function of f's Jacobian, computed forwards, by a tangent for each element of the
    arguments: for fewer arguments than results. See `jacrev`.

    >>> import meta
    >>> meta.grad.jacfwd(lambda x: meta.stack([x, x * x]))(meta.array(3.0)).tolist()
    [1.0, 6.0]
    """

    return _by(f, wrt, has_aux, "jacfwd", _columns)


def jacobian(f: Callable[..., Any], wrt: Wrt = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """Return the function of f's Jacobian: `jacfwd` or `jacrev`, whichever takes fewer sweeps.

    >>> import meta
    >>> x, a = meta.array([1.0, 2.0]), meta.array(3.0)
    >>> by_x, by_a = meta.grad.jacobian(lambda x, a: a * x, (0, 1))(x, a)
    >>> by_a.tolist()
    [1.0, 2.0]
    """

    return _by(f, wrt, has_aux, "jacobian", _fewer)


def hessian(f: Callable[..., Any], wrt: Wrt = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """Return the function of the matrix of f's second derivatives, forwards over backwards.

    f, wrt and has_aux: as for `jacrev`. For a result of shape S, arguments of shapes T and U have
    the matrix S + T + U, in the structure of the arguments twice.

    >>> import meta
    >>> meta.grad.hessian(lambda x: meta.sum(x * x * x))(meta.array([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacfwd(jacrev(f, wrt, has_aux=has_aux), wrt, has_aux=has_aux)


def hvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...]:
    """Return the product of f's Hessian with a vector, which costs a few times f: the gradient of
    its change along the vector, which a loop has in compiled programs, too.

    f: a function of the ``primals`` that returns one floating point number. tangents: the vector,
    for each argument of its structure. Returns a tuple of the same structure.

    >>> import meta
    >>> x, v = meta.array([1.0, 2.0]), meta.array([1.0, 10.0])
    >>> meta.grad.hvp(lambda x: meta.sum(x * x * x), (x,), (v,))[0].tolist()
    [6.0, 120.0]
    """
    vector = tuple(tangents)

    def along(*given: Any) -> Any:
        return jvp(f, given, vector)[1]

    found: tuple[Any, ...] = grad(along, wrt=tuple(range(len(primals))))(*primals)
    return found


def gauss_newton_product(
    f: Callable[..., Any],
    loss: Callable[[Any], Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
) -> tuple[Any, ...]:
    """Return the product of the Gauss-Newton matrix ``J^T H J`` of ``loss(f(*primals))`` with a
    vector: J is f's Jacobian, H the Hessian of the loss by f's result. Where the loss is convex it
    is positive semidefinite, as the Hessian need not be (Schraudolph, 2002).

    f: a function of the ``primals`` with floating point results. loss: a function of f's result
    that returns one number. tangents: the vector, for each argument of its structure. Returns a
    tuple of the same structure. Raises what `vjp` and `hvp` raise.

    >>> import meta
    >>> f, loss = (lambda x: x * x), (lambda y: meta.sum(y * y))
    >>> x, v = meta.array([1.0, 2.0]), meta.array([1.0, 10.0])
    >>> meta.grad.gauss_newton_product(f, loss, (x,), (v,))[0].tolist()
    [8.0, 320.0]
    """
    y, pull = vjp(f, *primals)
    change = jvp(f, primals, tangents)[1]
    found: tuple[Any, ...] = pull(*hvp(loss, (y,), (change,)))
    return found


def _by(
    f: Callable[..., Any], wrt: Wrt, has_aux: bool, caller: str, entries: _Entries
) -> Callable[..., Any]:
    by = ByArguments(f, wrt, caller)

    def run(*args: Any, **kwargs: Any) -> Any:
        bound = by.bound(args, kwargs)
        call = Call(lambda *leaves: bound.run(list(leaves)), tuple(bound.leaves), has_aux)
        ys, pull = differentiate(call.run, call.leaves)
        for x, what in ((ys[: call.count], "result"), (call.leaves, "argument")):
            for leaf in x:
                _require_real(leaf, what)
        matrices = entries(call, ys, pull)
        return call.result([*map(bound.like, matrices), *ys[call.count :]])

    return by.wrapped(run)


_Entries = Callable[[Call, Arrays, Linear], list[Arrays]]
"""Returns, for each result of a call, its matrices by the arguments."""
in_trace: list[Callable[[Callable[[Any], Arrays], Any], Arrays]] = []
"""What applies a function to the rows of an array where code is traced; set once by
`meta.model.vmap`.
"""


def _rows(call: Call, ys: Arrays, pull: Linear) -> list[Arrays]:
    xs, found = call.leaves, []
    traced = isinstance(current(), Trace)

    def again(dys: Arrays) -> Arrays:
        return differentiate(call.run, xs)[1](dys)

    for k, y in enumerate(ys[: call.count]):
        several = traced and _size(y) > 1
        back = again if several and _of_closures(pull) else pull
        gradients = _along_basis(back, several, y, k, len(ys), xs)
        found.append([_matrix(g, y, x) for g, x in zip(gradients, xs, strict=True)])
    return found


def _columns(call: Call, ys: Arrays, pull: Linear) -> list[Arrays]:
    xs, found = call.leaves, [Arrays() for _ in range(call.count)]
    traced = isinstance(current(), Trace)
    push = partial(tangents_in_trace, call) if _of_closures(pull) else transposed(pull, ys)
    for k, x in enumerate(xs):
        tangents = _along_basis(push, traced, x, k, len(xs), ys)
        for matrices, t, y in zip(found, tangents, ys, strict=False):
            order = (*range(1, 1 + len(_shape(y))), 0)
            turned = t if t is None else OPERATORS["permute_dims"](t, order)
            matrices.append(_matrix(turned, y, x))
    return found


def _of_closures(pull: Linear) -> bool:
    """Whether a pullback is one of a trace that calls closures, as that of a loop does: `vmap` does
    not know closures from outside, so f is differentiated within it.
    """
    return getattr(pull, "of_closures", False)


def _fewer(call: Call, ys: Arrays, pull: Linear) -> list[Arrays]:
    arguments, results = (sum(map(_size, some)) for some in (call.leaves, ys[: call.count]))
    return (_columns if arguments < results else _rows)(call, ys, pull)


def _along_basis(
    linear: Linear, batched: bool, x: Any, position: int, count: int, like: Arrays
) -> Arrays:
    """Return what a linear map makes of the arrays like x with a single 1, at one position of what
    it takes, at once or one by one: for each result the stack of these, None for no rows.
    """
    size = _size(x)
    if not size:
        return [None for _ in like]

    def of_one(element: Any) -> Arrays:
        before, after = [None] * position, [None] * (count - position - 1)
        found = linear([*before, element, *after])
        return [zeros_for(y, value) for y, value in zip(like, found, strict=True)]

    basis = _basis(as_array(x) if isinstance(x, float) else x, size)
    if batched:
        return in_trace[0](of_one, basis)
    columns = zip(*(of_one(basis[i]) for i in range(size)), strict=True)
    return [None if c[0] is None else OPERATORS["stack"](c, 0) for c in columns]


def _basis(x: Any, size: int) -> Any:
    """Return the stack of all arrays like x with a single 1."""
    numbers = OPERATORS["arange"](0, size, 1, "int64", device_of(x))
    ones = OPERATORS["equal"](OPERATORS["expand_dims"](numbers, 1), numbers)
    return OPERATORS["reshape"](OPERATORS["astype"](ones, dtype_of(x)), (size, *_shape(x)))


def _matrix(stacked: Any, y: Any, x: Any) -> Any:
    """Return derivatives of a result by an argument in the shape of the two together."""
    shape = (*_shape(y), *_shape(x))
    if stacked is None:  # one of the two has no elements
        return OPERATORS["zeros"](shape, dtype_of(y), device_of(y))
    return OPERATORS["reshape"](stacked, shape)


def _shape(value: Any) -> tuple[Any, ...]:
    return () if isinstance(value, float) else tuple(value.shape)


def _size(x: Any) -> int:
    shape = _shape(x)
    if not all(isinstance(n, int) for n in shape):
        raise GradientError(
            "a Jacobian needs extents that are known where it is traced", found=shape
        )
    return prod(shape)


def _require_real(x: Any, what: str) -> None:
    if not is_float(dtype_of(x)):
        raise GradientError(
            f"a Jacobian is of real numbers, and this {what} is not floating point",
            found=dtype_of(x),
            hint="hand integers on by has_aux=; of complex numbers take meta.grad.vjp and jvp",
        )
