"""Eager PyTorch, disturbed: by how much a program's rounding may change what it gives."""

from __future__ import annotations

from re import findall
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

EXACT = frozenset(
    findall(
        r"\w+",
        """
        _local_scalar_dense _to_copy abs all amax amin aminmax any arange argmax argmin argsort
        bitwise_and bitwise_not cat ceil clamp clamp_min clone constant_pad_nd copy_ count_nonzero
        cummax diag_embed empty empty_like empty_strided eq eye fill_ flip floor full full_like
        gather ge gt index index_copy_ index_fill_ index_put index_put_ index_select isnan kthvalue
        le lift_fresh lift_fresh_copy local_scalar_dense logical_not lt masked_fill masked_fill_ max
        max_pool2d_with_indices maximum median min minimum nan_to_num ne neg neg_ new_empty
        new_empty_strided new_full new_ones new_zeros ones ones_like relu relu_ repeat roll round
        scalar_tensor scatter scatter_ select_backward select_scatter set_ sign slice_backward
        slice_scatter sort stack topk tril triu trunc where zero_ zeros zeros_like
        """,
    )
)
"""Operators that only move, choose or compare elements."""
ULPS = 4.0


class CompactGradients(TorchDispatchMode):
    """Gives batch norms compact gradients, others the same.

    Of one image, whose gradient lies as if its channels were last, PyTorch's kernel on the CPU
    takes elements of other places (2.13); instance norms are such batch norms of one image.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        return func(*_with_compact_gradient(func, args), **(kwargs or {}))

    def disturb(self, x: torch.Tensor) -> None:
        """Leave a tensor as it is."""


def _with_compact_gradient(func: Any, args: Any) -> Any:
    if func._schema.name != "aten::native_batch_norm_backward":
        return args
    return (args[0].clone(memory_format=torch.contiguous_format), *args[1:])


class Noise(CompactGradients):
    """Changes what operators are given and give by a few units in the last place."""

    def __init__(self, seed: int, amplitude: float = 1.0) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self._amplitude = amplitude * ULPS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, with noise where it rounds."""
        kwargs, args = kwargs or {}, _with_compact_gradient(func, args)
        own = func._schema.name.split("::")[1]
        if own in EXACT or func.is_view:
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            result = func(*args, **kwargs)
            for argument, value in zip(func._schema.arguments, args, strict=False):
                written = argument.alias_info is not None and argument.alias_info.is_write
                if written and isinstance(value, torch.Tensor):
                    self.disturb(value)
            return result
        if "batch_norm" in own:  # it writes running statistics, whatever its schema says
            args = (self._disturbed(args[0]), *args[1:])
        else:
            args, kwargs = tree_map(self._disturbed, (args, kwargs))
        result = func(*args, **kwargs)
        if own == "gelu":  # 1 + erf(x) cancels: its rounding is one of x, not of the result
            result = result + args[0] * (self._factor(args[0]) - 1).to(result.dtype)
        return tree_map(self._disturbed, result)

    def _factor(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(x.shape, generator=self._generator, dtype=torch.float64) * 2 - 1
        return (1 + noise * self._amplitude * torch.finfo(x.dtype).eps).to(x.device)

    def _disturbed(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return (x * self._factor(x)).to(x.dtype)

    def disturb(self, x: torch.Tensor) -> None:
        """Change a tensor by rounding, in place."""
        is_expanded = any(n > 1 and s == 0 for n, s in zip(x.shape, x.stride(), strict=True))
        if x.is_floating_point() and not is_expanded:
            x.copy_(x * self._factor(x))
