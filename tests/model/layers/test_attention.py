"""Multi-head attention and transformers in float64: masks, weights, gradients, dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.errors import ArgumentError, TypeInferError
from meta.model import (
    MultiheadAttention,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from meta.testing import check

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
N, QUERIES, KEYS, WIDTH, HEADS = 2, 3, 5, 8, 2

torch.manual_seed(0)
PADDING = torch.tensor([[False, False, True, False, True], [False] * 5])
PAIRS = torch.tensor([[False, True, False, False, False]] * QUERIES)
OF_HEADS = torch.rand(N * HEADS, QUERIES, KEYS) > 0.8
OF_HEADS[:, :, 0] = False
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "pairs": {"attn_mask": PAIRS},
    "heads": {"attn_mask": OF_HEADS},
    "both": {"key_padding_mask": PADDING, "attn_mask": PAIRS},
    "added": {"attn_mask": torch.randn(QUERIES, KEYS, dtype=torch.float64)},
    "added and added": {
        "attn_mask": torch.randn(N * HEADS, QUERIES, KEYS, dtype=torch.float64),
        "key_padding_mask": torch.randn(N, KEYS, dtype=torch.float64),
    },
}


def attention(**options: Any) -> tuple[meta.Model, torch.nn.Module]:
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, **options).double()
    for bias in (theirs.in_proj_bias, theirs.out_proj.bias):
        if bias is not None:
            torch.nn.init.normal_(bias)
    ours = MultiheadAttention(WIDTH, HEADS, **options).to(dtype="float64")
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masks", MASKS)
def test_masks(masks: str, need_weights: bool) -> None:
    ours, theirs = attention(batch_first=True, kdim=6, vdim=7)
    shapes = ((N, QUERIES, WIDTH), (N, KEYS, 6), (N, KEYS, 7))
    xs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    expected, weights = theirs(*xs, need_weights=need_weights, **MASKS[masks])
    dy = torch.randn_like(expected)
    expected.backward(dy)
    given = [meta.array(x.detach()) for x in xs]
    for x in given:
        x.requires_grad = True
    options = {n: meta.array(m) for n, m in MASKS[masks].items()} | {"need_weights": need_weights}
    compiled = meta.vm.compile(ours, *given, **options)
    for y, found in (compiled(*given, **options), ours(*given, **options)):
        check(y, expected.detach(), **CLOSE)
        assert (found is None) == (weights is None)
        if need_weights:
            check(found, weights.detach(), **CLOSE)
    y.backward(meta.array(dy))
    for x, wanted in zip(given, xs, strict=True):
        check(x.grad, wanted.grad, **CLOSE)
    for name, wanted in theirs.named_parameters():
        check(dict(ours.named_parameters())[name].grad, wanted.grad, **CLOSE, what=name)


@pytest.mark.parametrize("need_weights", [True, False])
def test_causal(need_weights: bool) -> None:
    ours, theirs = attention(bias=False)
    x = torch.randn(QUERIES, N, WIDTH, dtype=torch.float64)
    mask = torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1)
    expected, _ = theirs(x, x, x, attn_mask=mask)
    given = meta.array(x)
    y, _ = ours(given, given, given, need_weights=need_weights, is_causal=True)
    check(y, expected.detach(), **CLOSE)


def test_weights_of_each_head_of_one_example() -> None:
    ours, theirs = attention()
    query, key = (torch.randn(s, WIDTH, dtype=torch.float64) for s in (QUERIES, KEYS))
    padding = PADDING[0]
    expected = theirs(query, key, key, padding, average_attn_weights=False)
    q, k = meta.array(query), meta.array(key)
    found = ours(q, k, k, meta.array(padding), average_attn_weights=False)
    for y, wanted in zip(found, expected, strict=True):
        check(y, wanted.detach(), **CLOSE)


@pytest.mark.parametrize("added", [False, True])
def test_a_bool_mask_beside_one_that_is_added(added: bool) -> None:
    ours, _ = attention(batch_first=True)
    x = meta.array(torch.randn(N, KEYS, WIDTH, dtype=torch.float64))
    bias = torch.randn(KEYS, KEYS, dtype=torch.float64) if added else torch.zeros(KEYS, KEYS)
    masks = {"key_padding_mask": meta.array(PADDING), "attn_mask": meta.array(bias)}
    fused, none = ours(x, x, x, need_weights=False, **masks)
    plain, weights = ours(x, x, x, **masks)
    assert none is None
    check(fused, plain.detach().torch(), **CLOSE)
    assert not weights.numpy()[0][:, [2, 4]].any()


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_query_that_may_look_nowhere(need_weights: bool) -> None:
    ours = MultiheadAttention(WIDTH, HEADS, bias=False)
    x = meta.ones((2, 1, WIDTH))
    mask = meta.array([[True, True], [False, False]])
    y, _ = ours(x, x, x, need_weights=need_weights, attn_mask=mask)
    assert not y.numpy()[0].any()
    assert y.numpy()[1].any()


def test_dropout_of_weights_in_train_mode() -> None:
    model = MultiheadAttention(WIDTH, HEADS, 0.5)
    x = meta.array(torch.randn(QUERIES, N, WIDTH))
    first, second = (model(x, x, x, need_weights=False)[0].numpy() for _ in range(2))
    assert (first != second).any()
    model.eval()
    first, second = (model(x, x, x, need_weights=False)[0].numpy() for _ in range(2))
    assert (first == second).all()


@pytest.mark.product
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_and_decoder(norm_first: bool, batch_first: bool) -> None:
    torch.manual_seed(1)
    options: dict[str, Any] = {"batch_first": batch_first, "norm_first": norm_first}
    of_torch = torch.nn
    encoder = of_torch.TransformerEncoder(
        of_torch.TransformerEncoderLayer(WIDTH, HEADS, 6, 0.0, "gelu", **options),
        2,
        of_torch.LayerNorm(WIDTH),
        enable_nested_tensor=False,
    ).double()
    decoder = of_torch.TransformerDecoder(
        of_torch.TransformerDecoderLayer(WIDTH, HEADS, 6, 0.0, **options), 2
    ).double()
    ours = TransformerEncoder(
        TransformerEncoderLayer(WIDTH, HEADS, 6, 0.0, "gelu", **options),
        2,
        meta.model.LayerNorm(WIDTH),
    ).to(dtype="float64")
    second = TransformerDecoder(TransformerDecoderLayer(WIDTH, HEADS, 6, 0.0, **options), 2).to(
        dtype="float64"
    )
    ours.load_state_dict(encoder.state_dict())
    second.load_state_dict(decoder.state_dict())
    source, target = ((N, KEYS, WIDTH), (N, QUERIES, WIDTH))
    shapes = [s if batch_first else (s[1], s[0], s[2]) for s in (source, target)]
    src, tgt = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    causal = torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1)
    memory = encoder(src, src_key_padding_mask=PADDING)
    expected = decoder(tgt, memory, tgt_mask=causal, memory_key_padding_mask=PADDING)
    dy = torch.randn_like(expected)
    expected.backward(dy)
    padding = meta.array(PADDING)
    given = [meta.array(x.detach()) for x in (src, tgt)]
    for x in given:
        x.requires_grad = True
    found = ours(given[0], src_key_padding_mask=padding)
    check(found, memory.detach(), **CLOSE)
    y = second(given[1], found, memory_key_padding_mask=padding, tgt_is_causal=True)
    check(y, expected.detach(), **CLOSE)
    y.backward(meta.array(dy))
    check(given[0].grad, src.grad, **CLOSE)
    check(given[1].grad, tgt.grad, **CLOSE)
    for model, theirs in ((ours, encoder), (second, decoder)):
        for name, wanted in theirs.named_parameters():
            check(dict(model.named_parameters())[name].grad, wanted.grad, **CLOSE, what=name)
    step = meta.model.value_and_grad(second)
    memory_of_ours = found.detach()
    arguments = (meta.array(dy), given[1].detach(), memory_of_ours)
    options = {"memory_key_padding_mask": padding, "tgt_is_causal": True}
    _, gradients = meta.vm.compile(step, *arguments, **options)(*arguments, **options)
    for name, wanted in decoder.named_parameters():
        check(gradients[name], wanted.grad, **CLOSE, what=name)


X = meta.zeros((3, 2, 8))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: MultiheadAttention(8, 3), ArgumentError, "a divisor of 8"),
        (lambda: MultiheadAttention(8, 2, 1.0), ArgumentError, "0 <= dropout < 1"),
        (lambda: MultiheadAttention(8, 2)(X, X, X[:1]), TypeInferError, "as many keys"),
        (lambda: MultiheadAttention(8, 2)(X, X[:, :1], X[:, :1]), TypeInferError, "do not fit"),
        (
            lambda: MultiheadAttention(8, 2)(X, X, X, meta.zeros((3, 2), "bool")),
            TypeInferError,
            "key_padding_mask",
        ),
        (
            lambda: MultiheadAttention(8, 2)(X, X, X, attn_mask=meta.zeros((3, 3), "int64")),
            TypeInferError,
            "attn_mask does not fit",
        ),
        (lambda: TransformerEncoderLayer(8, 2, activation="swish"), ArgumentError, "relu, gelu"),
        (
            lambda: TransformerEncoder(TransformerEncoderLayer(8, 2, 4), 0),
            ArgumentError,
            "num_layers >= 1",
        ),
    ],
)
def test_what_cannot_be(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()
