"""Converters against torch on its own operator samples: what `tools.aten_overloads` compares."""

from __future__ import annotations

import pytest
import torch

from tools.aten_overloads import run
from tools.torch_samples.entries import ENTRIES

QUICK = """
add amax bitwise_and clamp div|floor_rounding eq float_power linalg.vector_norm logsumexp
max|reduction_with_dim nn.functional.elu nn.functional.gelu nn.functional.prelu pow softmax sum
var_mean where
"""
PARTS = 40


def check(entry: str, dtypes: tuple[torch.dtype, ...], limit: int | None) -> None:
    found = run(entry, "", dtypes, limit)
    failures = [f"{name}: {one.failures[0]}" for name, one in found.items() if one.failures]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("entry", QUICK.split())
def test_some_samples(entry: str) -> None:
    check(entry, (torch.float32, torch.bfloat16, torch.int64), 3)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_samples(part: int) -> None:
    for entry in list(ENTRIES)[part::PARTS]:
        check(entry, (), None)
