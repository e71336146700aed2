"""A convolution pads with zeros itself what was padded before it."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.ir import Call, parse
from meta.passes import dead_code, infer_type, simplify

X = torch.randn(2, 3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
W = torch.randn(4, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("layout", "pad", "padding", "becomes"),
    [
        ("NCHW", "(0, 0, 0, 0, 1, 1, 2, 2)", "0", (1, 2)),
        ("NCHW", "(0, 0, 0, 0, 1, 1, 2, 2)", "(3, 1)", (4, 3)),
        ("NCHW", "(0, 0, 0, 0, 0, 1, 0, 2)", "(1, 2, 0, 0)", (1, 2)),
        ("NHWC", "(0, 0, 1, 1, 2, 2, 0, 0)", "1", (2, 3)),
        # On one side only, with other numbers, beside the image, by another mode: it stays.
        ("NCHW", "(0, 0, 0, 0, 0, 1, 0, 1)", "0", None),
        ("NCHW", "(0, 0, 0, 0, 1, 1, 1, 1), 2.0", "0", None),
        ("NCHW", "(1, 1, 0, 0, 1, 1, 1, 1)", "0", None),
        ("NCHW", '(0, 0, 0, 0, 1, 1, 1, 1), 0.0, "edge"', "0", None),
    ],
)
def test_padding(layout: str, pad: str, padding: str, becomes: tuple[int, ...] | None) -> None:
    x = X.permute(["NCHW".index(axis) for axis in layout]).contiguous()
    module = infer_type(
        parse(
            f"""func @main(%x: float64[{", ".join(map(str, x.shape))}], %w: float64[4, 3, 3, 3]) {{
            %p = pad(%x, {pad})
            %y = conv2d(%p, %w, 1, {padding}, layout="{layout}", out_layout="{layout}")
            return %y
            }}"""
        )
    )
    found = dead_code(simplify(module))
    calls = [b.value for b in found.main.body.bindings if isinstance(b.value, Call)]
    assert [c.callee.name for c in calls] == (["conv2d"] if becomes else ["pad", "conv2d"])
    if becomes is not None:
        assert calls[0].args[3] == becomes
    with meta.PassContext(disabled=["simplify"]):
        before = meta.vm.compile(module)(meta.array(x), meta.array(W)).torch()
    after = meta.vm.compile(found)(meta.array(x), meta.array(W)).torch()
    torch.testing.assert_close(after, before)
