"""Recurrent layers in float64: lengths, dropout, gradients of traced and compiled programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import meta
from meta.base.errors import ArgumentError, TypeInferError
from meta.model import GRU, LSTM, RNN, LSTMCell, layers
from meta.testing import check

KINDS = ("RNN", "LSTM", "GRU")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 2, "batch_first": True, "bias": False},
]
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def pair(kind: str, **options: Any) -> tuple[meta.Model, torch.nn.Module]:
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(4, 5, **options).double()
    ours = getattr(layers, kind)(4, 5, **options).to(dtype="float64")
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def flat(result: Any) -> list[Any]:
    y, state = result
    return [y, *(state if isinstance(state, tuple) else (state,))]


@pytest.mark.product
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_lengths(kind: str, options: dict[str, Any]) -> None:
    ours, theirs = pair(kind, **options)
    first = options.get("batch_first", False)
    lengths = torch.tensor([3, 6, 1])
    x = torch.randn((3, 6, 4) if first else (6, 3, 4), dtype=torch.float64, requires_grad=True)
    packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
    y, state = theirs(packed)
    y, _ = pad_packed_sequence(y, batch_first=first)
    expected = flat((y, state))
    dys = [torch.randn_like(e) for e in expected]
    torch.autograd.backward(expected, dys)
    given, counts = meta.array(x.detach()), meta.array(lengths)
    given.requires_grad = True
    compiled = meta.vm.compile(ours, given, lengths=counts)
    for run in (
        lambda: ours.forward.function(ours, given, None, counts),
        lambda: ours(given, lengths=counts),
        lambda: compiled(given, lengths=counts),
    ):
        for found, wanted in zip(flat(run()), expected, strict=True):
            check(found, wanted.detach(), **CLOSE)
    sums = [
        meta.sum(a * meta.array(dy))
        for a, dy in zip(flat(ours(given, lengths=counts)), dys, strict=True)
    ]
    sum(sums[1:], sums[0]).backward()
    check(given.grad, x.grad, **CLOSE)
    step = meta.model.value_and_grad(ours)
    dy = (meta.array(dys[0]), tuple(map(meta.array, dys[1:])) if kind == "LSTM" else dys[1])
    arguments = (dy, meta.array(x.detach()), None, counts)
    gradients = [step(*arguments)[1], meta.vm.compile(step, *arguments)(*arguments)[1]]
    for name, wanted in theirs.named_parameters():
        check(dict(ours.named_parameters())[name].grad, wanted.grad, **CLOSE, what=name)
        for found in gradients:
            check(found[name], wanted.grad, **CLOSE, what=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_of_no_steps_that_count(kind: str) -> None:
    ours, _ = pair(kind)
    x = meta.array(torch.randn(4, 2, 4, dtype=torch.float64))
    y, *state = flat(ours(x, lengths=meta.array([0, 9])))
    whole, *ends = flat(ours(x))
    assert not y.numpy()[:, 0].any()
    check(y[:, 1], whole[:, 1].torch(), **CLOSE)
    for found, end in zip(state, ends, strict=True):
        assert not found.numpy()[:, 0].any()
        check(found[:, 1], end[:, 1].torch(), **CLOSE)


def test_more_steps_than_a_block_of_a_scan() -> None:
    ours, theirs = pair("GRU")
    x = torch.randn(70, 2, 4, dtype=torch.float64)
    check(ours(meta.array(x))[0], theirs(x)[0].detach(), **CLOSE)


def test_a_program_has_one_loop_for_any_number_of_steps() -> None:
    ours, _ = pair("LSTM")
    sizes = {
        len(str(ours.program(meta.zeros((steps, 2, 4), "float64")).module).splitlines())
        for steps in (2, 50)
    }
    assert len(sizes) == 1


def test_dropout_is_between_layers_in_train_mode() -> None:
    x = meta.array(torch.randn(6, 3, 4))
    one, two = LSTM(4, 5, 1, dropout=0.5), LSTM(4, 5, 2, dropout=0.5)
    for model, differs in ((one, False), (two, True)):
        first, second = (model(x)[0].numpy() for _ in range(2))
        assert (first != second).any() == differs
    two.eval()
    assert (two(x)[0].numpy() == two(x)[0].numpy()).all()


X = meta.zeros((5, 3, 4))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: RNN(4, 5, nonlinearity="sigmoid"), ArgumentError, "tanh or relu"),
        (lambda: GRU(4, 0), ArgumentError, "below 1"),
        (lambda: GRU(4, 5, 0), ArgumentError, "num_layers >= 1"),
        (lambda: GRU(4, 5, dropout=1.0), ArgumentError, "0 <= dropout < 1"),
        (lambda: GRU(4, 5)(meta.zeros((5, 3, 3))), TypeInferError, "the last of 4"),
        (lambda: LSTM(4, 5)(X, X), TypeInferError, "a tuple of 2 arrays"),
        (lambda: GRU(4, 5)(X, meta.zeros((2, 3, 5))), TypeInferError, r"\(1, 3, 5\)"),
        (lambda: GRU(4, 5)(X, lengths=meta.array([1, 2])), TypeInferError, r"shape \(3,\)"),
        (lambda: GRU(4, 5)(X, lengths=[1, 2, 3]), TypeInferError, "meta.array"),
        (lambda: GRU(4, 5)(X[0], lengths=meta.array([1])), TypeInferError, "three axes"),
        (lambda: GRU(4, 5)(X[:0]), TypeInferError, "needs rows"),
        (lambda: LSTMCell(4, 5)(X), TypeInferError, "1 or 2 axes"),
    ],
)
def test_what_cannot_be(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()
