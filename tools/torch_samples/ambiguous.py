"""Entries with several right results: random ones, indices of one of several equal elements, and
memory that nothing was written to. `AMBIGUOUS` says which, and how their results are compared.

Random results have torch's structure, shapes and dtypes, and torch's distribution: both sides draw
until there are some thousand numbers, and the largest distance of the two empirical distribution
functions is below the bound of the test of Kolmogorov and Smirnov for one false alarm in a billion
comparisons. Gradients, of the sum of the results, are random as well, and compared likewise.

Which of equal elements comes first is not said by torch. So its indices and those of `meta` are
compared by the elements that they lead to, and gradients by their sums over equal elements.
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
    """Results are random, in the samples of whose arguments ``when`` is true. That many elements,
    ``together``, hang on one random number at most.
    """

    when: Callable[..., bool] = lambda *args, **kwargs: True
    together: int = 1

    def has(self, sample: Any) -> bool:
        """Whether the results of a sample are random."""
        return self.when(sample.input, *sample.args, **sample.kwargs)


@dataclass(frozen=True)
class Unwritten:
    """The result is a new tensor of which torch defines no elements."""

    def has(self, sample: Any) -> bool:
        """Whether the results of a sample are not defined."""
        return True


@dataclass(frozen=True)
class Tied:
    """The last result, if it is of integers, are indices along an axis: the argument ``dim``, at a
    ``place`` behind the tensor.
    """

    place: int = 0
    dim: int | None = -1

    def elements(self, results: Any, sample: Any) -> Any:
        """Return results with the elements in the place of indices."""
        several = isinstance(results, tuple | list)
        *values, last = results if several else [results]
        indices = torch_of(last)
        if indices.dtype != torch.int64 or not (several or sample.input.dtype != torch.int64):
            return results
        args = sample.args
        dim = args[self.place] if len(args) > self.place else self.dim
        chosen = led_to(sample.input.detach(), indices, sample.kwargs.get("dim", dim))
        return [*values, chosen] if several else chosen


def led_to(x: torch.Tensor, indices: torch.Tensor, dim: int | None) -> torch.Tensor:
    """Return the elements that indices along an axis lead to; of all elements if it is None."""
    if dim is None or x.ndim == 0:
        return x.reshape(-1)[indices]
    if indices.ndim < x.ndim:
        return x.gather(dim, indices.unsqueeze(dim)).squeeze(dim)
    return x.gather(dim, indices)


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


def compare_undefined(
    key: str,
    sample: Any,
    found: Any,
    expected: Any,
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    what: str = "result",
) -> bool:
    """Whether the results of a sample are random, or not defined at all; then they are compared as
    such, both sides being called again.
    """
    kind = AMBIGUOUS.get(key)
    if isinstance(kind, Unwritten):
        alike(found, expected)
    elif isinstance(kind, Drawn) and kind.has(sample):
        compare_draws(ours, theirs, what, kind.together)
    else:
        return False
    return True


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


def summed_over_equals(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the sums of a gradient over equal elements of its argument."""
    kinds, place = torch.unique(x.detach(), return_inverse=True)
    sums = torch.zeros(kinds.numel(), dtype=torch.float64)
    return sums.index_add(0, place.reshape(-1), gradient.double().reshape(-1)).to(gradient.dtype)


def _trained(*args: Any, p: float = 0.5, training: bool = True, **kwargs: Any) -> bool:
    """Whether something is dropped."""
    return training and 0.0 < p < 1.0


def _attention_drops(*args: Any, dropout_p: float = 0.0, **kwargs: Any) -> bool:
    return dropout_p > 0


def _heads_drop(*args: Any, training: bool = True, **kwargs: Any) -> bool:
    dropout_p: float = args[10]
    return training and dropout_p > 0


AMBIGUOUS: dict[str, Drawn | Unwritten | Tied] = {
    **dict.fromkeys(
        (
            *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial"),
            *("normal", "normal|in_place", "normal|number_mean", "rand_like", "randint"),
            *("randint_like", "randn", "randn_like", "uniform"),
            *("nn.functional.alpha_dropout", "nn.functional.rrelu"),
        ),
        Drawn(),
    ),
    "nn.functional.dropout": Drawn(_trained),
    "nn.functional.dropout2d": Drawn(_trained, 25),
    "nn.functional.dropout3d": Drawn(_trained, 125),
    "nn.functional.feature_alpha_dropout|with_train": Drawn(together=125),
    "nn.functional.fractional_max_pool2d": Drawn(together=200),
    "nn.functional.fractional_max_pool3d": Drawn(together=200),
    "nn.functional.multi_head_attention_forward": Drawn(_heads_drop, 100),
    "nn.functional.scaled_dot_product_attention": Drawn(_attention_drops, 100),
    **dict.fromkeys(
        (
            *("empty", "empty_like", "empty_permuted", "empty_strided"),
            *("new_empty", "new_empty_strided"),
        ),
        Unwritten(),
    ),
    **dict.fromkeys(("argsort", "msort", "mode", "sort", "masked.median"), Tied()),
    **dict.fromkeys(("kthvalue", "topk"), Tied(place=1)),
    **dict.fromkeys(("median", "nanmedian"), Tied(dim=None)),
}
"""The entries whose results are not, or not all, one value."""
