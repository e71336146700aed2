"""Comparing results, and numeric gradients by central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from meta.base.dtype import FROM_TORCH
from meta.ir.types import TensorType, TupleType, compatible
from meta.runtime.ndarray import ndarray

WIDE = {torch.uint16: torch.int32, torch.uint32: torch.int64}
"""Signed integers that hold the unsigned ones of which torch has no arithmetic."""


def to_torch(value: Any) -> torch.Tensor:
    """Return any array as a torch tensor on the CPU."""
    if isinstance(value, ndarray):
        return value.tensor.detach().cpu()
    return (
        value.detach().cpu()
        if isinstance(value, torch.Tensor)
        else torch.as_tensor(np.asarray(value))
    )


def first_float(result: Any) -> Any:
    """Return the floating point result, of several the first: the one that is differentiated."""
    if isinstance(result, tuple | list):
        return next(r for r in result if "float" in str(r.dtype))
    return result


def check(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-5, what: str = "") -> None:
    """Raise AssertionError unless ``a`` (found) equals ``b`` (expected): same shape, |a - b| <=
    atol + rtol * |b|.

    Tuples and lists are compared item by item. NaN equals NaN. Dtypes may differ: of a number that
    was expected in `WIDE`, the low bits are compared.

    >>> import numpy as np
    >>> meta.testing.check(meta.ones(3), np.ones(3))
    >>> try:
    ...     meta.testing.check(meta.ones(3), np.ones(2), what="y")
    ... except AssertionError as error:
    ...     print(error)
    y: shape (3,), expected (2,)
    """
    if isinstance(b, tuple | list):
        assert isinstance(a, tuple | list), (
            f"{what}: {len(b)} results expected, found {type(a).__name__}"
        )
        assert len(a) == len(b), f"{what}: {len(b)} results expected, found {len(a)}"
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            check(x, y, rtol, atol, f"{what}[{i}]")
        return
    found, expected = to_torch(a), to_torch(b)
    assert found.shape == expected.shape, (
        f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    )
    if found.is_complex() or expected.is_complex():
        wide = torch.complex128
        found, expected = (torch.view_as_real(t.to(wide).resolve_conj()) for t in (found, expected))
    if not found.dtype.is_floating_point and not expected.dtype.is_floating_point:
        if found.dtype in WIDE:
            expected = expected.to(found.dtype)
        assert torch.equal(found.to(torch.int64), expected.to(torch.int64)), (
            f"{what}: {found} expected {expected}"
        )
        return
    torch.testing.assert_close(
        found.double(),
        expected.double(),
        rtol=rtol,
        atol=atol,
        equal_nan=True,
        msg=lambda m: f"{what}: {m}",
    )


def check_type(value: Any, type_: Any) -> None:
    """Raise AssertionError unless an array (or nested tuple) has exactly the IR type.

    >>> meta.testing.check_type(meta.ones((2, 3)), meta.ir.parse_type("float32[?, 3]"))
    >>> try:
    ...     meta.testing.check_type(meta.ones((2, 3)), meta.ir.parse_type("float32[3, 2]"))
    ... except AssertionError as error:
    ...     print(error)
    found float32[2, 3], the type function says float32[3, 2]
    """
    if isinstance(type_, TupleType):
        assert len(value) == len(type_.fields), f"{len(value)} results, expected {type_}"
        for v, t in zip(value, type_.fields, strict=True):
            check_type(v, t)
        return
    found = to_torch(value)
    assert isinstance(type_, TensorType)
    own = TensorType(tuple(found.shape), FROM_TORCH[found.dtype])
    assert compatible(own, type_), f"found {own}, the type function says {type_}"


def numeric_gradient(
    function: Callable[..., torch.Tensor],
    args: list[torch.Tensor],
    dy: torch.Tensor,
    step: float = 1e-6,
) -> list[torch.Tensor]:
    """Return the gradient of sum(function(*args) * dy) with respect to each float64 argument.

    ``function`` maps torch tensors to a torch tensor of ``dy``'s shape; its own derivative code is
    not used. The error is of order step^2 plus 1e-16 / step for values near 1 (Numerical Recipes,
    5.7).

    >>> import torch
    >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> (gradient,) = meta.testing.numeric_gradient(torch.square, [x], torch.ones_like(x))
    >>> [round(g, 6) for g in gradient.tolist()]
    [2.0, 4.0]
    """
    gradients = []
    for x in args:
        gradient = torch.zeros_like(x)
        flat, out = x.view(-1), gradient.view(-1)
        for i in range(flat.numel()):
            old = flat[i].item()
            flat[i] = old + step
            above = _value(function(*args), dy)
            flat[i] = old - step
            below = _value(function(*args), dy)
            flat[i] = old
            out[i] = (above - below) / (2 * step)
        gradients.append(gradient)
    return gradients


def _value(y: Any, dy: torch.Tensor) -> float:
    return float((y.double() * dy).sum())
