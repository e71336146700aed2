"""When a result of `meta` is torch's: structure, dtype, shape and values.

Both sides round, each in its own order, so values of a dtype with few digits may differ where
neither is wrong. They are compared with torch's result first. Where they differ by more than the
tolerance, torch computes the result once more, from the same arguments in float64, and the
difference from that result may be the tolerance, the rounding of the largest number, and twice the
largest error that torch made. An error of torch above a tenth of the largest number allows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from meta.op.core import tree
from meta.runtime.ndarray import ndarray

# (rtol, atol)
TOLERANCE = {
    torch.float32: (1e-4, 2e-5),
    torch.float64: (1e-9, 1e-10),
    torch.bfloat16: (2e-2, 1e-2),
    torch.float16: (2e-3, 1e-3),
    torch.complex64: (1e-4, 2e-5),
    torch.complex128: (1e-9, 1e-10),
}
GRADIENT_TOLERANCE = {
    torch.float32: (1e-3, 1e-4),
    torch.float64: (1e-7, 1e-8),
    torch.bfloat16: (4e-2, 2e-2),
    torch.float16: (4e-3, 2e-3),
    torch.complex64: (1e-3, 1e-4),
    torch.complex128: (1e-7, 1e-8),
}

WIDE = {
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
"""Dtypes with few digits, and those in which torch computes once more."""


def widened(value: Any) -> Any:
    """Return a tensor, or a dtype among the arguments, as it is for the second computation."""
    if isinstance(value, torch.Tensor):
        return value.to(WIDE.get(value.dtype, value.dtype))
    return WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def compare(
    found: Any,
    expected: Any,
    tolerance: dict[Any, tuple[float, float]],
    what: str,
    exact: Callable[[], Any],
) -> None:
    """Raise AssertionError unless both are alike in structure, shape, dtype and values.

    ``exact`` gives torch's result in float64, or None if there is none.
    """
    if isinstance(expected, tuple | list):
        assert isinstance(found, tuple | list) and len(found) == len(expected), (
            f"{what}: {len(expected)} expected, found {found!r}"
        )
        for i, (f, e) in enumerate(zip(found, expected, strict=True)):
            compare(f, e, tolerance, f"{what} {i}", lambda i=i: _item(exact(), i))
        return
    if not isinstance(expected, torch.Tensor):
        assert type(found) is type(expected) and found == expected, (
            f"{what}: {expected!r} expected, found {found!r}"
        )
        return
    value = found.detach().torch() if isinstance(found, ndarray) else found
    assert isinstance(value, torch.Tensor), f"{what}: a tensor expected, found {found!r}"
    assert value.dtype == expected.dtype, f"{what}: {expected.dtype} expected, found {value.dtype}"
    assert value.shape == expected.shape, (
        f"{what}: shape {tuple(expected.shape)} expected, found {tuple(value.shape)}"
    )
    expected = expected.detach().resolve_neg().resolve_conj()
    rtol, atol = tolerance.get(expected.dtype, (0, 0))
    try:
        torch.testing.assert_close(value, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        true = exact() if expected.dtype in WIDE else None
        if not isinstance(true, torch.Tensor) or not _as_exact(
            value, expected, true.detach(), rtol, atol
        ):
            raise AssertionError(f"{what}: {error}") from None


def _item(results: Any, i: int) -> Any:
    return results[i] if isinstance(results, tuple | list) else None


def _as_exact(
    value: torch.Tensor, expected: torch.Tensor, true: torch.Tensor, rtol: float, atol: float
) -> bool:
    """Whether a result is as close to the exact one as torch's is."""
    if true.shape != expected.shape or true.dtype.is_complex != expected.dtype.is_complex:
        return False
    found, theirs, true = (t.to(WIDE[expected.dtype]) for t in (value, expected, true))
    finite = torch.isfinite(true) & torch.isfinite(theirs)
    same = (found == theirs) | (torch.isnan(found) & torch.isnan(theirs))
    if not bool(torch.where(finite, True, same).all()):
        return False
    if not bool(finite.any()):
        return True
    size = true[finite].abs()
    noise = (theirs - true)[finite].abs().max()
    noise = torch.where(noise <= size.max() / 10, noise, 0.0)
    atol += torch.finfo(expected.dtype).eps / 2 * float(size.max())
    return bool(((found - true)[finite].abs() <= atol + rtol * size + 2 * noise).all())


def leaves_of(results: Any) -> list[Any]:
    """Return the tensors of a result, in order."""
    return list(tree.flatten(results)[0])
