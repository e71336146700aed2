"""Gradients summed over several calls, for one update from what a larger batch would give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from meta import op
from meta.base.dtype import TO_TORCH, promote
from meta.model.model import Model
from meta.runtime.ndarray import array, ndarray


class Accumulation(Model):
    """Sums of gradients, at least in float32, and how many calls are in them.

    Attributes
    ----------
    count_to: the number of calls for an update. count: float32[]. gradient: arrays by the
    parameter's name.
    """

    def build(self, params: Mapping[str, ndarray], count_to: int) -> None:
        """Make sums for parameters by name."""
        device = next(iter(params.values())).device if params else "cpu"
        self.count_to = count_to
        self.count = array(0.0, "float32", device=device)
        self.gradient = {name: _sum_of(x) for name, x in params.items()}

    def add(self, gradients: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Add gradients; return the sums, and whether more calls are to come before an update."""
        sums = {name: self.gradient[name] for name in gradients}
        goes_on = op.cast(op.greater(self.count, 0.0), "float32")
        by_dtype: dict[str, list[str]] = {}
        for name, total in sums.items():
            by_dtype.setdefault(total.dtype, []).append(name)
        for names in by_dtype.values():
            op.multi_tensor_axpby(
                [gradients[n] for n in names], [sums[n] for n in names], 1.0, goes_on
            )
        count = self.count + 1.0
        more = op.less(count, float(self.count_to))
        op.multi_tensor_axpby([count * op.cast(more, "float32")], [self.count], 1.0, 0.0)
        return sums, more


def _sum_of(x: ndarray) -> ndarray:
    dtype = TO_TORCH[promote(x.dtype, "float32")]
    return ndarray(torch.zeros(x.shape, dtype=dtype, device=str(x.device)))
