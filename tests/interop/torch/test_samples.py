"""`enable` against torch on its own operator samples: values, gradients, dtypes and strides."""

from __future__ import annotations

import pytest
import torch

from tools.enabled_samples import Outcome, main, page, run
from tools.torch_samples.entries import ENTRIES

QUICK = """
add addmm amax baddbmm cat clamp div|floor_rounding dot gather linalg.vector_norm matmul
nn.functional.batch_norm nn.functional.conv2d nn.functional.cross_entropy nn.functional.gelu
nn.functional.layer_norm nn.functional.linear pow rsub softmax sum where
"""
THOUSANDS = ("nn.functional.max_pool1d", "nn.functional.max_pool2d", "nn.functional.max_pool3d")
"""Operators whose samples take ten minutes: the `FIRST` of each dtype are run with the rest."""
FIRST = 40


@pytest.mark.parametrize("entry", QUICK.split())
def test_some_samples(entry: str) -> None:
    found = run(entry, (torch.float32, torch.int64), 1)
    assert found.ran and not found.failures, "\n".join(found.failures)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_all_samples(entry: str) -> None:
    found = run(entry, (), FIRST if entry in THOUSANDS else None)
    assert not found.failures, "\n".join(found.failures)


@pytest.mark.sweep
@pytest.mark.parametrize("entry", THOUSANDS)
def test_thousands_of_samples(entry: str) -> None:
    found = run(entry, (), None)
    assert not found.failures, "\n".join(found.failures)


@pytest.mark.slow
@pytest.mark.parametrize("entry", QUICK.split())
def test_samples_on_generated_kernels(entry: str) -> None:
    found = run(entry, (torch.float32, torch.int64), 3, "tvm")
    assert not found.failures, "\n".join(found.failures)


def test_the_page_says_what_was_refused() -> None:
    found = run("nn.functional.gelu", (torch.float32,), 2)
    assert {name for name, _ in found.served} >= {"gelu", "gelu_backward"}
    found.refused["relu", "its converter gives float32[2] instead of int64[2]"] += 3
    text = page(found, ["--samples", "2"], 1)
    assert "python -m tools.enabled_samples --samples 2\n" in text
    assert "| 3 | its converter gives another type than PyTorch | `relu` |" in text


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--exact", "tanh", "--dtype", "float32", "--samples", "1", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.endswith("1 samples, 0 failures\n")
    total = Outcome(ran=1, failures=["a difference"])
    total.add(Outcome(ran=2))
    assert total.ran == 3 and total.failures == ["a difference"]
