"""Products of matrices and recurrent layers: what torch's samples do not reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.frontend.aten.calls import Call, call, check, check_symbolic


def draws(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    seeded = torch.Generator().manual_seed(len(shape) * 31 + sum(shape))
    return torch.randn(shape, generator=seeded).to(dtype)


A, B, ROW = draws(3, 4), draws(4, 5), draws(5)
STACK, OTHER = draws(2, 3, 4), draws(2, 4, 5)
NAN = torch.full((5,), float("nan"))
ENDS = torch.tensor([2, 2, 7], dtype=torch.int32)
GROUPS = draws(3, 4, 6)
E4M3 = torch.float8_e4m3fn
ONE = torch.tensor(0.5)

CASES = [
    call("addmm", NAN, A, B, beta=0, label="what is multiplied by 0 does not count"),
    call("addmm", ROW, A, B, beta=0.5, alpha=2),
    call("addmm", ROW.long(), A.long(), B.long(), beta=1.5, alpha=2.5, label="integers"),
    call("addmm", ROW.bfloat16(), A.bfloat16(), B.bfloat16()),
    call("_addmm_activation", ROW, A, B),
    call("_addmm_activation", ROW, A, B, use_gelu=True),
    call("baddbmm", ROW, STACK, OTHER, alpha=0),
    call("addbmm", ROW, STACK, OTHER, beta=2),
    call("addmv", draws(3), A, draws(4), beta=0),
    call("addr", torch.ones(3, 5, dtype=torch.bool), draws(3) > 0, ROW > 0),
    call("mm", draws(0, 4), B, label="no rows"),
    call("mm", draws(3, 0), draws(0, 5), label="nothing to sum"),
    call("matmul", STACK, B),
    call("matmul", A, OTHER),
    call("matmul", draws(4), OTHER),
    call("linear", STACK, draws(6, 4), None),
    call("linear", draws(0, 4), draws(6, 4), draws(6), label="no rows"),
    call("linear", draws(4), draws(6, 4), draws(6), label="one row"),
    call("linear", STACK.half(), draws(6, 4).half(), draws(6).half()),
    call("bilinear", STACK, draws(2, 3, 5), draws(6, 4, 5), draws(6)),
    call("_trilinear", STACK, draws(3, 5), draws(4), [3], [0, 2], [0, 1, 3], [1]),
    call("vdot", draws(4).to(torch.complex64) * 1j, draws(4).to(torch.complex64)),
    call("inner", STACK, draws(6, 4)),
    call("kron", A, draws(2)),
    call("chain_matmul", [A, B, draws(5, 2)]),
    call("einsum", "...ij,jk->...ik", [STACK, B]),
    call("tensordot", STACK, OTHER, [0, -1], [0, 1]),
    call("_int_mm", draws(32, 16).mul(50).to(torch.int8), draws(16, 8).mul(50).to(torch.int8)),
    call("lstm_cell", draws(2, 4), [draws(2, 5)] * 2, draws(20, 4), draws(20, 5)),
    call("gru_cell", draws(2, 4), draws(2, 5), draws(15, 4), draws(15, 5), draws(15), draws(15)),
    call("rnn_tanh_cell", draws(2, 4), draws(2, 5), draws(5, 4), draws(5, 5)),
    call("rnn_relu_cell", draws(2, 4), draws(2, 5), draws(5, 4), draws(5, 5), draws(5), draws(5)),
]


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)


@pytest.mark.parametrize(
    ("name", "shapes", "extents"),
    [
        ("linear", ((3, 5, 4), (6, 4), (6,)), (("n", "s", 4), (6, 4), (6,))),
        ("addmm", ((6,), (3, 4), (4, 6)), ((6,), ("n", 4), (4, 6))),
        ("bmm", ((3, 2, 4), (3, 4, 6)), (("n", 2, 4), ("n", 4, 6))),
        ("addbmm", ((2, 6), (3, 2, 4), (3, 4, 6)), ((2, 6), ("n", 2, 4), ("n", 4, 6))),
        ("matmul", ((3, 2, 5, 4), (3, 2, 4, 6)), (("n", 2, "s", 4), ("n", 2, 4, 6))),
    ],
)
def test_of_symbolic_extents(name: str, shapes: Any, extents: Any) -> None:
    check_symbolic(name, lambda *x: x, *(draws(*s) for s in shapes), extents=extents)


@pytest.mark.parametrize("kind", ["rows", "columns", "inner"])
def test_grouped_products(kind: str) -> None:
    """torch has no kernel of these for float32 on every machine: group by group."""
    from meta.frontend.aten.graph import convert
    from tests.frontend.aten.calls import ours

    begins, ends = [0, 2, 2], ENDS.tolist()
    if kind == "inner":
        x, y = draws(3, 7), draws(7, 5)
        parts = [x[:, a:b] @ y[a:b] for a, b in zip(begins, ends, strict=True)]
        expected = torch.stack(parts)
    elif kind == "rows":
        x, y = draws(7, 4), GROUPS
        parts = [x[a:b] @ w for a, b, w in zip(begins, ends, y, strict=True)]
        expected = torch.cat(parts)
    else:
        x, y = GROUPS, draws(6, 7)
        parts = [w @ y[:, a:b] for a, b, w in zip(begins, ends, x, strict=True)]
        expected = torch.cat(parts, 1)
    found = convert(torch.ops.aten._grouped_mm.default, ours((x, y, ENDS)), {})
    torch.testing.assert_close(found.torch(), expected)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("shape", [(3, 2, 4), (1, 2, 4)])
@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_recurrent_layers(
    name: str, shape: tuple[int, ...], biases: bool, bidirectional: bool
) -> None:
    kinds: dict[str, Any] = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    layer = kinds.get(name, torch.nn.RNN)(4, 5, 2, bias=biases, bidirectional=bidirectional)
    h = draws(4 if bidirectional else 2, *shape[1:-1], 5)
    hx = [h, h.flip(0)] if name == "lstm" else h
    params = [p.detach() for p in layer._flat_weights]
    batch_first = False
    options = (biases, 2, 0.0, False, bidirectional, batch_first)
    check(Call(f"{name}.input", (draws(*shape), hx, params, *options)))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_projected_lstm_with_the_batch_first() -> None:
    layer = torch.nn.LSTM(4, 5, 2, proj_size=3)
    params = [p.detach() for p in layer._flat_weights]
    hx = [draws(2, 3, 3), draws(2, 3, 5)]
    check(call("lstm.input", draws(3, 2, 4), hx, params, True, 2, 0.0, False, False, True))


def test_a_layer_of_an_lstm_as_onednn_runs_it() -> None:
    """Of a program, where what the library saves for itself is not compared."""
    from meta.frontend.aten.graph import convert
    from tests.frontend.aten.calls import ours

    weights = draws(20, 4), draws(20, 5), draws(20), draws(20)
    rest = (draws(1, 2, 5), draws(1, 2, 5), True, [], 2, 5, 1, True, False, False, False)
    args = (draws(3, 2, 4), *weights, *rest)
    expected = torch.ops.aten.mkldnn_rnn_layer.default(*args)
    found = convert(torch.ops.aten.mkldnn_rnn_layer.default, ours(args), {})
    for f, e in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(f.torch(), e)
