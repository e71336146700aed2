"""Attention in all of torch's forms: results, sums of exponentials, and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.frontend.aten.graph import convert
from meta.frontend.core import Unconvertible
from tests.frontend.aten.calls import Call, call, check, check_symbolic, draws, ours

aten = torch.ops.aten


Q, K, V = draws(2, 4, 5, 8), draws(2, 4, 7, 8), draws(2, 4, 7, 8) + 1
MASK = draws(2, 1, 5, 7)
BOOLS = MASK > -0.5
DOUBLE = tuple(t.double() for t in (Q, K, V))
HALF = tuple(t.bfloat16() for t in (Q, K, V))
SDPA = "scaled_dot_product_attention"
CPU = "_scaled_dot_product_flash_attention_for_cpu"

CASES = [
    call(SDPA, Q, K, V),
    call(SDPA, Q, K, V, MASK, label="numbers"),
    call(SDPA, Q, K, V, BOOLS, label="bools"),
    call(SDPA, Q, K, V, None, 0.0, True, label="causal"),
    call(SDPA, Q, K, V, scale=0.3),
    call(SDPA, Q, K[:, :2], V[:, :2], enable_gqa=True, label="shared heads"),
    call(SDPA, Q[0], K[0], V[0], label="without a batch"),
    call(SDPA, *HALF),
    call("_scaled_dot_product_attention_math", Q, K, V),
    call("_scaled_dot_product_attention_math", Q, K, V, MASK),
    call("_scaled_dot_product_attention_math", Q, Q, Q, None, 0.0, True),
    call(CPU, Q, K, V),
    call(CPU, Q, Q, Q, 0.0, True),
    call(CPU, Q, K, V, attn_mask=MASK, scale=0.3),
    call(CPU, *DOUBLE),
    call(CPU, *HALF),
    call("_masked_softmax", draws(2, 3, 4, 4), draws(4, 4) > 0, -1, 0),
    call("_masked_softmax", draws(2, 3, 4, 4), draws(2, 4) > 0, 3, 1),
    call("_masked_softmax", draws(2, 3, 4, 4), draws(2, 3, 4, 4) > 0, None, 2),
]


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)


WIDTH = 8
LAYER = [
    draws(24, WIDTH), draws(24), draws(WIDTH, WIDTH), draws(WIDTH),
    draws(WIDTH) + 1, draws(WIDTH), draws(WIDTH) + 2, draws(WIDTH) - 1,
    draws(12, WIDTH), draws(12), draws(WIDTH, 12), draws(WIDTH) * 2,
]  # fmt: skip
SEQUENCES = draws(2, 5, WIDTH)
PAIRS = torch.ones(5, 5).triu(1).bool()
PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("use_gelu", [False, True])
@pytest.mark.parametrize(
    "mask", [(None, None), (PAIRS, 0), (PADDED, 1)], ids=["all", "pairs", "padded"]
)
def test_layers_of_transformers(mask: Any, use_gelu: bool, norm_first: bool) -> None:
    options = (use_gelu, norm_first, 1e-5)
    args = (SEQUENCES, WIDTH, 2, *LAYER[:4], *options, *LAYER[4:], *mask)
    check(Call("_transformer_encoder_layer_fwd", args))
    options = (False, True, mask[1])
    args = (*(SEQUENCES,) * 3, WIDTH, 2, *LAYER[:4], mask[0], *options)
    expected = aten._native_multi_head_attention.default(*args)[0]
    x = meta.array(SEQUENCES)
    found = convert(aten._native_multi_head_attention.default, (x, x, x, *ours(args[3:])), {})[0]
    torch.testing.assert_close(found.torch(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", [None, MASK], ids=["plain", "masked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_take_what_the_result_saves(
    mask: torch.Tensor | None, dtype: torch.dtype
) -> None:
    q, k, v = (t.to(dtype) for t in (Q, K, V))
    mask = None if mask is None else mask.to(dtype)
    options: dict[str, Any] = {"attn_mask": mask, "scale": 0.4}
    y, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, **options)
    args = (torch.ones_like(y), q, k, v, y, logsumexp, 0.0, False)
    check(Call(f"{CPU}_backward", args, options))


GPU = {
    "flash": (
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_backward.default,
    ),
    "efficient": (
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_efficient_attention_backward.default,
    ),
    "cudnn": (
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_cudnn_attention_backward.default,
    ),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", GPU)
def test_kernels_of_gpus(kind: str, causal: bool) -> None:
    """torch has none of them on the CPU: the result, and gradients from what is saved, are those of
    the function, and everything has the types that torch says.
    """
    forward, backward = GPU[kind]
    q, k, v = (t.detach().requires_grad_() for t in (Q, Q + 1, Q - 1))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    dy = torch.ones_like(expected) * expected.detach()
    wanted = torch.autograd.grad(expected, (q, k, v), dy)
    given = ours((Q, Q + 1, Q - 1))
    bias = () if kind == "flash" else (None, True)
    saved = convert(forward, (*given, *bias, 0.0, causal), {})
    torch.testing.assert_close(saved[0].torch(), expected)
    if kind == "efficient":
        assert saved[1].shape == (2, 4, 32)
        rest = (None, saved[0], saved[1], saved[2], saved[3], 0.0, [True] * 3 + [False], causal)
    elif kind == "flash":
        rest = (*saved[:4], 5, 5, 0.0, causal, *saved[6:8])
    else:
        assert saved[1].shape == (2, 4, 5, 1)
        rest = (*saved[:2], *saved[6:8], None, None, None, 5, 5, 0.0, causal)
    found = convert(backward, (meta.array(dy), *given, *rest), {})
    for f, e in zip(found[:3], wanted, strict=True):
        torch.testing.assert_close(f.torch(), e, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_mask() -> None:
    mask = MASK.detach().requires_grad_()
    expected = torch.nn.functional.scaled_dot_product_attention(Q, K, V, mask)
    (wanted,) = torch.autograd.grad(expected.sum(), (mask,))
    forward, backward = GPU["efficient"]
    q, k, v, bias = ours((Q, K, V, MASK))
    y, logsumexp, *seeds = convert(forward, (q, k, v, bias, True), {})
    dy = meta.ones_like(y)
    rest = (bias, y, logsumexp, *seeds, 0.0, [False, False, False, True])
    found = convert(backward, (dy, q, k, v, *rest), {})
    assert found[:3] == (None, None, None)
    torch.testing.assert_close(found[3].torch(), wanted, rtol=1e-4, atol=1e-5)


def test_dropout_is_declined() -> None:
    q, k, v = ours((Q, K, V))
    with pytest.raises(Unconvertible, match="generator"):
        convert(GPU["flash"][0], (q, k, v, 0.5), {})


@pytest.mark.parametrize("causal", [False, True])
def test_of_symbolic_extents(causal: bool) -> None:
    extents = (("n", 4, "s", 8),) * 3
    check_symbolic(SDPA, lambda *x: (*x, None, 0.0, causal), Q, Q, Q, extents=extents)
