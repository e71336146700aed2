"""Functions of functions, compiled: what fusion, updates in place and vectors make of two of them
is what they give one after the other.

All pairs of elementwise operators of one tensor, in three forms, where the result may take the
memory of the argument and where it may not. Sizes lie on both sides of a vector of 16 lanes and of
the work from which a loop is cut into chunks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.registry import OPERATORS
from meta.dialect import HANDWRITTEN, Dialect
from meta.dialect.core import DIALECTS
from meta.op.core import Tensor

FUNCTIONS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "celu", "copy", "cos", "cosh",
    "deg2rad", "digamma", "elu", "entr", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor",
    "frac", "gelu", "hardshrink", "hardsigmoid", "hardswish", "i0", "i0e", "i1", "i1e",
    "leaky_relu", "lgamma", "log", "log10", "log1p", "log2", "logit", "logsigmoid", "mish",
    "nan_to_num", "ndtr", "negative", "rad2deg", "reciprocal", "relu", "relu6", "round", "rsqrt",
    "selu", "sigmoid", "sign", "silu", "sin", "sinc", "sinh", "softplus", "softshrink", "softsign",
    "sqrt", "square", "tan", "tanh", "tanhshrink", "trigamma", "trunc",
)  # fmt: skip
WITH_NUMBER: dict[str, Callable[[Any], Any]] = {
    "pow": lambda x: op.pow(x, 1.7),
    "exponential": lambda x: op.pow(1.3, x),
    "remainder": lambda x: op.remainder(x, 0.37),
    "fmod": lambda x: op.fmod(x, 0.37),
    "atan2": lambda x: op.atan2(x, 0.7),
    "hypot": lambda x: op.hypot(x, 0.7),
    "clip": lambda x: op.clip(x, -0.4, 0.6),
}
NAMES = (*FUNCTIONS, *WITH_NUMBER)
FORMS: dict[str, Callable[[Callable[[Any], Any], Callable[[Any], Any], Any], Any]] = {
    "t * f(g(t))": lambda f, g, t: t * f(g(t)),
    "f(g(t)) + t": lambda f, g, t: f(g(t)) + t,
    "f(t) * g(t)": lambda f, g, t: f(t) * g(t),
}
SHAPES = ((), (15,), (3, 17), (4, 4, 4), (2, 160))
DTYPES = ("float32", "float64", "float16", "bfloat16")
ROUNDING = {"float32": 2**-24, "float64": 2**-53, "float16": 2**-11, "bfloat16": 2**-8}
EACH = 40


def function(name: str) -> Callable[[Any], Any]:
    return WITH_NUMBER.get(name) or getattr(op, name)


@pytest.fixture(scope="module")
def opaque() -> Iterator[Any]:
    """An operator that nothing is fused with; ``place`` keeps two calls of it apart."""

    @meta.op.core.op
    def opaque_copy(x: Tensor, place: int) -> Tensor:
        """Return ``x``."""
        return x

    dialect = Dialect("opaque", devices=("cpu",), plevel=HANDWRITTEN)

    @dialect.kernel(opaque_copy)
    def run(x: torch.Tensor, place: int, out: torch.Tensor) -> None:
        out.copy_(x)

    yield opaque_copy
    OPERATORS.remove(opaque_copy.name)
    DIALECTS.remove(dialect.name)


def values(shape: tuple[int, ...], dtype: str) -> Any:
    """Numbers of both signs, of which some are in the domain of every function."""
    rng = np.random.default_rng(7)
    return meta.array(rng.uniform(-1.7, 2.3, shape), dtype)


def as_float(array: Any) -> np.ndarray:
    return np.asarray(array.torch().double())


def check(
    opaque: Any,
    pairs: list[tuple[str, str]],
    form: str,
    dtype: str,
    place: bool,
    shapes: tuple[tuple[int, ...], ...] = SHAPES,
) -> None:
    """Compare one program of all pairs with calls one by one."""
    combine = FORMS[form]
    rounding = ROUNDING[dtype]

    @meta.model.trace
    def program(x: Any) -> Any:
        results = []
        for i, (f, g) in enumerate(pairs):
            t = opaque(x, i)
            results.append(opaque(combine(function(f), function(g), t), i))
        return tuple(results)

    for shape in shapes:
        x = values(shape, dtype)
        with meta.PassContext(disabled=[] if place else ["inplace_update"]):
            found = meta.vm.compile(program, x, device="cpu")(x)
        for pair, result in zip(pairs, found, strict=True):
            outer, inner = map(function, pair)
            # A processor may round a product and a sum together: a unit of the last place of what
            # the inner function gives, as the outer one hands it on.
            near = np.stack(
                [
                    as_float(combine(outer, moved(inner, by), x))
                    for by in (0.0, -4 * rounding, 4 * rounding)
                ]
            )
            y, exact, size = as_float(result), near[0], np.abs(as_float(x))
            with np.errstate(invalid="ignore"):  # of infinities
                room = 8 * rounding * np.maximum(np.abs(exact), size)
                inside = (np.fmin.reduce(near) - room <= y) & (y <= np.fmax.reduce(near) + room)
            undefined = np.isnan(near)
            right = np.where(
                np.isnan(y), undefined.any(0), (inside | (y == exact)) & ~undefined.all(0)
            )
            assert right.all(), (pair, form, dtype, shape, y[~right], exact[~right])


def moved(inner: Callable[[Any], Any], by: float) -> Callable[[Any], Any]:
    """Return a function whose results are larger by a factor of ``1 + by``."""

    def result(x: Any) -> Any:
        y = inner(x)
        return op.multiply(y, 1.0 + by) if by else y

    return result


ALL_PAIRS = list(product(NAMES, NAMES))
BATCHES = [ALL_PAIRS[i : i + EACH] for i in range(0, len(ALL_PAIRS), EACH)]


@pytest.mark.parametrize("form", FORMS)
def test_what_one_hands_to_the_other_in_vectors(opaque: Any, form: str) -> None:
    pairs = [("tanh", "sigmoid"), ("erf", "exp"), ("sin", "silu"), ("remainder", "softplus")]
    check(opaque, pairs, form, "float32", True, ((2, 160),))


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_some_pairs(opaque: Any, form: str, dtype: str) -> None:
    chosen = random.Random(f"{form} {dtype}").sample(ALL_PAIRS, 2)
    check(opaque, chosen, form, dtype, True, ((3, 17), (2, 160)))


@pytest.mark.sweep  # hours: 650,000 kernels
@pytest.mark.parametrize("batch", range(len(BATCHES)))
@pytest.mark.parametrize("place", [True, False], ids=["in_place", "apart"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_pairs(opaque: Any, form: str, dtype: str, place: bool, batch: int) -> None:
    check(opaque, BATCHES[batch], form, dtype, place)
