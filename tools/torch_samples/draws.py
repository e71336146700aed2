"""Compares results that are not one value: random ones, and elements that nothing was written to.

Random results have torch's structure, shapes and dtypes, and torch's distribution: both sides draw
until there are some thousand numbers, and the largest distance of the two empirical distribution
functions is below the bound of the test of Kolmogorov and Smirnov for one false alarm in a billion
comparisons. Gradients, of the sum of the results, are random as well, and compared likewise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

import meta
from tools.torch_samples.compare import leaves_of

NUMBERS, DRAWS = 2000, 100
"""How many numbers are enough, and how often both sides draw at most."""


@dataclass(frozen=True)
class Drawn:
    """An adapter whose results are random, in the samples for which ``when`` holds. That many
    elements, ``together``, hang on one random number at most.
    """

    function: Callable[..., Any]
    when: Callable[..., bool] = lambda *args, **kwargs: True
    together: int = 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Draw once."""
        return self.function(*args, **kwargs)


@dataclass(frozen=True)
class Unwritten:
    """An adapter of a new tensor of which torch defines no elements."""

    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make one."""
        return self.function(*args, **kwargs)


@contextmanager
def other_seeds() -> Iterator[None]:
    """Let torch's entries draw other numbers in each call: they begin with the seed 42."""
    seed, numbers = torch.manual_seed, itertools.count(1)
    with patch.object(torch, "manual_seed", lambda _: seed(next(numbers))):
        yield


def torch_of(value: Any) -> torch.Tensor:
    """Return a result of either side as a tensor of torch."""
    return value.detach().torch() if isinstance(value, meta.ndarray) else value


def alike(found: Any, expected: Any) -> None:
    """Raise AssertionError unless the tensors have the same shapes and dtypes."""
    ours, theirs = map(leaves_of, (found, expected))
    assert len(ours) == len(theirs), f"{len(theirs)} results expected, found {len(ours)}"
    for f, e in zip(map(torch_of, ours), theirs, strict=True):
        assert (f.dtype, f.shape) == (e.dtype, e.shape), (
            f"{e.dtype}{list(e.shape)} expected, found {f.dtype}{list(f.shape)}"
        )


def compare_draws(
    ours: Callable[[], Any], theirs: Callable[[], Any], what: str, together: int
) -> None:
    """Raise AssertionError unless both sides draw alike."""
    first = theirs()
    alike(ours(), first)
    for i, sample in enumerate(leaves_of(first)):
        if sample.numel():
            times = min(math.ceil(NUMBERS * together / sample.numel()), DRAWS)
            with other_seeds():
                a, b = (
                    torch.cat([torch_of(leaves_of(side())[i]).reshape(-1) for _ in range(times)])
                    for side in (ours, theirs)
                )
            error = 1e-2 if sample.dtype is torch.bfloat16 else 1e-5
            numbers = (t.detach().double() for t in (a, b))
            _compare_distributions(*numbers, error, together, f"{what} {i}")


def _compare_distributions(
    a: torch.Tensor, b: torch.Tensor, error: float, together: int, what: str
) -> None:
    assert torch.isnan(a).any() == torch.isnan(b).any(), f"{what}: NaN on one side only"
    a, b = (t[~torch.isnan(t)].sort().values for t in (a, b))
    if not a.numel() or not b.numel():
        assert a.numel() == b.numel(), f"{what}: NaN on one side only"
        return
    places = torch.cat([a, b])
    # Numbers that are equal but for rounding count as equal.
    width = error * (1 + places.abs())
    less, more = (
        [torch.searchsorted(t, places + side * width, right=True) / t.numel() for t in (a, b)]
        for side in (-1, 1)
    )
    distance = float(torch.maximum(less[0] - more[1], less[1] - more[0]).max())
    bound = math.sqrt(-math.log(0.5e-9) / 2 * together * (1 / a.numel() + 1 / b.numel()))
    assert distance <= bound, (
        f"{what}: other distributions, {distance:.3f} apart (up to {bound:.3f} allowed): "
        f"means {float(a.mean()):.4g} and torch's {float(b.mean()):.4g}, "
        f"{a.unique().numel()} and {b.unique().numel()} numbers"
    )
