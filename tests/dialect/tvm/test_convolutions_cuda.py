"""Convolutions by generated CUDA kernels with what follows them, emulated, beside torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op

# x, w, and the attributes.
OFTEN = [((1, 4, 2, 2), (4, 2, 2, 1), {"groups": 2})]
MORE = [
    ((2, 6, 3, 5), (6, 2, 2, 3), {"groups": 3, "padding": 1}),
    ((1, 8, 8, 8), (8, 1, 3, 1), {"groups": 8, "stride": 2, "padding": 2}),
    ((2, 3, 5, 4), (4, 3, 3, 2), {"stride": 2, "padding": 1}),
    ((1, 3, 6, 6), (5, 3, 2, 2), {"dilation": 2}),
    ((2, 16, 9, 9), (32, 16, 3, 3), {"padding": 1}),
]
CASES = [*OFTEN, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]
BEHIND = {
    "bias": lambda y: y + op.full((1,), 0.5, "float32", device="cpu"),
    "relu, channels": lambda y: (
        op.relu(y) * op.full((y.shape[1], 1, 1), 2.0, "float32", device="cpu")
    ),
}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CASES)
def test_results(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: dict[str, int],
    behind: str,
    on_cuda: None,
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-4, 5, s, generator=generator).float() for s in (x_shape, w_shape))

    def program(x: Any, w: Any) -> Any:
        return BEHIND[behind](op.conv2d(x, w, **attributes))

    expected = F.conv2d(x, w, **attributes)
    expected = expected + 0.5 if behind == "bias" else expected.relu() * 2
    with meta.dialect.only("tvm"):
        run = meta.vm.compile(meta.model.trace(program), meta.array(x), meta.array(w))
        assert torch.equal(run(meta.array(x), meta.array(w)).torch(), expected)
