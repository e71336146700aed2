"""`check_grads`: derivatives of a function against central differences, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from meta.base.dtype import has_gradient
from meta.base.errors import ArgumentError
from meta.grad import jvp, vjp
from meta.op.core import tree
from meta.runtime.ndarray import array, as_array, ndarray

STEPS = {"float64": 6e-6, "complex128": 6e-6, "float32": 4e-3, "complex64": 4e-3}
"""About the cube root of the distance between numbers, where rounding and truncation are alike."""
TOLERANCES = {"float64": 1e-6, "complex128": 1e-6, "float32": 2e-2, "complex64": 2e-2}
MODES = ("fwd", "rev")


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int = 2,
    modes: Sequence[str] = MODES,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Raise AssertionError unless derivatives of f agree with differences of its values.

    f: a function of arrays, or nested containers of them. args: where; floating point ones move
    along one random direction, the others stay. order: 1, or more to check derivatives of
    derivatives, too. modes: "fwd" checks `meta.grad.jvp`, "rev" `meta.grad.vjp`; of a higher order
    each of them is differentiated by each. rtol, atol: 1e-6 for float64, 2e-2 for float32, of which
    few digits of a difference are right.

    Raises ArgumentError for an order or a mode that there is not, and for arguments of which none
    moves, or of half precision.

    >>> import meta
    >>> x = meta.array([1.0, 2.0], "float64")
    >>> meta.testing.check_grads(lambda x: meta.sum(meta.sin(x) ** 2), [x])
    >>> wrong = meta.custom_vjp(lambda x: x * x)
    >>> wrong.defvjp(lambda x: (x * x, x), lambda x, dy: (dy * x,))
    >>> try:
    ...     meta.testing.check_grads(wrong, [x], modes=("rev",))
    ... except AssertionError as error:
    ...     print(str(error).splitlines()[0])
    vjp is not what differences of values say
    """
    if order < 1 or not set(modes) <= set(MODES) or not modes:
        raise ArgumentError(
            "derivatives are checked from the first on",
            expected="order >= 1, and modes of 'fwd' and 'rev'",
            found=f"order={order!r}, modes={tuple(modes)!r}",
        )
    leaves, structure = tree.flatten(tuple(args))
    xs = list(map(as_array, leaves))
    moving = [i for i, x in enumerate(xs) if has_gradient(x.dtype)]
    dtypes = {str(xs[i].dtype) for i in moving}
    if not moving or not dtypes <= STEPS.keys():
        raise ArgumentError(
            "derivatives are checked by arrays of float32, float64 or complex numbers",
            found=", ".join(str(x.dtype) for x in xs) or "no array",
        )

    def of_moving(*new: Any) -> list[Any]:
        values = list(xs)
        for i, value in zip(moving, new, strict=True):
            values[i] = value
        found = tree.flatten(f(*tree.unflatten(structure, values)))[0]
        return [y for y in found if has_gradient(y.dtype)]

    coarse = max(dtypes, key=STEPS.__getitem__)
    limit = TOLERANCES[coarse]
    close = {"rtol": limit if rtol is None else rtol, "atol": limit if atol is None else atol}
    generator = torch.Generator().manual_seed(order)
    _check(of_moving, [xs[i] for i in moving], order, modes, "", STEPS[coarse], close, generator)


def _check(
    f: Callable[..., list[Any]],
    xs: list[ndarray],
    order: int,
    modes: Sequence[str],
    of: str,
    step: float,
    close: dict[str, float],
    generator: torch.Generator,
) -> None:
    v = [_like(x, generator) for x in xs]
    ahead, behind = (
        f(*(x + s * step * d for x, d in zip(xs, v, strict=True))) for s in (1.0, -1.0)
    )
    wanted = [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]
    w = [_like(y, generator) for y in ahead]

    def forwards(*given: Any) -> list[Any]:
        return list(jvp(f, given, v)[1])

    def backwards(*given: Any) -> list[Any]:
        return list(vjp(f, *given)[1](w))

    for mode in modes:
        what = f"{'jvp' if mode == 'fwd' else 'vjp'}{' of ' if of else ''}{of}"
        if mode == "fwd":
            for found, expected in zip(forwards(*xs), wanted, strict=True):
                _compare(what, found.torch(), expected.torch(), close)
        else:
            _compare(what, _product(backwards(*xs), v), _product(w, wanted), close)
        if order > 1:
            derivative = forwards if mode == "fwd" else backwards
            _check(derivative, xs, order - 1, modes, what, step, close, generator)


def _like(x: ndarray, generator: torch.Generator) -> ndarray:
    drawn = torch.randn(x.shape, generator=generator, dtype=x.torch().dtype)
    return array(drawn, device=str(x.device))


def _product(xs: list[ndarray], ys: list[ndarray]) -> torch.Tensor:
    terms = (
        (x.torch().detach().conj() * y.torch().detach()).sum().real
        for x, y in zip(xs, ys, strict=True)
    )
    return sum(terms, torch.zeros(()))


def _compare(what: str, found: torch.Tensor, expected: torch.Tensor, close: Any) -> None:
    torch.testing.assert_close(
        found.detach(),
        expected.detach(),
        **close,
        check_dtype=False,
        msg=lambda text: f"{what} is not what differences of values say\n{text}",
    )
