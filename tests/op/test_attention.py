"""What attention and rotary embedding refuse, and that the message says what would do; how exact
gradients are where values have much in common.
"""

import pytest
import torch

import meta
from meta import op
from meta.base.errors import TypeInferError
from meta.dialect.torch import attention_blocks
from meta.ir.types import TensorType


def t(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(shape, dtype)


def attention(query, key, value, mask=None):
    return op.fused_attention.infer((query, key, value, mask, False, None))


@pytest.mark.parametrize(
    ("key", "value", "mask", "message"),
    [
        (t(1, 4, 5, 8, dtype="float16"), t(1, 4, 5, 8), None, "one dtype"),
        (t(1, 4, 5, 7), t(1, 4, 5, 8), None, "do not fit together"),
        (t(1, 4, 5, 8), t(1, 4, 6, 8), None, "do not fit together"),
        (t(1, 3, 5, 8), t(1, 3, 5, 8), None, "divisor of 4"),
        (t(1, 0, 5, 8), t(1, 0, 5, 8), None, "divisor of 4"),
        (t(1, 4, 5, 8), t(1, 4, 5, 8), t(3, 5, dtype="int64"), "bool or float32"),
        (t(1, 4, 5, 8), t(1, 4, 5, 8), t(4, 5), "broadcast"),
        (t(1, 4, 5, 8), t(1, 4, 5, 8), t(1, 1, 1, 3, 5), "broadcast"),
        (t(4, 5, 8), t(1, 4, 5, 8), None, "4 axes"),
    ],
)
def test_arguments_that_do_not_fit(key, value, mask, message) -> None:
    with pytest.raises(TypeInferError, match=message):
        attention(t(1, 4, 3, 8), key, value, mask)


@pytest.mark.parametrize(
    ("x", "cos", "sin", "message"),
    [
        (t(3, 5), t(3, 2), t(3, 2), "even"),
        (t(), t(), t(), "even"),
        (t(3, 4), t(3, 4), t(3, 4), "cos does not fit|cannot be broadcast"),
        (t(3, 4), t(1, 3, 2), t(1, 3, 2), "cos does not fit"),
        (t(3, 4), t(3, 2, dtype="float16"), t(3, 2, dtype="float16"), "float32"),
        (t(3, 4), t(3, 2), t(1, 2), "cos and sin differ"),
    ],
)
def test_rotary_tables_that_do_not_fit(x, cos, sin, message) -> None:
    with pytest.raises(TypeInferError, match=message):
        op.rotary_embedding.infer((x, cos, sin, False))


@pytest.mark.parametrize("heads", [2, 8])
@pytest.mark.parametrize("form", ["none", "rows", "heads", "bool", "blind"])
@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_a_single_query(layout, form, heads) -> None:
    """A step of decoding, whose heads share keys: as where keys are repeated, in float64."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 8, 1, 4, generator=generator)
    key, value = torch.randn(2, 2, heads, 9, 4, generator=generator)
    mask = torch.randn(2, 8 if form == "heads" else 1, 1, 9, generator=generator)
    if form == "bool":
        mask = mask > 0
    if form == "blind":
        mask[0] = -torch.inf
    given = None if form == "none" else mask
    scores = query.double() @ key.double().repeat_interleave(8 // heads, 1).mT / 2
    if given is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if form == "bool" else scores + mask
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.softmax(-1).masked_fill(blind, 0)
    expected = weights @ value.double().repeat_interleave(8 // heads, 1)
    logs = scores.logsumexp(-1).masked_fill(blind[..., 0], 0)

    def laid(x):
        return meta.array(x if layout == "BHSD" else x.transpose(1, 2).contiguous())

    arrays = [laid(x) for x in (query, key, value)]
    with meta.dialect.only("torch"):
        y, found = op.fused_attention(
            *arrays, None if given is None else meta.array(given), layout=layout
        )
    y = y.tensor if layout == "BHSD" else y.tensor.transpose(1, 2)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.tensor.double(), logs, rtol=1e-5, atol=1e-6)


def test_no_key_gives_zeros() -> None:
    empty = meta.zeros((1, 1, 0, 4), dtype="float32")
    query = meta.ones((1, 1, 2, 4), dtype="float32")
    y, logsumexp = meta.fused_attention(query, empty, empty)
    assert not y.torch().any() and not logsumexp.torch().any()


@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
@pytest.mark.parametrize("groups", [4, 2])
def test_what_all_values_have_in_common_does_not_drown_gradients(groups: int, layout: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query, dy = torch.randn(2, 2, 4, 9, 64, generator=generator)
    key, value = torch.randn(2, 2, groups, 9, 64, generator=generator)
    found = {}
    for dtype in (torch.float64, torch.float32):
        order = (0, 1, 2, 3) if layout == "BHSD" else (0, 2, 1, 3)
        given = [t.permute(order).contiguous().to(dtype) for t in (query, key, value + 100, dy)]
        *arrays, slope = map(meta.array, given)
        for array in arrays:
            array.requires_grad = True
        with meta.dialect.only("torch"):
            y, _ = op.fused_attention(*arrays, layout=layout)
            y.backward(slope)
        found[dtype] = [array.grad.torch().double() for array in arrays]
    # y alone is rounded by 100 * 2^-24; without the offset taken off it was 3e-5 to 4e-5.
    for exact, rounded in zip(*found.values(), strict=True):
        assert (rounded - exact).abs().max() < 2e-5 * exact.abs().max()


def test_blocks_of_scores_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of one head, with keys that no query of a block sees, are as one block."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, 37, 8), (2, 2, 21, 8), (2, 2, 21, 8), (2, 4, 37, 8)
    *arrays, dy = (meta.array(torch.randn(s, generator=generator).double()) for s in shapes)
    mask = meta.array(torch.randn((2, 1, 37, 21), generator=generator).double())
    how = {"causal": True, "window": (9, -1), "slopes": meta.array([0.1, 0.2, 0.4, 0.8], "float64")}
    how |= {"dropout_key": meta.array([11], "int64"), "dropout_p": 0.3}
    found = []
    for most in (1 << 20, 100, 1):
        monkeypatch.setattr(attention_blocks, "MOST", most)
        y, logsumexp = meta.fused_attention(*arrays, mask, **how)
        given = (*arrays, mask, y, logsumexp, dy)
        results = [y, logsumexp, *meta.fused_attention_dx(*given, **how)]
        for by in (meta.fused_attention_dmask, meta.fused_attention_dslopes):
            results.append(by(*given, **how))
        found.append([x.torch() for x in results])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b)


def test_no_scores_are_in_memory() -> None:
    """Forward and gradient with dropout take less than one array of all scores."""
    b, h, s, d = 2, 4, 512, 16

    class Attention(meta.Model):
        def build(self):
            self.parts = [meta.array(torch.randn(b, h, s, d)) for _ in range(3)]
            for part in self.parts:
                part.requires_grad = True

        @meta.model.trace
        def forward(self):
            return op.scaled_dot_product_attention(*self.parts, None, 0.2, True)

    dy = meta.array(torch.randn(b, h, s, d))
    report = meta.vm.compile(meta.model.value_and_grad(Attention()), dy).memory()
    assert report.peak < b * h * s * s, str(report)
