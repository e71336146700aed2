"""Numbers beside half precision, which PyTorch rounds to the dtype first or not: bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
import meta.frontend.dynamo

NUMBERS = (1.7, -0.1)
BOTH: dict[str, Callable[[Any, float], Any]] = {
    "x % number": lambda x, n: x % n,
    "number % x": lambda x, n: n % x,
    "x * number": lambda x, n: x * n,
    "x / number": lambda x, n: x / n,
    "x // number": lambda x, n: x // n,
    "x ** number": lambda x, n: x**n,
    "number ** x": lambda x, n: n**x,
}
"""What arrays of `meta` give as PyTorch does, too."""
TORCH: dict[str, Callable[[Any, float], Any]] = BOTH | {
    "fmod": torch.fmod,
    "x + number": lambda x, n: x + n,
    "x - number": lambda x, n: x - n,
    "number - x": lambda x, n: n - x,
    "number / x": lambda x, n: n / x,
    "x < number": lambda x, n: x < n,
    "x <= number": lambda x, n: x <= n,
    "clamp": lambda x, n: x.clamp(min=n),
    "threshold": lambda x, n: torch.nn.functional.threshold(x, n, n),
    "hardshrink": lambda x, n: torch.nn.functional.hardshrink(x, abs(n)),
    "leaky_relu": torch.nn.functional.leaky_relu,
    "where": lambda x, n: torch.where(x > 0, x, n),
    "lerp": lambda x, n: torch.lerp(x, x.flip(0), n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x.flip(0), value=n),
}


def _samples(dtype: torch.dtype) -> torch.Tensor:
    x = torch.rand(500, generator=torch.Generator().manual_seed(0)) * 8 - 4
    x[: len(NUMBERS)] = torch.tensor(NUMBERS)
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_compiled_is_eager(dtype: torch.dtype) -> None:
    """All of them in one program, of an intermediate: kernels of several operators."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        x = -x
        return [f(x, n) for f in TORCH.values() for n in NUMBERS]

    x = _samples(dtype)
    found = torch.compile(program, backend="meta")(x)
    names = [f"{name} of {n}" for name in TORCH for n in NUMBERS]
    for name, one, wanted in zip(names, found, program(x), strict=True):
        torch.testing.assert_close(one, wanted, rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.product
@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dialects_agree(dtype: torch.dtype, dialect: str) -> None:
    x = _samples(dtype)
    with meta.dialect.only(dialect):
        for name, f in {**BOTH, "fmod": None}.items():
            for n in NUMBERS:
                found = meta.fmod(meta.array(x), n) if f is None else f(meta.array(x), n)
                wanted = torch.fmod(x, n) if f is None else f(x, n)
                torch.testing.assert_close(
                    found.torch(), wanted, rtol=0, atol=0, equal_nan=True, msg=f"{name} of {n}"
                )
