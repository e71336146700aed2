"""Compares results that name one of several equal elements, such as the indices of a sort.

Which of equal elements comes first is not said by torch. So its indices and those of `meta` are
compared by the elements that they lead to, and gradients by their sums over equal elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tools.torch_samples.draws import torch_of


@dataclass(frozen=True)
class Tied:
    """An adapter whose last result, if it is of integers, are indices along an axis: the argument
    ``dim``, at a ``place`` behind the tensor.
    """

    function: Callable[..., Any]
    place: int = 0
    dim: int | None = -1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def elements(self, results: Any, sample: Any) -> Any:
        """Return results with the elements in the place of indices."""
        several = isinstance(results, tuple | list)
        *values, last = results if several else [results]
        indices = torch_of(last)
        if indices.dtype != torch.int64 or not (several or sample.input.dtype != torch.int64):
            return results
        args = sample.args
        given = args[self.place] if len(args) > self.place else self.dim
        dim = sample.kwargs.get("dim", given)
        x = sample.input.detach()
        if dim is None or x.ndim == 0:
            led_to = x.reshape(-1)[indices]
        elif indices.ndim < x.ndim:
            led_to = x.gather(dim, indices.unsqueeze(dim)).squeeze(dim)
        else:
            led_to = x.gather(dim, indices)
        return [*values, led_to] if several else led_to


def summed_over_equals(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the sums of a gradient over equal elements of its argument."""
    kinds, place = torch.unique(x.detach(), return_inverse=True)
    sums = torch.zeros(kinds.numel(), dtype=torch.float64)
    return sums.index_add(0, place.reshape(-1), gradient.double().reshape(-1)).to(gradient.dtype)
