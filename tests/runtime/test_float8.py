"""Arrays of float8: where they come from and go to, layers of them, and what they have not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import meta
from meta.base.dtype import FLOAT8, TO_NUMPY, TO_TORCH
from meta.base.errors import GradientError, TypeInferError
from meta.ir import Constant, parse, text
from meta.ir.constants import from_values, inline_text
from meta.model import Model, load_weights, save_weights
from meta.runtime.ndarray import ndarray

KINDS = sorted(FLOAT8)
pytestmark = pytest.mark.parametrize("dtype", KINDS)


def bits(x: Any) -> list[int]:
    return np.asarray(x.numpy() if isinstance(x, ndarray) else x).view(np.uint8).ravel().tolist()


def every(dtype: str) -> meta.ndarray:
    """Return an array of all 256 values."""
    return meta.array(np.arange(256, dtype=np.uint8).view(TO_NUMPY[dtype]))


def test_every_value_goes_through_numpy_torch_and_dlpack(dtype: str) -> None:
    x = every(dtype)
    assert x.dtype == dtype and x.torch().dtype == TO_TORCH[dtype] and bits(x) == list(range(256))
    assert x.numpy().dtype == getattr(ml_dtypes, dtype)
    assert bits(np.asarray(x)) == bits(meta.array(x.torch())) == list(range(256))
    assert bits(meta.from_dlpack(x.torch())) == bits(meta.from_dlpack(x)) == list(range(256))
    shared = x.__array__(copy=False)
    shared[:] = 0
    assert not any(bits(x))
    wide = every(dtype).to(dtype="float64").numpy()
    np.testing.assert_array_equal(wide, every(dtype).numpy().astype(np.float64))


def test_numbers_are_rounded_and_large_ones_are_not_nan_for_lack_of_infinity(dtype: str) -> None:
    given = [0.1, -1e4, 1e9, float("inf"), float("nan"), 3.0]
    values = meta.array(given)
    expected = [0.1015625, -448.0, 448.0, 448.0, float("nan"), 3.0]
    if dtype == "float8_e5m2":
        expected = [0.09375, -10240.0, float("inf"), float("inf"), float("nan"), 3.0]
    for found in (
        meta.array(given, dtype),
        values.to(dtype=dtype),
        meta.astype(values, dtype),
        meta.cast_like(values, meta.zeros((1,), dtype)),
        ndarray(from_values(given, (6,), dtype)),
    ):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.numpy().astype(np.float64), expected)
    assert meta.array([600, -600, 7], dtype).torch().float().tolist()[2] == 7.0


def test_constants_are_written_and_read(dtype: str) -> None:
    values = every(dtype).torch()
    for one in values:
        written = inline_text(one)
        if written is None:  # another NaN
            assert one.isnan()
            continue
        assert torch.equal(from_values([float(written)], (), dtype).view(torch.uint8),
                           one.view(torch.uint8))  # fmt: skip

    @meta.model.trace
    def f(x: Any) -> Any:
        return meta.concat((x, ndarray(values[:4].clone())))

    module = f.program(every(dtype)).module
    assert text(parse(text(module))) == text(module)
    assert isinstance(Constant(values).data, torch.Tensor)
    assert bits(meta.vm.compile(f, every(dtype))(every(dtype))) == [*range(256), 0, 1, 2, 3]


class Quantized(Model):
    """A layer with a weight in float8."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        w = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
        self.scale = meta.array(w.abs().max() / 448)
        self.w = meta.array(w / w.abs().max() * 448, dtype)

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        scale = meta.max(meta.abs(x)) / 448.0
        narrow = meta.astype(x / scale, "float8_e4m3fn")
        return meta.scaled_matmul(narrow, self.w, scale, self.scale, "float32")


def test_a_layer_is_compiled_saved_and_its_weights_kept(dtype: str, tmp_path: Path) -> None:
    model = Quantized(dtype).eval()
    x = meta.array(torch.randn(5, 16, generator=torch.Generator().manual_seed(1)))
    run = meta.vm.compile(model, x)
    expected = x.torch() @ (model.w.torch().float() * model.scale.torch()).t()
    for found in (model(x), run(x)):
        assert (found.torch() - expected).abs().max() < 0.06 * expected.abs().max()
    run.save(tmp_path / "program")
    assert torch.equal(meta.vm.load(tmp_path / "program")(x).torch(), run(x).torch())
    save_weights(model, tmp_path / "weights.safetensors")
    other = Quantized(dtype)
    other.w.update(meta.zeros((32, 16), dtype))
    load_weights(other, tmp_path / "weights.safetensors")
    assert bits(other.w) == bits(model.w)


def test_there_is_no_gradient_and_no_arithmetic(dtype: str) -> None:
    x = every(dtype)
    with pytest.raises(GradientError, match="only floating point arrays have gradients"):
        x.requires_grad = True
    wide = meta.array([1.0, 2.0])
    wide.requires_grad = True
    with pytest.raises(GradientError, match="no gradient goes through astype"):
        meta.astype(meta.astype(wide, dtype), "float32").backward(meta.array([1.0, 1.0]))
    for call in (lambda: x + x, lambda: meta.exp(x), lambda: meta.sum(x)):
        with pytest.raises(TypeInferError, match="has no arithmetic but scaled_matmul") as caught:
            call()
        assert 'meta.astype(x, "float16")' in str(caught.value)
    with meta.amp.autocast_scope("bfloat16"):
        x, one = meta.zeros((2, 16), dtype), meta.array(1.0)
        half = meta.scaled_matmul(x, x, one, one)
    assert half.dtype == "bfloat16"
