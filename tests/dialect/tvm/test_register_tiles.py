"""Loops by tiles in registers: any windows, groups, sizes, and elementwise stages behind the sums.

PyTorch, in float64, says what the results are.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.target import Target

import meta
from meta.base.device import CPU
from meta.dialect.tvm.packed import window_of
from meta.dialect.tvm.register_tiles import multiplies
from meta.dialect.tvm.target import for_device
from meta.dialect.tvm.tile_choice import tiles_of


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def _bytes(dtype: str, *shape: int) -> torch.Tensor:
    """All of the dtype, the least and the greatest often."""
    least, most = torch.iinfo(getattr(torch, dtype)).min, torch.iinfo(getattr(torch, dtype)).max
    numbers = (_numbers(*shape) * 200).round().clamp(least, most)
    return numbers.to(getattr(torch, dtype))


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, object]:
    """A convolution: shapes of x and w, and options."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 8, 16]))
    outputs = (
        groups * draw(st.sampled_from([1, 2, 8])) if groups > 2 else 8 * draw(st.integers(1, 6))
    )
    outputs = -(-outputs // 8) * 8
    inputs = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 20])) if groups <= 2 else 1
    taps = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = draw(st.tuples(*[st.integers(0, 3)] * 2))
    least = [d * (k - 1) + 1 for d, k in zip(dilation, taps, strict=True)]
    sizes = [
        max(n - 2 * p, 1) + draw(st.integers(0, 19)) for n, p in zip(least, padding, strict=True)
    ]
    return {
        "x": (draw(st.integers(1, 3)), inputs * groups, *sizes),
        "w": (outputs, inputs, *taps),
        "options": (stride, padding, dilation, groups),
        "layout": draw(st.sampled_from(["NHWC", "NCHW"])),
        "dtype": draw(st.sampled_from(["float32", "float32", "uint8", "uint8", "int8"])),
        "behind": draw(st.sampled_from(["", "bias", "bias relu", "add relu", "silu", "bias add"])),
    }


def _program(case):
    """Return the convolution, and what is behind it."""
    behind = case["behind"].split()

    @meta.model.trace
    def program(x, weight, bias, other):
        y = meta.packed_conv2d(x, weight, *case["options"], layout=case["layout"])
        if y.dtype == "int32":
            y = meta.astype(y, "float32") * 2.0**-12
        if "bias" in behind:
            y = meta.bias_add(y, bias, 3)
        if "add" in behind:
            y = y + other
        if "relu" in behind:
            y = meta.relu(y)
        return meta.silu(y) if "silu" in behind else y

    return program


@settings(max_examples=25)
@given(convolutions())
def test_convolutions(case) -> None:
    """All of them run by tiles, or by ATen, and are right."""
    x, w = _numbers(*case["x"]), _numbers(*case["w"])
    bias, scale = _numbers(len(w)), 1.0
    if case["dtype"] != "float32":
        x, w, scale = _bytes(case["dtype"], *x.shape), _bytes("int8", *w.shape), 2.0**-12
    y = F.conv2d(x.double(), w.double(), None, *case["options"]) * scale
    other = _numbers(*y.permute(0, 2, 3, 1).shape)
    if "bias" in case["behind"]:
        y = y + bias[:, None, None]
    if "add" in case["behind"]:
        y = y + other.permute(0, 3, 1, 2)
    if "relu" in case["behind"]:
        y = y.relu()
    if "silu" in case["behind"]:
        y = F.silu(y)
    given_x = x if case["layout"] == "NCHW" else x.permute(0, 2, 3, 1).contiguous()
    arrays = [meta.array(t) for t in (given_x, w, bias, other)]
    arrays[1] = meta.pack_weight(arrays[1])
    run = meta.vm.compile(_program(case), *arrays)
    found = torch.as_tensor(run(*arrays).numpy()).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, y.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_tiles_lie_along_the_longer_axis_of_a_narrow_image(width: int, layout: str) -> None:
    window = window_of(1, (2, 0), 1, 1)
    x = (1, 64, width, 16) if layout == "NHWC" else (1, 16, 64, width)
    tiles = tiles_of(x, (2, 5, 1, 16, 16), (1, 64, width, 32), window, layout, for_device(CPU))
    assert tiles is not None and tiles.tile.rows > 4
    options = ((1, 1), (2, 0), (1, 1), 1)
    case = {"x": (2, 16, 64, width), "w": (32, 16, 5, 1), "options": options, "layout": layout}
    case["dtype"] = "float32"
    test_convolutions.hypothesis.inner_test({**case, "behind": "bias add"})


@pytest.mark.product
@pytest.mark.parametrize(
    "rows", [(1,), (3,), (7, 1), (2, 33), (2, 3, 5), (2, 3, 5, 1, 1), (1, 4, 1), ()]
)
@pytest.mark.parametrize(("n", "k"), [(8, 1), (16, 37), (48, 5), (1000, 64)])
def test_products(rows: tuple[int, ...], n: int, k: int) -> None:
    """Of any number of rows, in any number of axes."""
    x, w = _numbers(*rows, k), _numbers(n, k)

    @meta.model.trace
    def product(x, w):
        return meta.relu(meta.packed_matmul(x, w))

    arrays = meta.array(x), meta.pack_weight(meta.array(w))
    found = meta.vm.compile(product, *arrays)(*arrays)
    expected = (x.double() @ w.double().T).relu().float()
    torch.testing.assert_close(torch.as_tensor(found.numpy()), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [(1,), (7, 1), (2, 33), (2, 3, 5), (1, 4, 1), ()])
@pytest.mark.parametrize(("n", "k"), [(8, 4), (16, 36), (48, 5), (1000, 64)])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_products_of_bytes_are_exact(rows: tuple[int, ...], n: int, k: int, dtype: str) -> None:
    x, w = _bytes(dtype, *rows, k), _bytes("int8", n, k)

    @meta.model.trace
    def product(x, w):
        return meta.packed_matmul(x, w)

    arrays = meta.array(x), meta.pack_weight(meta.array(w))
    found = torch.as_tensor(meta.vm.compile(product, *arrays)(*arrays).numpy())
    torch.testing.assert_close(found, (x.double() @ w.double().T).int(), rtol=0, atol=0)


def test_one_kernel_serves_any_number_of_rows() -> None:
    """What is left of rows that fill no tile is computed by smaller ones."""

    @meta.model.trace
    def product(x, w):
        return meta.packed_matmul(x, w)

    types = [meta.ir.parse_type(t) for t in ("float32[n, 9]", "float32[2, 9, 16]")]
    run = meta.vm.compile(product, *types)
    w = _numbers(32, 9)
    for count in (1, 2, 3, 5, 8, 13, 21):
        x = _numbers(count, 9)
        found = run(meta.array(x), meta.pack_weight(meta.array(w)))
        expected = (x.double() @ w.double().T).float()
        torch.testing.assert_close(torch.as_tensor(found.numpy()), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("front", ["n, 1", "n, 4", "3, n", "2, n, 3", "1, n, 1"])
def test_rows_of_several_axes_of_which_one_has_any_extent(front: str) -> None:
    @meta.model.trace
    def product(x, w):
        return meta.tanh(meta.packed_matmul(x, w))

    types = [meta.ir.parse_type(t) for t in (f"float32[{front}, 9]", "float32[2, 9, 16]")]
    run = meta.vm.compile(product, *types)
    w = _numbers(32, 9)
    for count in (1, 2, 5, 13):
        x = _numbers(*(count if e == "n" else int(e) for e in front.split(", ")), 9)
        found = run(meta.array(x), meta.pack_weight(meta.array(w)))
        expected = (x.double() @ w.double().T).tanh().float()
        torch.testing.assert_close(torch.as_tensor(found.numpy()), expected, rtol=1e-4, atol=1e-4)


def test_rows_in_front_of_an_axis_of_one_place_share_a_tile() -> None:
    for x in ((16, 1, 64), (4, 4, 64), (16, 64), (1, 16, 1, 64)):
        tiles = tiles_of(x, (4, 64, 16), (*x[:-1], 64), [], "", for_device(CPU))
        assert tiles is not None and tiles.tile.rows > 2


def test_tiles_of_bytes_read_fours_of_channels() -> None:
    """Of other numbers, and of channels that do not lie together, there are none."""
    target, window = for_device(CPU), window_of(1, 1, 1, 1)
    x, w = (1, 9, 9, 16), (1, 3, 3, 4, 16, 4)
    found = tiles_of(x, w, x, window, "NHWC", target)
    assert found is not None and found.fours and found.channels == 4
    assert tiles_of((1, 16, 9, 9), w, x, window, "NCHW", target) is None
    assert tiles_of((3, 14), (2, 4, 16, 4), (3, 32), [], "", target) is None


@pytest.mark.parametrize(
    ("processor", "bytes_too"), [("znver4", True), ("alderlake", True), ("x86-64-v3", False)]
)
def test_bytes_are_multiplied_by_vnni(processor: str, bytes_too: bool) -> None:
    target = Target({"kind": "llvm", "mcpu": processor})
    assert multiplies("uint8", target) == bytes_too
    assert multiplies("float32", target) and not multiplies("int8", target)


def test_tiles_fill_the_registers() -> None:
    """A tile has twelve vectors of sums or more where there are so many, and no more than fit."""
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        x, w = (1, size, size, channels), (channels // 16, 3, 3, channels, 16)
        window = window_of(1, 1, 1, 1)
        tiles = tiles_of(x, w, x, window, "NHWC", for_device(CPU))
        assert tiles is not None
        assert 8 <= tiles.tile.rows * tiles.tile.vectors <= 20


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((1, "h", 8, 16), (1, 3, 3, 16, 16), (1, 1, 1, 1)),  # sizes must be known
        ((1, 8, 8, 24), (1, 3, 3, 12, 16), (1, 1, 1, 2)),  # a block in two groups
        ((1, 99, 99, 16), (1, 33, 33, 16, 16), (1, 33, 1, 1)),  # more loops than for its middle
    ],
)
def test_what_has_no_tiles(x, w, options) -> None:
    """It is declined, and another kernel runs it."""
    assert tiles_of(x, w, (1, 8, 8, 16), window_of(*options), "NHWC", for_device(CPU)) is None
