"""Converters against torch on its own operator samples: what `tools.torch_samples.overloads`
compares. What converters refuse of the first samples is in a list.
"""

from __future__ import annotations

import pytest
import torch

import meta
from tests.frontend.aten.lists import REFUSED
from tests.frontend.listed import check_listed, check_names
from tools.torch_samples.entries import ENTRIES
from tools.torch_samples.overloads import run

QUICK = """
add amax bitwise_and clamp div|floor_rounding eq float_power linalg.vector_norm logsumexp
max|reduction_with_dim nn.functional.elu nn.functional.gelu nn.functional.prelu pow softmax sum
var_mean where
"""
FEW = 2


def check(entry: str, dtypes: tuple[torch.dtype, ...], limit: int | None) -> None:
    found = run(entry, "", dtypes, limit)
    failures = [f"{name}: {one.failures[0]}" for name, one in found.items() if one.failures]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("entry", QUICK.split())
def test_some_samples(entry: str) -> None:
    check(entry, (torch.float32, torch.bfloat16, torch.int64), 3)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_all_samples(entry: str) -> None:
    check(entry, (), None)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_refused_of_the_first_samples(entry: str) -> None:
    of_torch: list[str] = []
    with meta.dialect.prefer("torch"):
        found = run(entry, "", (), FEW, of_torch.append)
    messages = [f"{one.name}: {why}" for one in found.values() for why in one.declined]
    messages += [f"torch: {why}" for why in of_torch]
    check_listed(entry, messages, REFUSED)


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the lists are of the entries of torch 2.13"
)
def test_the_lists_are_of_entries() -> None:
    check_names(REFUSED, ENTRIES)
