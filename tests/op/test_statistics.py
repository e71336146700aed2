"""Functions of samples and tables: NumPy's results in float64, torch's gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import MetaError
from meta.model import trace

R = np.random.default_rng(0)
XP, FP = np.array([0.0, 1, 1, 3, 4]), np.array([1.0, 2, 5, 0, -1])
SPECIAL = np.array([np.nan, 0, 1, 4, 5, -1, np.inf, -np.inf])
KEYS = [R.integers(0, 3, (3, 10)), R.integers(0, 3, (2, 4, 5)), np.zeros((1, 0))]
INDICES = [(np.array([[5, 1], [0, 3]]), (2, 3)), (np.array(4), (2, 3)), (np.array([3]), 7)]
INDICES.append((np.array([], int), (2, 3)))
Case = tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]
CASES: dict[str, Case] = {
    **{
        f"{name} of {s}": (getattr(meta, name), getattr(np, name), (R.normal(size=s),))
        for name in ("cov", "corrcoef")
        for s in ((3, 5), (1, 4), (5,), (3, 2))
    },
    "cov by n": (
        lambda x: meta.cov(x, correction=0),
        lambda x: np.cov(x, ddof=0),
        (R.normal(size=(2, 4)),),
    ),
    **{
        f"interp at {x.shape}": (meta.interp, np.interp, (x, XP, FP))
        for x in (R.normal(size=(3, 4)) * 3, np.array(2.5), np.array([]), SPECIAL)
    },
    "interp with ends": (
        lambda *a: meta.interp(*a, -7.0, right=9.0),
        lambda *a: np.interp(*a, -7.0, 9.0),
        (SPECIAL, XP, FP),
    ),
    "interp of a point": (meta.interp, np.interp, (SPECIAL[1:], XP[:1], FP[:1])),
    **{f"lexsort of {k.shape}": (meta.lexsort, np.lexsort, (k,)) for k in KEYS},
    "lexsort of a sequence": (
        lambda *k: meta.lexsort(k, axis=0),
        lambda *k: np.lexsort(k, axis=0),
        tuple(KEYS[1]),
    ),
    **{
        f"unravel_index {i}": (
            lambda x, s=s: meta.unravel_index(x, s),
            lambda x, s=s: np.unravel_index(x, s),
            (x,),
        )
        for i, (x, s) in enumerate(INDICES)
    },
    "where alone": (meta.where, np.where, (R.normal(size=(3, 4)) > 0,)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_result(name: str) -> None:
    ours, theirs, args = CASES[name]
    expected, found = theirs(*args), ours(*map(meta.array, args))
    several = isinstance(expected, tuple)
    pairs = zip(expected, found, strict=True) if several else [(expected, found)]
    for a, b in pairs:
        np.testing.assert_allclose(np.asarray(b), a, 1e-12, 1e-12)
        assert np.shape(a) == b.shape


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_frexp(dtype: str) -> None:
    info = np.finfo(dtype)
    powers = np.ldexp(1.0, R.integers(-120, 120, 500)).astype(dtype)
    x = np.concatenate([powers, np.nextafter(powers, np.zeros_like(powers)), -powers])
    edges = [0, -0.0, np.inf, -np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal]
    x = np.concatenate([x, R.normal(size=500), edges]).astype(dtype)
    expected, found = np.frexp(x), meta.frexp(meta.array(x))
    np.testing.assert_array_equal(np.asarray(found.mantissa), expected[0])
    np.testing.assert_array_equal(np.asarray(found.exponent), expected[1])
    assert found.exponent.dtype == "int32" and found.mantissa.dtype == dtype


GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[int, ...]]] = {
    "cov": (meta.cov, torch.cov, (3, 5)),
    "corrcoef": (meta.corrcoef, torch.corrcoef, (3, 5)),
    "frexp": (lambda x: meta.frexp(x).mantissa, lambda x: torch.frexp(x).mantissa, (3, 5)),
    "interp": (
        lambda x: meta.interp(x, [0.0, 1.0], [0.0, 3.0]),
        lambda x: 3 * x.clamp(0, 1),
        (7,),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient(name: str) -> None:
    ours, theirs, shape = GRADIENTS[name]
    x = torch.tensor(R.normal(size=shape), requires_grad=True)
    weights = R.normal(size=theirs(x).shape)
    (theirs(x) * torch.tensor(weights)).sum().backward()
    y = meta.array(x.detach().numpy())
    y.requires_grad = True
    (ours(y) * meta.array(weights)).sum().backward()
    np.testing.assert_allclose(np.asarray(y.grad), np.asarray(x.grad), 1e-10, 1e-12)
    found = trace(ours)(y.detach())
    np.testing.assert_allclose(np.asarray(found), theirs(x).detach().numpy(), 1e-10, 1e-12)


REFUSED: dict[str, Callable[[], Any]] = {
    "cov of a cube": lambda: meta.cov(meta.zeros((1, 2, 3))),
    "cov of complex": lambda: meta.cov(meta.array([1j, 2j])),
    "interp of no points": lambda: meta.interp([1.0], [], []),
    "interp of other lengths": lambda: meta.interp([1.0], [1.0, 2.0], [1.0]),
    "lexsort of nothing": lambda: meta.lexsort(()),
    "an index beyond": lambda: meta.unravel_index(meta.array([6]), (2, 3)),
    "indices of floats": lambda: meta.unravel_index(meta.array([1.0]), (2, 3)),
    "an element beyond": lambda: meta.zeros((2, 3)).item(6),
    "an element of other axes": lambda: meta.zeros((2, 3)).item(0, 0, 0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_error(name: str) -> None:
    with pytest.raises(MetaError):
        REFUSED[name]()


@pytest.mark.parametrize("index", [(3,), (-1,), (1, 2), ((0, 1),)])
def test_an_element(index: Any) -> None:
    x = np.arange(6.0).reshape(2, 3)
    assert meta.array(x).item(*index) == x.item(*index)


@pytest.mark.parametrize("x", [np.array([3, 1]), np.array([[True, False], [True, True]])])
@pytest.mark.parametrize("name", ["mean", "std", "var"])
def test_integers_count_as_float32(name: str, x: np.ndarray) -> None:
    function = getattr(meta, name)
    for found in (function(meta.array(x), axis=0), trace(lambda x: function(x, 0))(meta.array(x))):
        assert found.dtype == "float32"
        np.testing.assert_allclose(np.asarray(found), getattr(np, name)(x, axis=0), 1e-6)
