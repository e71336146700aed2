"""Kernels of the `cuda` dialect at sizes that take each of their ways; the records of the operators
are smaller.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.dialect import only
from meta.testing.compare import check

pytestmark = pytest.mark.cuda
BOUNDS = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-4}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator).to("cuda", dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    ("rows", "count", "width", "often"),
    [
        (3000, 4096, 96, 0.0),  # most rows are named once or never
        (3000, 4096, 96, 0.6),  # one row is named by most
        (2, 4096, 64, 0.0),  # few rows: all warps share each
        (20, 20000, 24, 0.0),  # more indices than a thread block notes
        (700, 9000, 13, 0.9),  # nothing is aligned
        (50, 0, 8, 0.0),
    ],
)
def test_the_gradient_of_an_embedding(
    rows: int, count: int, width: int, often: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(rows, (count,), generator=generator)
    indices[torch.rand(count, generator=generator) < often] = 1
    indices, dy = indices.cuda(), random(count, width, dtype=dtype)
    expected = torch.zeros(rows, width, dtype=torch.float64, device="cuda")
    expected.index_add_(0, indices, dy.double())
    with only("cuda"):
        found, again = (
            op.embedding_dx(meta.array(dy), meta.array(indices), rows).torch() for _ in range(2)
        )
    assert torch.equal(found, again)  # the order of addition is always the same
    check(found, expected, BOUNDS[dtype], BOUNDS[dtype])


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("width", [1, 13, 384, 768, 1000, 1536, 3072, 8192])
def test_layer_norm(width: int, start: int, dtype: torch.dtype) -> None:
    """Rows of one warp, of several, and of a whole thread block, at any address."""
    flat = random(2 * (37 * width + start), dtype=dtype)
    x, dy = (flat[start + i * 37 * width :][: 37 * width].view(37, width) for i in range(2))
    scale, bias = random(width), random(1, width)[0]
    exact = [t.double().requires_grad_() for t in (x, scale, bias)]
    y = F.layer_norm(exact[0], (width,), exact[1], exact[2])
    y.backward(dy.double())
    with only("cuda"):
        arrays = [meta.ndarray(t) for t in (x, scale)]
        found = op.layer_norm.plain(*arrays, meta.ndarray(bias))
        gradients = op.layer_norm_dx(*arrays, meta.ndarray(dy))
    check(found.torch(), y.detach(), BOUNDS[dtype], BOUNDS[dtype])
    for gradient, one in zip(gradients, exact, strict=True):
        check(gradient.torch(), one.grad, 10 * BOUNDS[dtype], 10 * BOUNDS[dtype])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_stream_is_added_to_and_normalised(dtype: str) -> None:
    def block(x, stream, scale, bias):
        total = op.add(op.astype(x, "float32"), stream)
        rounded = op.astype(total, dtype)
        return total, rounded, op.layer_norm.plain(rounded, scale, bias)

    x, stream = random(300, 768, dtype=getattr(torch, dtype)), random(3, 76800).view(300, 768)
    scale, bias = random(768), random(1, 768)[0]
    given = [meta.array(t) for t in (x, stream, scale, bias)]
    executable = meta.vm.compile(meta.model.trace(block), *given)
    assert list(executable.kernels()) == ["cuda.mixed_add_layer_norm_all"]
    total, rounded, y = (one.torch() for one in executable(*given))
    assert torch.equal(total, x + stream)
    assert torch.equal(rounded, total.to(x.dtype))
    exact = F.layer_norm(rounded.double(), (768,), scale.double(), bias.double())
    check(y, exact, BOUNDS[x.dtype], BOUNDS[x.dtype])


def test_another_gradient_of_a_table_is_added() -> None:
    def gradient(dy, indices, other):
        rows = op.astype(op.strided_slice(other, (0,), (3000,)), "float32")
        return op.add(rows, op.embedding_dx(dy, indices, (3000, 96)))

    dy, other = random(4096, 96), random(3008, 96, dtype=torch.float16)
    indices = torch.randint(3000, (4096,), generator=torch.Generator().manual_seed(0)).cuda()
    given = [meta.array(t) for t in (dy, indices, other)]
    executable = meta.vm.compile(meta.model.trace(gradient), *given)
    assert list(executable.kernels()) == ["cuda.embedding_dx_add"]
    expected = other[:3000].double().index_add_(0, indices, dy.double())
    check(executable(*given).torch(), expected, 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    ("extents", "kernel", "stride", "padding"),
    [
        ((8, 56, 56, 96), 7, 1, 3),
        ((4, 28, 28, 240), 5, 1, 2),
        ((2, 113, 112, 32), 3, 2, 1),
        ((3, 7, 7, 768), 7, 1, 3),
        ((2, 15, 14, 33), 3, 2, 1),  # channels one by one
    ],
)
def test_depthwise_convolutions(
    extents: tuple[int, ...], kernel: int, stride: int, padding: int, dtype: torch.dtype
) -> None:
    check_convolution(extents, extents[3], kernel, stride, padding, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("extents", "groups", "kernel", "stride", "padding"),
    [
        ((8, 56, 56, 48), 2, 3, 1, 1),
        ((2, 113, 112, 48), 2, 3, 2, 1),
        ((9, 7, 7, 888), 37, 3, 1, 1),  # groups left over
        ((2, 28, 28, 512), 32, 3, 2, 1),
        ((2, 14, 14, 48), 2, 5, 1, 2),  # results in parts
        ((2, 15, 14, 64), 4, 5, 3, 2),
    ],
)
def test_convolutions_in_groups(
    extents: tuple[int, ...], groups: int, kernel: int, stride: int, padding: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    check_convolution(extents, groups, kernel, stride, padding, dtype)


def check_convolution(
    extents: tuple[int, ...], groups: int, kernel: int, stride: int, padding: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """Check a convolution to as many channels, and its gradients, by the `cuda` dialect alone."""
    channels = extents[3]
    x = random(*extents, dtype=dtype)
    w = random(channels, kernel, kernel, channels // groups, dtype=dtype)
    how = stride, padding, 1, groups, "NHWC", "OHWI", "NHWC"
    wide, weight = (t.double().permute(0, 3, 1, 2).requires_grad_() for t in (x, w))
    wanted = F.conv2d(wide, weight, None, stride, padding, 1, groups)
    dy = random(*wanted.permute(0, 2, 3, 1).shape, dtype=dtype)
    dx, dw = torch.autograd.grad(wanted, (wide, weight), dy.double().permute(0, 3, 1, 2))
    image, weights, back = (meta.array(t, device="cuda") for t in (x, w, dy))
    with only("cuda"):
        found = (
            op.conv2d.plain(image, weights, *how),
            op.conv2d_dx(weights, None, back, tuple(x.shape), *how),
            op.conv2d_dw(image, None, back, tuple(w.shape), *how),
        )
    for one, expected in zip(found, (wanted, dx, dw), strict=True):
        expected = expected.permute(0, 2, 3, 1).detach()
        off = (one.torch().double() - expected).abs().max() / expected.abs().max()
        assert off < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("count", [1, 30])  # of one launch, and of more tensors than 4 KB name
def test_batch_normalisation_folded_into_weights(count: int, dtype: torch.dtype) -> None:
    shapes = [(512, 3, 3, 512), (64, 7, 7, 3), (5, 1, 1, 24), (0, 2)] * count
    w = [random(*s, dtype=dtype) for s in shapes]
    mean, shift = ([random(s[0], dtype=dtype) for s in shapes] for _ in range(2))
    var = [t.abs() + 0.5 for t in mean]
    given = [[meta.array(t) for t in one] for one in (w, mean, var, shift)]
    with only("cuda"):
        found = op.multi_tensor_fold_batch_norm(*given[:3], shift=given[3], eps=1e-3)
    for i, (a, m, v, s) in enumerate(zip(w, mean, var, shift, strict=True)):
        factor = (v.double() + 1e-3).rsqrt()
        weights = a.double() * factor.reshape(-1, *[1] * (a.ndim - 1))
        check(found[i].torch(), weights, BOUNDS[dtype], BOUNDS[dtype])
        bias = s.double() - m.double() * factor
        check(found[len(w) + i].torch(), bias, BOUNDS[dtype], BOUNDS[dtype])
