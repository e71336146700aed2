"""The entries of torch's operator database and their samples."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int32, torch.int64)


def key_of(entry: Any) -> str:
    """Return the name of an entry, with its variant behind a bar."""
    return f"{entry.name}|{entry.variant_test_name}" if entry.variant_test_name else entry.name


ENTRIES: dict[str, Any] = {key_of(entry): entry for entry in op_db}


def dtypes_of(key: str) -> tuple[torch.dtype, ...]:
    """Return the dtypes in which an entry is run: float32 and float64, or, of an operator that
    takes no floating point numbers, int32 and int64.
    """
    entry = ENTRIES[key]
    for wanted in (FLOATS, INTEGERS):
        found = tuple(d for d in wanted if entry.supports_dtype(d, "cpu"))
        if found:
            return found
    return FLOATS


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
        differentiable = entry.supports_autograd and dtype.is_floating_point
        made = iter(entry.sample_inputs("cpu", dtype, requires_grad=differentiable))
    while True:
        with of_torch():
            sample = next(made, None)
        if sample is None:
            return
        yield sample
