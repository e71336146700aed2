"""Saved programs, symbolic dimensions and the program cache on an NVIDIA GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base import config
from meta.ir import parse_type
from meta.model import trace, value_and_grad
from meta.testing import check
from meta.vm import load
from tests.conftest import run_python
from tests.model.networks import Encoder, WithLoss

pytestmark = pytest.mark.cuda
ROOT = Path(__file__).parents[2]
RUN = """
import sys, meta, torch
from safetensors.torch import load_file, save_file
given = load_file(sys.argv[2])
exe = meta.vm.load(sys.argv[1])
found = exe(*[meta.array(given[k], device="cuda") for k in ("dy", "x", "labels")])
save_file({"loss": found[0].torch().cpu()}, sys.argv[3])
print("tvm" in sys.modules)
"""


def step() -> tuple[Any, dict[str, torch.Tensor]]:
    model = value_and_grad(WithLoss(Encoder(32, 2))).to(device="cuda")
    generator = torch.Generator().manual_seed(0)
    values = {
        "dy": torch.tensor(1.0),
        "x": torch.randn(2, 6, 32, generator=generator),
        "labels": torch.tensor([1, 2]),
    }
    return model, values


def on_gpu(values: dict[str, torch.Tensor]) -> list[meta.ndarray]:
    return [meta.array(v, device="cuda") for v in values.values()]


def test_another_process_gets_the_same_bits(tmp_path: Path) -> None:
    model, values = step()
    exe = meta.vm.compile(model, *on_gpu(values))
    loss, _ = exe(*on_gpu(values))
    exe.save(tmp_path / "program")
    meta.runtime.tensor_file.write_tensors(tmp_path / "in.safetensors", values)
    files = [tmp_path / n for n in ("program", "in.safetensors", "out.safetensors")]
    imported = run_python("-c", RUN, *files, cwd=tmp_path)
    assert imported.strip() == "False"  # no compiler
    found = meta.runtime.tensor_file.read_tensors(files[-1])["loss"]
    assert torch.equal(found, loss.torch().cpu())


def test_rebuilt_kernels_give_the_same(tmp_path: Path) -> None:
    model, values = step()
    exe = meta.vm.compile(model, *on_gpu(values))
    exe.save(tmp_path / "program")
    expected, found = (
        exe(*on_gpu(values)),
        load(tmp_path / "program", rebuild=True)(*on_gpu(values)),
    )
    check(found[0], expected[0], 1e-5, 1e-5)


def test_symbolic_dimensions() -> None:
    network = Encoder(32, 2).eval().to(device="cuda")
    exe = meta.vm.compile(network, parse_type("float32[n, s, 32]"), device="cuda")
    for n, s in ((1, 3), (4, 6), (2, 1)):
        x = meta.array(torch.randn(n, s, 32), device="cuda")
        check(exe(x), network(x), 1e-3, 1e-3)


def test_one_generated_kernel_for_all_sizes() -> None:
    @trace
    def squashed(x: Any, y: Any) -> Any:
        return meta.tanh(x * y) + 1.0

    types = parse_type("float32[n, m]"), parse_type("float32[m]")
    with meta.dialect.only("tvm"):
        exe = meta.vm.compile(squashed, *types, device="cuda")
    for n, m in ((1, 1), (3, 5), (300, 70)):
        x, y = torch.randn(n, m, device="cuda"), torch.randn(m, device="cuda")
        expected = meta.array((x * y).tanh() + 1)
        check(exe(meta.array(x), meta.array(y)), expected, 1e-5, 1e-5)


def test_the_program_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    model, values = step()
    with config.override(META_PROGRAM_CACHE=True):
        first, second = (meta.vm.compile(model, *on_gpu(values)) for _ in range(2))
    assert first.history and not second.history
    a, b = first(*on_gpu(values)), second(*on_gpu(values))
    assert torch.equal(a[0].torch(), b[0].torch())
