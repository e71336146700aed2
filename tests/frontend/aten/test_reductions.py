"""Reductions, running results and orders: what torch's samples do not reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.frontend import from_torch
from meta.frontend.aten import AtenError
from tests.frontend.aten.calls import Call, call, check, check_symbolic

A = torch.tensor([[1.0, -2.5, 3.0], [0.5, 3.0, 3.0]])
NANS = torch.tensor([[1.0, float("nan"), 3.0, float("nan")], [2.0, -1.0, 5.0, 4.0]])
I = torch.tensor([[3, -7, 3], [2, 9, 9]])  # noqa: E741
U = torch.tensor([[0, 255], [3, 200]], dtype=torch.uint8)
BOOLS = torch.tensor([[True, False], [True, True]])
C = torch.tensor([[1 + 2j, -3j], [0j, 2 - 1j]])
SCALAR = torch.tensor(2.5)
NONE = torch.zeros(2, 0)
H = A.half()

CASES = [
    call("sum", BOOLS),
    call("sum", U),
    call("sum", C),
    call("sum", H, dtype=torch.float32),
    call("sum", I, dtype=torch.float64),
    call("sum", I, dtype=torch.int32),
    call("sum.dim_IntList", A, [], label="over all axes"),
    call("sum.dim_IntList", A, None, True),
    call("sum.dim_IntList", SCALAR, [0], True, label="0-d"),
    call("sum.dim_IntList", NONE, [1], label="of nothing"),
    call("prod", U),
    call("prod.dim_int", I, 1, True),
    call("mean", I, dtype=torch.float32),
    call("mean.dim", NONE, [1], label="of nothing"),
    call("mean.dim", C, [0]),
    call("var.correction", A, [1], correction=0.5),
    call("var.correction", A, [1], correction=5, label="no degrees of freedom"),
    call("std.correction", C, None, correction=1, label="complex"),
    call("std.dim", A, [0], False, True),
    call("var_mean.correction", A, [0, 1], correction=1, keepdim=True),
    call("std_mean", A),
    call("nansum", NANS, [1]),
    call("nanmean", NANS, [1]),
    call("amax", A, [1], True),
    call("amax", BOOLS),
    call("amin", NANS, [1]),
    call("max.dim", I, 1, label="equal elements"),
    call("max.dim", NANS, 1, True),
    call("min.dim", SCALAR, 0),
    call("argmax", I),
    call("argmin", NANS, 1, True),
    call("aminmax", NANS),
    call("aminmax", A, dim=0, keepdim=True),
    call("all.dim", U, 1, label="keeps uint8"),
    call("any", NONE),
    call("all", NONE),
    call("any.dims", A, [0, 1]),
    call("all.dims", U, []),
    call("count_nonzero", NANS),
    call("count_nonzero.dim_IntList", I, [0, 1]),
    call("logsumexp", I, [1]),
    *(call("linalg_vector_norm", A, p, [1]) for p in (0, 1, 2, 3, -1, 0.5)),
    call("linalg_vector_norm", A, float("inf"), None, True),
    call("linalg_vector_norm", C, 2, [1]),
    call("linalg_vector_norm", H, 2, dtype=torch.float32),
    call("norm.ScalarOpt_dim", A, None, [0]),
    call("dist", A, A.flip(0), 1),
    call("renorm", A, 2, 0, 1.5),
    call("trace", I),
    call("sum_to_size", A, [1, 3]),
    call("sum_to_size", A, [3]),
    call("cumsum", BOOLS, 1),
    call("cumsum", H, 0, dtype=torch.float32),
    call("cumprod", SCALAR, 0),
    call("cumprod", U, 1),
    call("cummax", NANS, 1),
    call("cummax", I, 1, label="of equal ones the last"),
    call("cummin", BOOLS, 1),
    call("cummin", NONE, 1),
    call("logcumsumexp", A * 100, 1),
    call("logcumsumexp", H, 1),
    call("logcumsumexp", torch.full((3,), -float("inf")), 0),
    call("diff", BOOLS, 1, 1),
    call("diff", I, 2, 1),
    call("sort", NANS, 1, True),
    call("sort.stable", I, stable=True, dim=1, descending=True),
    call("sort", BOOLS, 1),
    call("argsort.stable", I, stable=True, dim=0),
    call("topk", NANS, 2, 1),
    call("topk", SCALAR, 1),
    call("topk", A, 0),
    call("kthvalue", NANS, 3, 1, True),
    call("median", NANS),
    call("median.dim", NANS, 1),
    call("nanmedian", NANS),
    call("nanmedian.dim", NANS, 1, True),
    call("median.dim", I, 1),
    call("mode", torch.tensor([[3, 1, 1, 2, 2]]), 1),
    *(
        call(name, NANS, torch.tensor([0.3, 0.5]), 1, keepdim, interpolation=how, label=how)
        for name, keepdim in (("quantile", False), ("nanquantile", True))
        for how in ("linear", "lower", "higher", "nearest", "midpoint")
    ),
    call("quantile.scalar", A, 0.3),
    call("quantile.scalar", A, 0.3, None, True),
    call("searchsorted.Scalar", torch.tensor([1, 3, 5]), 3, right=True),
    call("searchsorted.Tensor", A.sort(1)[0], A, out_int32=True, side="right"),
    call("bucketize.Scalar", 2.5, torch.tensor([1.0, 3.0])),
    call("bucketize.Tensor", NANS, torch.tensor([1.0, 3.0])),
    call("histc", A, 4),
    call("histc", torch.full((3,), 2.0), 3),
    call("histc", A, 4, -1, 3),
    call("unique_consecutive", torch.tensor([1, 1, 2, 2, 1]), True, True),
]


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sum.dim_IntList", lambda x: (x, [1])),
        ("mean.dim", lambda x: (x, [0], True)),
        ("var.correction", lambda x: (x, [0])),
        ("amax", lambda x: (x, [1])),
        ("max.dim", lambda x: (x, 1)),
        ("argmax", lambda x: (x, 1)),
        ("cumsum", lambda x: (x, 1)),
        ("logsumexp", lambda x: (x, [1])),
        ("linalg_vector_norm", lambda x: (x, 2, [1])),
        ("sort", lambda x: (x, 1)),
        ("sum_to_size", lambda x: (x, [1, x.shape[1]])),
    ],
)
def test_extents_that_are_not_known(name: str, arguments: Any) -> None:
    check_symbolic(name, arguments, A)


class Distinct(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.unique(), torch.unique(x, dim=0), torch.unique_consecutive(x)


class Counted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.unique(x, dim=0, return_counts=True)


class Shares(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, counts = torch.unique(x, dim=0, return_counts=True)
        return values, counts * 2


class LastState(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(2, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.lstm(x)[1][0] + 1,)


@pytest.mark.parametrize("kind", [Distinct, Counted])
def test_extents_that_the_data_says(kind: Any) -> None:
    x = torch.tensor([[2.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    model = from_torch(kind(), (x,))
    for f, e in zip(model(meta.array(x)), kind()(x), strict=True):
        torch.testing.assert_close(f.torch(), e)


@pytest.mark.parametrize(("kind", "right"), [(Shares, "2.12"), (LastState, "2.13")])
def test_what_torch_states_wrongly_is_refused(kind: Any, right: str) -> None:
    """Where something is made of it, and not where it is returned."""
    x = torch.tensor([[[2.0, 1.0], [1.0, 1.0], [2.0, 1.0]]])
    x, module = x[0] if kind is Shares else x, kind()
    model = from_torch(module, (x,))
    if torch.__version__ < right:
        with pytest.raises(AtenError, match=rf"instead of .*by mistake before {right}"):
            model(meta.array(x))
        return
    for f, e in zip(model(meta.array(x)), module(x), strict=True):
        torch.testing.assert_close(f.torch(), e.detach())
