"""Large tensors: TVM's kernels on shapes that the schedules cut in slices, as the operators' cases
are small; and tensors of more than 2**31 elements, whose offsets do not fit an int32, on each
dialect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.dialect import only
from meta.testing.compare import check

pytestmark = pytest.mark.cuda


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).cuda()


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("function", ["sum", "mean", "max", "min", "argmax", "argmin", "all"])
@pytest.mark.parametrize("shape", [(2048, 1024), (1021, 2003), (3, 500_000), (500_000, 3)])
def test_reductions(shape: tuple[int, int], function: str, axis: int | None) -> None:
    x = _random(*shape)
    like_torch = {"max": "amax", "min": "amin"}.get(function, function)
    arguments = () if axis is None else (axis,)
    expected = getattr(torch, like_torch)(x, *arguments)
    with only("tvm"):
        found = getattr(meta, function)(x, *arguments)
    scale = {"sum": x.numel() ** 0.5, "mean": 1.0}.get(function, 0.0)
    check(found, expected, 1e-4, 1e-5 * scale)


@pytest.mark.parametrize("shape", [(200_000, 10), (300, 1000), (64, 60_000), (4, 1_000_000)])
def test_rows(shape: tuple[int, int]) -> None:
    """Softmax, layer normalisation, cross entropy and its gradient."""
    x, columns = _random(*shape), shape[1]
    label = torch.arange(shape[0]).cuda() % columns
    theirs = x.clone().requires_grad_(True)
    expected = F.cross_entropy(theirs, label)
    expected.backward()
    ones = torch.ones(columns).cuda()
    with only("tvm"):
        check(op.softmax(x), torch.softmax(x, -1), 1e-4, 1e-7)
        check(op.log_softmax(x), torch.log_softmax(x, -1), 1e-4, 1e-4)
        check(
            op.layer_norm.plain(x, ones, ones), F.layer_norm(x, (columns,), ones, ones), 1e-4, 1e-4
        )
        check(op.cross_entropy(x, label), expected, 1e-4, 1e-5)
        gradient = op.cross_entropy_dpred(torch.ones(()).cuda(), x, label)
    check(gradient, theirs.grad, 1e-4, 1e-8)


@pytest.mark.parametrize("shape", [(32, 64, 28, 28), (8, 1024, 7, 7), (1, 3, 512, 512)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    x, channels = _random(*shape), shape[1]

    def statistics() -> list[Any]:
        return [torch.zeros(channels).cuda(), torch.ones(channels).cuda()]

    expected, running = F.batch_norm(x, *(own := statistics()), training=True), own
    with only("tvm"):
        found = op.batch_norm_train(x, *(mine := statistics()), None, None, 0.1, 1e-5)
    check(found[0], expected, 1e-3, 1e-4)
    check(mine, running, 1e-3, 1e-5)


ROWS, COLUMNS = 70_001, 30_701  # 2,149,100,701 elements; both prime to all tile sizes
FREE_BYTES = 24 << 30


CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "bitwise_invert": (meta.bitwise_invert, torch.bitwise_not),
    "maximum": (lambda x: meta.maximum(x, 7), lambda x: x.clamp(min=7)),
    "greater": (lambda x: meta.greater(x, 100), lambda x: x > 100),
    "astype": (lambda x: meta.astype(x, "float16"), lambda x: x.half()),
    "transpose": (lambda x: meta.permute_dims(x, (1, 0)), lambda x: x.t().contiguous()),
    "flip": (lambda x: meta.flip(x, (0, 1)), lambda x: x.flip(0, 1)),
    "max_first": (lambda x: meta.max(x, 0), lambda x: x.amax(0)),
    "max_last": (lambda x: meta.max(x, 1), lambda x: x.amax(1)),
    "max_all": (lambda x: meta.max(x), lambda x: x.amax()),
    "pad": (
        lambda x: meta.pad(x, ((0, 1), (2, 0)), constant_values=3),
        lambda x: torch.nn.functional.pad(x, (2, 0, 0, 1), value=3),
    ),
    "reshape": (lambda x: meta.reshape(x, (-1,)), lambda x: x.reshape(-1)),
    "tail": (
        lambda x: meta.strided_slice(x, (ROWS - 2, 0), (ROWS, COLUMNS), (1, 3)),
        lambda x: x[-2:, ::3].contiguous(),
    ),
    "take": (
        lambda x: meta.take(x, torch.tensor([ROWS - 1, 0], device="cuda"), 0),
        lambda x: x[[ROWS - 1, 0]],
    ),
    "concat": (
        lambda x: meta.concat((x[: ROWS // 2], x[ROWS // 2 :]), 0),
        lambda x: x,
    ),
}


@pytest.fixture(scope="module")
def large() -> torch.Tensor:
    if torch.cuda.mem_get_info()[0] < FREE_BYTES:
        pytest.skip(f"needs {FREE_BYTES >> 30} GiB of GPU memory")
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (ROWS, COLUMNS)
    return torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda", generator=generator)


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize("name", CALLS)
def test_large_tensors(name: str, dialect: str, large: torch.Tensor) -> None:
    ours, theirs = CALLS[name]
    with only(dialect):
        found = ours(large)
    assert torch.equal(found.torch(), theirs(large))
