"""A quantized network whose scales and zero points are constants, or parameters of the program."""

import numpy as np
import pytest
import torch

import meta
from meta.frontend.relay.model import RelayModel
from meta.frontend.relay.text import parse_text
from tests.frontend.relay import quantized as q
from tests.frontend.relay.converters.qnn_conv import conv

PROGRAM = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 3, 6, 6), float32], %w: Tensor[(4, 3, 3, 3), int8],
          %ws: Tensor[(4), float32], %wz: Tensor[(4), int32], %s: float32) {
  %0 = qnn.quantize(%x, {s}, 128, out_dtype="uint8");
  %1 = qnn.conv2d(%0, %w, 128, %wz, {s}, %ws, padding=[1, 1, 1, 1], channels=4,
                  kernel_size=[3, 3], out_dtype="int32");
  %2 = multiply(%ws, {s});
  %3 = qnn.requantize(%1, %2, 0, 0.05f, 10, axis=1, out_dtype="uint8");
  %4 = qnn.add(%3, %3, 0.05f, 10, 0.05f, 10, 0.08f, 5);
  qnn.dequantize(%4, 0.08f, 5, out_dtype="float32")
}
"""
RNG = np.random.default_rng(4)
X = RNG.normal(size=(1, 3, 6, 6)).astype(np.float32)
SCALE = np.float32(0.02)
W = RNG.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8)
WS, WZ = np.array([0.01, 0.02, 0.015, 0.03], np.float32), np.array([0, 1, -2, 3], np.int32)


def expected() -> np.ndarray:
    """The network step by step."""
    image = q.quantize(X, SCALE, 128, "uint8")
    sums = conv(image, W, 128, WZ, padding=1).numpy()
    y = q.requantize(sums, WS * SCALE, 0, np.float32(0.05), 10, "uint8", 1)
    part = q.requantize(y, np.float32(0.05), 10, np.float32(0.08), 5, "int32")
    return q.dequantize(np.clip(2 * part - 5, 0, 255), np.float32(0.08), 5)


@pytest.fixture(params=["0.02f", "%s"], ids=["constant", "parameter"])
def model(request: pytest.FixtureRequest) -> RelayModel:
    arrays = {"w": W, "ws": WS, "wz": WZ, "s": SCALE}
    params = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
    return RelayModel(parse_text(PROGRAM.replace("{s}", request.param)), params)


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
def test_is_exact_on_each_dialect(model: RelayModel, dialect: str) -> None:
    with meta.dialect.only(dialect):
        assert np.array_equal(model(meta.array(X)).numpy(), expected())


def test_is_exact_when_compiled(model: RelayModel) -> None:
    x = meta.array(X)
    assert np.array_equal(meta.vm.compile(model, x)(x).numpy(), expected())
