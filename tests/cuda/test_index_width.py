"""Tensors of more than 2**31 elements, whose offsets do not fit an int32, on each dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
from meta.dialect import only

ROWS, COLUMNS = 70_001, 30_701  # 2,149,100,701 elements; both prime to all tile sizes
FREE_BYTES = 24 << 30

pytestmark = pytest.mark.cuda

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
