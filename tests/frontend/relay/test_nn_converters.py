"""The converters of neural networks beyond single results: gradients, and unknown batch sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.frontend.core import CallSite
from meta.frontend.relay.registry import relay
from meta.ir import parse_type, verify
from meta.op.core import tree
from tests.frontend.relay.converters import conv_deformable, loss, norm, padding, spatial
from tests.frontend.relay.records import ConverterCase
from tests.frontend.relay.test_converters import site_of, tensor

# What is composed of several operators; those that become one are tested with it.
COMPOSED = [
    *(c for c in conv_deformable.CASES if c.refused is None and c.label != "no offset"),
    *(c for c in loss.CASES if c.refused is None),
    *(c for c in norm.CASES if c.attrs.get("axis") == 3),
    *(
        c
        for c in padding.CASES
        if c.name == "nn.dilate" and tensor(c.args[0]).dtype.is_floating_point
    ),
    *(c for c in spatial.CASES if c.name.endswith("_nd")),
]


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in COMPOSED])
def test_gradient(case: ConverterCase) -> None:
    """The derivative along a random direction is the quotient of differences, in float64."""
    args = [a.double() if a.is_floating_point() else a for a in map(tensor, case.args)]
    written = (3, 4) if case.name == "nn.batch_norm" else ()
    varied = [i for i, a in enumerate(args) if a.is_floating_point() and i not in written]
    generator = torch.Generator().manual_seed(0)

    def random(shape: Any) -> torch.Tensor:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)

    directions = {i: random(args[i].shape) for i in varied}
    share: list[torch.Tensor] = []

    def weighted(step: float) -> tuple[Any, list[Any]]:
        given = [
            meta.array(a + step * directions[i] if i in varied else a) for i, a in enumerate(args)
        ]
        for i in varied:
            given[i].requires_grad = True
        y = tree.flatten(relay.apply(site_of(case), given, case.attrs))[0][0]
        share.append(share[0] if share else random(y.shape))
        return meta.sum(y * meta.array(share[0])), given

    step = 1e-6
    with meta.dialect.only("torch"):
        value, given = weighted(0.0)
        value.backward()
        found = sum((given[i].grad.torch() * directions[i]).sum() for i in varied)
        above, below = (weighted(s)[0].torch() for s in (step, -step))
    torch.testing.assert_close(found, (above - below) / (2 * step), rtol=1e-5, atol=1e-5)


# The operator, types of its tensors, attributes, and the result's type.
UNKNOWN_BATCH = [
    ("nn.conv2d", ("float32[n, 8, 8, 3]", "float32[3, 3, 3, 4]"),
     {"data_layout": "NHWC", "kernel_layout": "HWIO"}, "float32[n, 6, 6, 4]"),
    ("nn.conv2d", ("float32[n, 2, 8, 8, 4]", "float32[4, 8, 3, 3]"),
     {"data_layout": "NCHW4c", "out_layout": "NCHW"}, "float32[n, 4, 6, 6]"),
    ("nn.conv2d_transpose", ("float32[n, 4, 5, 5]", "float32[4, 2, 3, 3]"), {},
     "float32[n, 2, 7, 7]"),
    ("nn.dense", ("float32[n, 7, 5]", "float32[4, 5]"), {}, "float32[n, 7, 4]"),
    ("nn.avg_pool2d", ("float32[n, 2, 6, 6, 4]",), {"pool_size": (2, 2), "layout": "NCHW4c"},
     "float32[n, 2, 5, 5, 4]"),
    ("nn.adaptive_max_pool2d", ("float32[n, 3, 6, 5]",), {}, "float32[n, 3, 6, 5]"),
    ("nn.global_avg_pool2d", ("float32[n, 6, 5, 3]",), {"layout": "NHWC"}, "float32[n, 1, 1, 3]"),
    ("nn.upsampling", ("float32[n, 3, 4, 5]",), {"scale_h": 2.0, "scale_w": 1.5},
     "float32[n, 3, 8, 8]"),
    ("nn.cross_entropy", ("float32[n, 5]", "float32[n, 5]"), {}, "float32[]"),
    ("nn.fifo_buffer", ("float32[n, 1]", "float32[n, 5]"), {"axis": 1}, "float32[n, 5]"),
    ("nn.dilate", ("float32[n, 3]",), {"strides": (1, 2)}, "float32[n, 5]"),
    ("nn.instance_norm", ("float32[n, 4, 5, 3]", "float32[3]", "float32[3]"), {"axis": 3},
     "float32[n, 4, 5, 3]"),
    ("nn.space_to_batch_nd", ("float32[n, 4, 6]",),
     {"block_shape": (2, 3), "paddings": ((0, 0), (0, 0))}, "float32[6*n, 2, 2]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "types", "attrs", "result"),
    [pytest.param(*c, id=f"{c[0]}{c[2]}") for c in UNKNOWN_BATCH],
)
def test_any_batch(name: str, types: tuple[str, ...], attrs: dict[str, Any], result: str) -> None:
    @meta.model.trace
    def call(*tensors: Any) -> Any:
        return relay.apply(CallSite(name, given=frozenset(attrs)), tensors, attrs)

    module = call.program(*map(parse_type, types)).module
    verify(module, typed=True)
    assert str(module.main.result_type or module.main.body.result.type) == result
