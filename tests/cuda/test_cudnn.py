"""The `cudnn` dialect on an NVIDIA GPU, beside torch in float64: shapes of networks, fused calls,
graphs, streams, precision, and plans that come from the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.base import config
from meta.base.device import Device
from meta.base.errors import DispatchError
from meta.dialect import only
from meta.dialect.core.preference import forget
from meta.dialect.cudnn import cudnn, plans

pytestmark = pytest.mark.cuda
LAST = ("NHWC", "OHWI", "NHWC")
HALF, BFLOAT, SINGLE = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with only("cudnn"):
        yield


def numbers(*shape: int, dtype: torch.dtype = HALF) -> meta.ndarray:
    generator = torch.Generator("cuda").manual_seed(len(shape))
    values = torch.randn(shape, generator=generator, device="cuda")
    return meta.ndarray(values.to(dtype))


def first(x: meta.ndarray) -> torch.Tensor:
    """Return an image, or a kernel, with its channels before its places, in float64."""
    return x.torch().double().movedim(-1, 1)


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found.double() - wanted).abs().max() / wanted.abs().max()).item()


@pytest.mark.parametrize(("dtype", "limit"), [(HALF, 2e-3), (BFLOAT, 2e-2), (SINGLE, 1e-4)])
@pytest.mark.parametrize(
    ("x", "w", "stride", "padding", "groups"),
    [
        ((4, 28, 28, 64), (64, 3, 3, 64), 1, 1, 1),
        ((4, 28, 28, 64), (128, 1, 1, 64), 2, 0, 1),
        ((2, 64, 64, 3), (64, 7, 7, 3), 2, 3, 1),
        ((2, 14, 14, 32), (64, 3, 3, 8), 1, 1, 4),
        ((2, 14, 14, 32), (64, 3, 3, 32), 1, (1, 0, 2, 1), 1),
    ],
)
def test_convolutions_of_networks(
    dtype: torch.dtype, limit: float, x: Any, w: Any, stride: int, padding: Any, groups: int
) -> None:
    image, kernel = numbers(*x, dtype=dtype), numbers(*w, dtype=dtype)
    how = stride, padding, 1, groups, *LAST
    y = op.conv2d.plain(image, kernel, *how)
    top, left, bottom, right = padding if isinstance(padding, tuple) else (padding,) * 4
    wide, weight = first(image).requires_grad_(), first(kernel).requires_grad_()
    wanted = F.conv2d(F.pad(wide, (left, right, top, bottom)), weight, None, stride, 0, 1, groups)
    assert relative(y.torch().movedim(-1, 1), wanted) < limit
    dy = numbers(*y.shape, dtype=dtype)
    dx, dw = torch.autograd.grad(wanted, (wide, weight), first(dy))
    found = op.conv2d_dx(kernel, None, dy, x, *how)
    assert relative(found.torch().movedim(-1, 1), dx) < limit
    found = op.conv2d_dw(image, None, dy, w, *how)
    assert relative(found.torch().movedim(-1, 1), dw) < limit


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_fused_convolutions(adds: bool, relu: bool, last: bool) -> None:
    # Images of half precision whose channels come first are laid out anew, by another pass.
    layouts, axis = (LAST, 3) if last else (("NCHW", "OIHW", "NCHW"), 1)
    dtype = HALF if last else SINGLE
    x = numbers(*((2, 14, 14, 16) if last else (2, 16, 14, 14)), dtype=dtype)
    w = numbers(*((32, 3, 3, 16) if last else (32, 16, 3, 3)), dtype=dtype)
    z = numbers(*((2, 14, 14, 32) if last else (2, 32, 14, 14)), dtype=dtype)
    b = numbers(32, dtype=dtype)

    @meta.model.trace
    def block(x: Any, w: Any, b: Any, z: Any) -> Any:
        y = op.bias_add(op.conv2d.plain(x, w, 1, 1, 1, 1, *layouts), b, axis)
        y = op.add(y, z) if adds else y
        return op.relu(y) if relu else y

    compiled = meta.vm.compile(block, x, w, b, z)
    name = "cudnn.conv2d_bias" + "_add" * adds + "_relu" * relu
    assert compiled.kernels() == {name: 1}
    image, kernel = (first(x), first(w)) if last else (x.torch().double(), w.torch().double())
    wanted = F.conv2d(image, kernel, b.torch().double(), 1, 1)
    wanted = wanted.movedim(1, -1) if last else wanted
    wanted = wanted + z.torch().double() if adds else wanted
    assert relative(compiled(x, w, b, z).torch(), wanted.relu() if relu else wanted) < 2e-3


@pytest.mark.parametrize("dtype", [HALF, BFLOAT])
@pytest.mark.parametrize(
    ("x", "w"),
    [
        ((64, 56, 56, 64), (256, 1, 1, 64)),
        ((64, 28, 28, 128), (512, 1, 1, 128)),
        ((8, 14, 14, 256), (1024, 1, 1, 256)),
        ((64, 56, 56, 64), (64, 3, 3, 64)),
        ((2, 7, 7, 512), (512, 3, 3, 512)),
        ((1, 13, 11, 24), (40, 5, 5, 24)),
    ],
)
def test_a_sum_is_written_over_what_is_added(dtype: torch.dtype, x: Any, w: Any) -> None:
    image, kernel, b = (numbers(*s, dtype=dtype) for s in (x, w, w[:1]))
    z = numbers(*x[:3], w[0], dtype=dtype)
    padding = w[1] // 2
    options = {"stride": 1, "padding": padding, "dilation": 1, "groups": 1, "axis": 3}
    captures = {
        n: meta.ir.TensorType(t.shape, t.dtype)
        for n, t in {"x": image, "w": kernel, "b": b, "z": z}.items()
    }
    layouts = dict(zip(("layout", "kernel_layout", "out_layout"), LAST, strict=True))
    pattern = cudnn.patterns["conv2d_bias_add_relu"]
    result = captures["z"]
    run = pattern.prepare({**captures, **options, **layouts}, result, Device("cuda:0")).run
    given = [t.torch() for t in (image, kernel, b, z)]
    out = torch.empty_like(given[3])
    run(*given, out)
    for _ in range(3):
        over = given[3].clone()
        run(*given[:3], over, over)
        assert torch.equal(over, out)


@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_networks(layout: str, masked: bool) -> None:
    shape = (4, 12, 128, 64) if layout == "BHSD" else (4, 128, 12, 64)
    query, key, value = (meta.ndarray(numbers(*shape).torch() * f) for f in (1.0, 0.5, 2.0))
    mask = torch.rand(4, 1, 1, 128, device="cuda") < 0.8 if masked else None
    if mask is not None:
        mask[1] = False  # its queries look nowhere
    seen = None if mask is None else meta.ndarray(mask)
    y, logsumexp = op.fused_attention(query, key, value, seen, layout=layout)
    dy = numbers(*shape)
    arguments = query, key, value, seen, y, logsumexp, dy
    found = op.fused_attention_dx(*arguments, layout=layout)
    with only("torch"):
        wide = [meta.ndarray(t.torch().double()) for t in (query, key, value, dy)]
        wanted = op.fused_attention(*wide[:3], seen, layout=layout)
        more = *wide[:3], seen, *wanted, wide[3]
        gradients = op.fused_attention_dx(*more, layout=layout)
    assert relative(y.torch(), wanted[0].torch()) < 2e-3
    torch.testing.assert_close(logsumexp.torch().double(), wanted[1].torch(), atol=1e-4, rtol=1e-5)
    for one, expected in zip(found, gradients, strict=True):
        assert relative(one.torch(), expected.torch()) < 5e-3


def test_a_graph_replays_what_it_captured() -> None:
    x, w = numbers(4, 28, 28, 64), numbers(64, 3, 3, 64)
    q = numbers(2, 4, 64, 64)

    def step() -> tuple[meta.ndarray, ...]:
        y = op.conv2d.plain(x, w, 1, 1, 1, 1, *LAST)
        return y, op.fused_attention(q, q, q)[0], op.softmax(q)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    x.torch().mul_(0.5)
    q.torch().mul_(0.5)
    graph.replay()
    for one, expected in zip(captured, step(), strict=True):
        assert torch.equal(one.torch(), expected.torch())


def test_two_streams() -> None:
    x, w = numbers(8, 56, 56, 64), numbers(64, 3, 3, 64)
    wanted = op.conv2d.plain(x, w, 1, 1, 1, 1, *LAST).torch()
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for turn in range(8):
        with torch.cuda.stream(streams[turn % 2]):
            torch.cuda._sleep(100_000)
            mine = meta.ndarray(x.torch() + 0.0)  # a kernel of another stream would read too early
            found.append(op.conv2d.plain(mine, w, 1, 1, 1, 1, *LAST).torch())
    torch.cuda.synchronize()
    assert all(torch.equal(one, wanted) for one in found)


def test_float32_is_exact_unless_tf32_is_allowed() -> None:
    x, w = numbers(4, 64, 28, 28, dtype=SINGLE), numbers(64, 64, 3, 3, dtype=SINGLE)
    wanted = F.conv2d(x.torch().double(), w.torch().double(), None, 1, 1)
    assert relative(op.conv2d(x, w, None, 1, 1).torch(), wanted) < 2e-5
    with config.override(META_TF32=True):
        assert 2e-5 < relative(op.conv2d(x, w, None, 1, 1).torch(), wanted) < 2e-3
    assert relative(op.conv2d(x, w, None, 1, 1).torch(), wanted) < 2e-5


def test_a_call_without_a_plan_is_refused_with_the_reason() -> None:
    q = numbers(1, 1, 8, 7)  # rows of 14 bytes
    with pytest.raises(DispatchError, match=r"cuDNN has no plan: .+") as caught:
        op.fused_attention(q, q, q)
    assert "cudnn" in str(caught.value)
    with only("cudnn", "tvm"):
        assert op.fused_attention(q, q, q)[0].shape == q.shape


def test_a_plan_out_of_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    q, results, restored = numbers(2, 4, 64, 32), [], []
    read = plans._restored
    monkeypatch.setattr(plans, "_restored", lambda key: restored.append(read(key)) or restored[-1])
    for _ in range(2):
        monkeypatch.setattr(plans, "_plans", type(plans._plans)())
        forget()
        results.append(op.fused_attention(q, q, q, None, True, 0.3))
    assert restored[0] is None and restored[1] is not None
    for one, expected in zip(*results, strict=True):
        assert torch.equal(one.torch(), expected.torch())
