"""Batch normalisation in CUDA, run as C++ on the CPU, beside torch in float64."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import batch_norm, cubin
from meta.dialect.cuda.batch_norm import shares
from meta.ir import parse_type
from tests.dialect.cuda.threads import compiled

COMPILER = shutil.which("g++") or shutil.which("clang++")
CUDA = Device("cuda:0")


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    made: dict[str, ctypes.CDLL] = {}

    def function(source: str, name: str, device: int) -> Any:
        if source not in made:
            file = tmp_path / f"kernels{len(made)}"
            made[source] = compiled(source, ("sums", "finish", "apply"), file, COMPILER)
        run = getattr(made[source], f"run_{name}")

        def launch(blocks: int, threads: int, parameters: bytes, columns: int = 1) -> None:
            run(blocks, columns, threads, parameters)

        return SimpleNamespace(launch=launch)

    monkeypatch.setattr(cubin, "function", function)
    chip = SimpleNamespace(multi_processor_count=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)


def kernel(name: str, *args: Any) -> Callable[..., None]:
    """Return the kernel of a call; strings are types."""
    return prepared(name, *args).run


def prepared(name: str, *args: Any) -> OpEnv:
    base = getattr(meta.op, name)
    given = [parse_type(a) if isinstance(a, str) else a for a in args]
    bound = base.schema.bind(tuple(given), {}, lambda t: t)
    return getattr(batch_norm, name).make(base.call_values(bound, CUDA))


def numbers(*shape: int, mean: float = 0.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) + mean


@pytest.mark.parametrize(
    ("dtype", "channels"),
    [
        ("float16", 40),
        pytest.param("float32", 40, marks=pytest.mark.slow),
        pytest.param("float32", 3, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_both_passes(emulated: None, dtype: str, channels: int) -> None:
    half = dtype == "float16"
    x = numbers(7, 11, channels, mean=100.0 if not half else 2.0).to(getattr(torch, dtype))
    dy = numbers(7, 11, channels, mean=1.0).to(x.dtype)
    w, b, mean, var = (numbers(channels) + 2.0 for _ in range(4))
    data, one = f"{dtype}[7, 11, {channels}]", f"float32[{channels}]"
    y, running = torch.empty_like(x), (mean.clone(), var.clone())
    kernel("batch_norm_train", data, *[one] * 4, 0.3, 1e-3, -1)(x, *running, w, b, y)
    wide = x.double().movedim(-1, 1).requires_grad_()
    w64, b64 = (t.double().requires_grad_() for t in (w, b))
    known = mean.double(), var.double()
    wanted = F.batch_norm(wide, *known, w64, b64, True, 0.3, 1e-3)
    limit = 2e-2 if half else 2e-4  # of numbers around 100, whose last digit is 8e-6
    torch.testing.assert_close(y.double(), wanted.detach().movedim(1, -1), atol=limit, rtol=1e-3)
    for found, expected in zip(running, known, strict=True):
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    dx, dw, db = torch.empty_like(x), torch.empty(channels), torch.empty(channels)
    kernel("batch_norm_train_dxwb", data, data, one, None, 1e-3, 2)(dy, x, w, dx, dw, db)
    gradients = torch.autograd.grad(wanted, (wide, w64, b64), dy.double().movedim(-1, 1))
    gradients = (gradients[0].movedim(1, -1), *gradients[1:])
    for found, expected in zip((dx, dw, db), gradients, strict=True):
        torch.testing.assert_close(found.double(), expected, atol=limit, rtol=1e-3)


def test_the_workspace_is_what_a_run_takes(emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    env = prepared("batch_norm_train", "float16[9, 24]", *["float32[24]"] * 4)
    x, rest = numbers(9, 24).half(), [numbers(24) for _ in range(4)]
    empty, taken = torch.empty, []
    monkeypatch.setattr(torch, "empty", lambda *a, **k: taken.append(empty(*a, **k)) or taken[-1])
    env.run(x, *rest, x.clone())
    assert env.workspace_bytes == sum(t.nbytes for t in taken) > 0


@pytest.mark.parametrize(
    ("vectors", "wanted"), [(1, (1, 1)), (8, (8, 1)), (10, (16, 1)), (80, (32, 3))]
)
def test_how_threads_share_a_row(vectors: int, wanted: tuple[int, int]) -> None:
    assert shares(vectors) == wanted


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("float32[2, 3, 4]", *["float32[3]"] * 2), "channels on the last axis"),
        (("float64[2, 3]", *["float64[3]"] * 2), "made for float16"),
        (("float16[4, 3]", "float16[3]", "float32[3]"), "running_mean and running_var differ"),
    ],
)
def test_refusals(args: tuple[str, ...], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        kernel("batch_norm_train", *args)
