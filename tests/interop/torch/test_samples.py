"""`enable` against torch on its own operator samples: values, gradients, dtypes and strides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tools.torch_samples.__main__ import main
from tools.torch_samples.enable import page, run
from tools.torch_samples.entries import ENTRIES
from tools.torch_samples.run import Outcome

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
    assert found.served.keys() >= {"gelu: mirror", "gelu_backward: mirror"}
    found.declined["relu: its converter gives float32[2] instead of int64[2]"] += 3
    text = page(found, ["enable", "--samples", "2"], 1)
    assert "python -m tools.torch_samples enable --samples 2\n" in text
    assert "| 3 | its converter gives another type than PyTorch | `relu` |" in text


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["enable", "--exact", "tanh", "--dtype", "float32", "--samples", "1", "--jobs", "1"]
    assert main([*words, "--page", str(tmp_path / "page.md")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[5].split() == ["1", "run"] and lines[-1].split() == ["0", "failures"]
    assert " --page " in (tmp_path / "page.md").read_text().replace("\n", " ")
    total = Outcome("all", ran=1, failures=["a difference"])
    total.add(Outcome("tanh", ran=2))
    assert total.ran == 3 and total.failures == ["a difference"]
