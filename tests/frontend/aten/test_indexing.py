"""Reading and writing at indices and masks: what torch's samples do not reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.frontend.aten.graph import convert
from tests.frontend.aten.calls import Call, call, check, check_symbolic

X = torch.arange(24.0).reshape(2, 3, 4)
I = torch.tensor([2, 0, -1])  # noqa: E741
J = torch.tensor([[1], [0]])
MASK = X % 3 == 0
ROWS = torch.tensor([True, False, True])
ONE = torch.tensor(1)
C = torch.complex(X, X + 1)
BOOLS = X > 5

CASES = [
    call("index.Tensor", X, [None, I]),
    call("index.Tensor", X, [None, I, I], label="behind an axis"),
    call("index.Tensor", X, [J, None, I], label="an axis between"),
    call("index.Tensor", C, [J, I]),
    call("index.Tensor", X, [None, None, I.int()]),
    call("index.Tensor", X, [ONE, None, I], label="of no axes"),
    call("index.Tensor", X, [ONE]),
    call("index_put", X, [None, I], torch.tensor(7.0)),
    call("index_put", X, [None, I[:2]], torch.ones(2, 2, 4), label="values of each"),
    call("index_put", X, [J, None, I], torch.ones(2, 3, 3), True, label="an axis between"),
    call("index_put", X, [None, torch.tensor([0, 0, 1])], torch.ones(3, 4), True),
    call("index_put", BOOLS, [J, I], torch.tensor(True), True),
    call("index_put", X, [MASK], torch.tensor(7.0)),
    call("index_put", X, [MASK], torch.tensor([7.0]), True),
    call("index_put", X, [None, ROWS], torch.ones(2, 1, 4)),
    call("index_put", X, [None, ROWS], torch.ones(1, 4), label="values of fewer axes"),
    call("index_put", C, [None, ROWS], torch.ones(4, dtype=C.dtype)),
    call("index_select", X, -1, I + 1),
    call("index_select", torch.tensor(3.0), 0, torch.tensor([0])),
    call("index_add", BOOLS, 1, I[:1], BOOLS[:, :1]),
    call("index_add", X.half(), 2, torch.tensor([0, 0]), X[..., :2].half(), alpha=0.5),
    call("index_copy", X, 1, I[:2], X[:, :2] + 5),
    call("index_fill.int_Scalar", X, 1, I[:1], 2.5),
    call("index_fill.int_Scalar", BOOLS, 1, I[:1], 1),
    call("index_fill.int_Tensor", C, 1, I[:1], torch.tensor(2)),
    call("index_reduce", X, 1, torch.tensor([0, 0]), X[:, :2] + 2, "amax", include_self=False),
    call("gather", X, 1, torch.tensor([[[0, 1]], [[2, 0]]])),
    call("gather", X, 1, torch.zeros(1, 0, 2, dtype=torch.int64)),
    call("scatter.src", X, 2, torch.tensor([[[3, 1]]]), X * 2),
    call("scatter.value", C, 1, torch.tensor([[[0, 2]]]), 1 + 2j),
    call("scatter.value", BOOLS, 1, torch.tensor([[[0, 2]]]), 1),
    call("scatter.reduce", X, 1, torch.tensor([[[0, 2]]]), X + 2, reduce="multiply"),
    call("scatter_add", X.bfloat16(), 1, torch.tensor([[[0, 2], [0, 1]]]), X.bfloat16()),
    call("scatter_reduce.two", X, 1, torch.tensor([[[0], [0]]]), X, "mean"),
    call("scatter_reduce.two", BOOLS, 1, torch.tensor([[[0], [0]]]), BOOLS, "prod"),
    call("masked_fill.Scalar", X.int(), MASK, -1),
    call("masked_fill.Scalar", BOOLS, MASK[0], 1),
    call("masked_fill.Scalar", C, MASK, 1j),
    call("masked_fill.Scalar", X.half(), MASK, float("-inf")),
    call("masked_fill.Tensor", X, MASK[0], torch.tensor(2)),
    call("masked_fill.Scalar", torch.tensor(1.0), MASK, 2, label="x is broadcast"),
    call("masked_scatter", X, MASK, -X),
    call("masked_scatter_backward", X, MASK, [4, 6]),
    call("nonzero_static", X, size=5),
    call("nonzero_static", X[0, 0], size=7, fill_value=-9),
    call("take", X, I.abs()),
    call("put", X, I[:2], torch.tensor([7.0, 8.0]), True),
    call("take_along_dim", X, torch.tensor([[[0], [2]]]), 1),
    call("take_along_dim", X, I.abs(), None),
    call("value_selecting_reduction_backward", X[:, 0], 1, X[:, 0].long() % 3, [2, 3, 4], False),
    call("index_select_backward", X[:, :2], [2, 5, 4], 1, torch.tensor([4, 4])),
    call("gather_backward", X, X, 1, torch.zeros(2, 3, 4, dtype=torch.int64), False),
    call("_unsafe_masked_index", X, ROWS[:, None], [None, I + 5], 0.5),
    call(
        "_unsafe_masked_index_put_accumulate", X, ROWS[:, None], [None, I + 5], torch.ones(2, 3, 4)
    ),
]


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("index.Tensor", lambda x, i, v: (x, [None, i])),
        ("index.Tensor", lambda x, i, v: (x, [i * 0, None, i])),
        ("index_put", lambda x, i, v: (x, [None, i], v)),
        ("index_put", lambda x, i, v: (x, [None, i], v, True)),
        ("index_select", lambda x, i, v: (x, 1, i)),
        ("masked_fill.Scalar", lambda x, i, v: (x, x > 5, x.shape[0])),
        ("masked_scatter", lambda x, i, v: (x, x > 5, x)),
    ],
)
def test_of_symbolic_extents(name: str, arguments: Any) -> None:
    check_symbolic(name, arguments, X, torch.tensor([2, 1, 0]), torch.tensor(7.0))


@pytest.mark.parametrize("masks", [[MASK], [None, ROWS], [None, MASK[0]]])
def test_what_a_mask_selects(masks: list[Any]) -> None:
    """How many elements there are is known when the program runs."""
    target = torch.ops.aten.index.Tensor
    expected = target(X, masks)

    @meta.model.trace
    def run(x: Any, *arrays: Any) -> Any:
        given = iter(arrays)
        return convert(target, (x, [None if m is None else next(given) for m in masks]), {})

    arrays = [meta.array(m) for m in masks if m is not None]
    assert (meta.vm.compile(run, meta.array(X), *arrays)(meta.array(X), *arrays).torch()).equal(
        expected
    )
