"""The entries of torch's operator database, their samples, and torch's own run of one."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
OTHERS = (torch.complex64, torch.complex128)


def key_of(entry: Any) -> str:
    """Return the name of an entry, with its variant behind a bar."""
    return f"{entry.name}|{entry.variant_test_name}" if entry.variant_test_name else entry.name


ENTRIES: dict[str, Any] = {key_of(entry): entry for entry in op_db}


def dtypes_of(key: str) -> tuple[torch.dtype, ...]:
    """Return the dtypes in which an entry is run: those of `DTYPES` that it takes on the CPU; if
    there is none, complex numbers; if these neither, what it takes of `DTYPES` on CUDA.
    """
    entry = ENTRIES[key]
    for wanted, device in ((DTYPES, "cpu"), (OTHERS, "cpu"), (DTYPES, "cuda")):
        found = tuple(d for d in wanted if entry.supports_dtype(d, device))
        if found:
            return found
    return ()


def differentiable(key: str, dtype: torch.dtype) -> bool:
    """Whether torch differentiates the entry in a dtype."""
    entry = ENTRIES[key]
    known = dtype.is_floating_point or dtype.is_complex
    if not (known and entry.supports_autograd):
        return False
    # An entry that has no dtype on the CPU is run as on CUDA, `dtypes_of` says.
    backward = {*entry.supported_backward_dtypes("cpu"), *entry.supported_backward_dtypes("cuda")}
    return dtype in backward


@contextmanager
def of_torch() -> Iterator[None]:
    """Ignore, while torch itself is running, that it warns of its own deprecations and of samples
    that its authors chose to be unusual.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def samples(key: str, dtype: torch.dtype) -> Iterator[Any]:
    """Yield the samples of an entry, the same ones in every run.

    Their tensors require a gradient where torch's own tests differentiate by them.
    """
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    with of_torch():
        entry = ENTRIES[key]
        made = iter(entry.sample_inputs("cpu", dtype, requires_grad=differentiable(key, dtype)))
    while True:
        with of_torch():
            sample = next(made, None)
        if sample is None:
            return
        yield sample


def run_entry(
    entry: Any, sample: Any, trains: bool, dy: Sequence[torch.Tensor] | None = None
) -> tuple[Any, Sequence[Any], Sequence[torch.Tensor]]:
    """Return the result of a sample, the gradients of its tensors that require one, and those of
    the result that they are computed of: random ones where none are given. None if not ``trains``.
    """

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        return value.detach().requires_grad_()

    with _disable_current_modes():
        call = (sample.input, *sample.args), dict(sample.kwargs)
        args, kwargs = pytree.tree_map(own, call)
    torch.manual_seed(0)
    result = entry(*args, **kwargs)
    outputs = [t for t in pytree.tree_leaves(result) if getattr(t, "requires_grad", False)]
    leaves = pytree.tree_leaves((args, kwargs))
    inputs = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if not trains or not outputs or not inputs:
        return result, (), ()
    if dy is None:
        torch.manual_seed(1)
        with _disable_current_modes():
            dy = [torch.randn_like(t) for t in outputs]
    return result, torch.autograd.grad(outputs, inputs, dy, allow_unused=True), dy
