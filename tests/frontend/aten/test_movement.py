"""Views, joining, splitting, slicing, padding: what torch's samples do not reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.frontend.aten.graph import convert
from meta.frontend.core import Unconvertible
from tests.frontend.aten.calls import Call, call, check, check_symbolic

X = torch.arange(24.0).reshape(2, 3, 4)
I = torch.arange(12).reshape(3, 4)  # noqa: E741
BOOLS = I % 3 == 0
C = torch.complex(X, X + 1)
ZERO = torch.tensor(3.0)
EMPTY = torch.zeros(0, 3)
H = X.bfloat16()

CASES = [
    call("view", X, [4, -1]),
    call("view", EMPTY, [3, 0]),
    call("reshape", X, [-1]),
    call("reshape", ZERO, [1, 1]),
    call("flatten.using_ints", ZERO),
    call("flatten.using_ints", X, 1, -1),
    call("flatten.using_ints", EMPTY),
    call("unflatten.int", X, -1, [2, -1]),
    call("expand", X[:, :1], [5, -1, 3, -1]),
    call("expand", ZERO, [2, 0]),
    call("permute", X, [-1, 0, 1]),
    call("permute", ZERO, []),
    call("transpose.int", ZERO, 0, -1),
    call("t", X[0, 0]),
    call("numpy_T", X),
    call("mH", C),
    call("adjoint", X),
    call("movedim.intlist", X, [0, -1], [-1, 0]),
    call("squeeze.dims", X[:, :1, :1], [0, 1, -1]),
    call("squeeze.dim", ZERO, 0),
    call("unsqueeze", ZERO, -1),
    call("atleast_3d", X[0]),
    call("pixel_shuffle", X.reshape(1, 4, 2, 3), 2),
    call("pixel_unshuffle", X.reshape(1, 1, 4, 6), 2),
    call("channel_shuffle", X.reshape(1, 6, 2, 2), 3),
    call("copy", X, I[:3, :4], label="of another dtype and shape"),
    call("_to_copy", C, dtype=torch.float32, label="the real part"),
    call("_to_copy", X, dtype=torch.int8, layout=torch.strided),
    call("_to_copy", X, device=torch.device("cpu")),
    call("to.dtype", X, torch.float16),
    call("type_as", I, X),
    call("_cast_Half", I),
    call("view.dtype", X, torch.int32),
    call("view.dtype", C, torch.float32),
    call("view.dtype", X, torch.complex64),
    call("view_as_real", C[0]),
    call("unfold", X, 1, 2, 1),
    call("unfold", X, -1, 3, 2),
    call("unfold_backward", torch.ones(2, 2, 4, 2), [2, 3, 4], 1, 2, 1),
    call("unfold_backward", torch.randn(1, 2, 4, 2), [2, 3, 4], 1, 2, 1, label="broadcast"),
    call("cat", [X, torch.zeros(0), X], -1, label="a vector without elements"),
    call("cat", [I, X[0].half()], label="several dtypes"),
    call("stack", [I, BOOLS], -1),
    call("hstack", [ZERO, ZERO]),
    call("block_diag", [I, ZERO, X[0, 0]]),
    call("pad_sequence", [X[0], X[1, :1]], True, -1.0, "left"),
    call("_chunk_cat", [C, C[:1]], 0, 2),
    call("split.Tensor", X, 3, -1),
    call("split.Tensor", EMPTY, 2),
    call("split_with_sizes", X, [1, 0, 3], 2),
    call("chunk", X, 3, 2),
    call("chunk", EMPTY, 2),
    call("tensor_split.sections", X, 3, 2),
    call("tensor_split.indices", X, [1, -1, 9], 2),
    call("hsplit.int", X[0, 0], 2),
    call("unbind.int", X, -1),
    call("slice.Tensor", X, -1, -3, -1),
    call("slice.Tensor", X, 1, 5, 9),
    call("slice.Tensor", X, 1, 2, 1),
    call("slice.Tensor", X, 2, None, None, 3),
    call("select.int", X, -1, -2),
    call("narrow", X, -1, -3, 2),
    call("narrow.Tensor", X, 2, torch.tensor(1), 2),
    call("narrow.Tensor", X, 2, torch.tensor(-3), 2),
    call("slice_scatter", X, H[..., :2], 2, -2, None, label="another dtype"),
    call("slice_scatter", X, X[..., :2], 2, 0, 4, 2),
    call("select_scatter", I, I[:, 0] * 2, -1, -1),
    call("slice_backward", torch.ones(2, 3, 2), [2, 3, 4], -1, 0, 4, 2),
    call("select_backward", torch.ones(2, 4), [2, 3, 4], -2, -1),
    call("diagonal_scatter", I, I[:2, 0] - 9, 2),
    call("diagonal_backward", torch.ones(4, 2), [2, 3, 4], 1, 0, 1),
    call("diag_embed", X, 1, 0, -1),
    call("diagflat", I, -1),
    call("as_strided", X, [2, 2], [1, 2], 3),
    call("as_strided", X, [2, 3, 4], [12, 4, 1]),
    call("as_strided_scatter", X, torch.ones(2, 2), [2, 2], [1, 2], 3),
    call("repeat", X[0], [2, 1, 2]),
    call("tile", X, [2]),
    call("repeat_interleave.self_int", X, 2),
    call("repeat_interleave.self_int", ZERO, 3),
    call("repeat_interleave.self_Tensor", X, torch.tensor([2, 0, 1]), 1, output_size=3),
    call("repeat_interleave.Tensor", torch.tensor([2, 0, 1]), output_size=3),
    call("flip", X, [0, -1]),
    call("roll", X, [1, -2], [0, -1]),
    call("roll", EMPTY, [1], [0]),
    call("rot90", X, -1, [0, 2]),
    call("tril", BOOLS, -1),
    call("triu", C, 1),
    call("cartesian_prod", [I[0], I[1]]),
    call("combinations", I[0], 3, True),
    call("combinations", I[0], 0),
    call("constant_pad_nd", C, [1, 0, -1, 2], 1.5),
    call("constant_pad_nd", BOOLS, [1, 1], 1),
    call("constant_pad_nd", I, [-1, 2], 7),
    call("pad", X, [1, 2, 0, 1], "reflect"),
    call("pad", X, [-1, 2], "replicate"),
    call("pad", C, [1, 2], "circular"),
    call("reflection_pad2d", X, [-1, 2, 1, -1]),
    call("reflection_pad1d_backward", torch.ones(2, 3, 6), X, [-1, 3]),
    call("replication_pad2d_backward", torch.ones(2, 4, 4), X, [-1, 1, 2, -1]),
    call("meshgrid.indexing", [X[0, 0], ZERO], indexing="xy"),
]


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("view.dtype", (X, torch.int8)),
        ("view.dtype", (BOOLS, torch.uint8)),
        ("view_as_complex", (X.half().reshape(6, 2, 2),)),
        ("as_strided", (X, [2, 2], [24, 1])),
        ("_to_copy", (X,)),
    ],
)
def test_what_is_refused(name: str, args: tuple[Any, ...]) -> None:
    kwargs = {"layout": torch.sparse_coo} if name == "_to_copy" else {}
    operator, _, overload = name.partition(".")
    target = getattr(getattr(torch.ops.aten, operator), overload or "default")
    arrays = tuple(meta.array(a) if isinstance(a, torch.Tensor) else a for a in args)
    with pytest.raises(Unconvertible):
        convert(target, arrays, kwargs)


SYMBOLIC = [
    ("view", lambda x: (x, [x.shape[0] * x.shape[1], -1]), X),
    ("view", lambda x: (x, [-1, x.shape[2]]), X),
    ("expand", lambda x: (x, [2, -1, x.shape[1], x.shape[2]]), X),
    ("flatten.using_ints", lambda x: (x, 0, 1), X),
    ("slice.Tensor", lambda x: (x, 1, 1), X),
    ("slice.Tensor", lambda x: (x, 1, 0, -1), X),
    ("slice.Tensor", lambda x: (x, 2, -1), X),
    ("slice.Tensor", lambda x: (x, 2, 0, x.shape[2] - 1), X),
    ("slice.Tensor", lambda x: (x, 2, x.shape[2] - 2, x.shape[2]), X),
    ("slice.Tensor", lambda x: (x, 2, 0, x.shape[1]), X),
    ("slice.Tensor", lambda x: (x, 2, 0, None, 2), X),
    ("slice.Tensor", lambda x: (x, 2, 0, 9223372036854775807), X),
    ("select.int", lambda x: (x, 1, 0), X),
    ("select.int", lambda x: (x, 1, -1), X),
    ("select.int", lambda x: (x, 1, x.shape[1] - 1), X),
    ("narrow", lambda x: (x, 1, 1, x.shape[1] - 1), X),
    ("split_with_sizes", lambda x: (x, [1, x.shape[2] - 1], 2), X),
    ("slice_scatter", lambda x: (x, x * 2, 1, 0, x.shape[1]), X),
    ("cat", lambda x: ([x, x], 1), X),
    ("stack", lambda x: ([x, x], -1), X),
    ("unsqueeze", lambda x: (x, 0), X),
    ("permute", lambda x: (x, [2, 0, 1]), X),
    ("repeat", lambda x: (x, [1, 1, x.shape[1]]), X),
    ("tile", lambda x: (x, [x.shape[1], 2]), X),
    ("repeat_interleave.self_int", lambda x: (x, x.shape[0], 1), X),
    ("constant_pad_nd", lambda x: (x, [0, 1, x.shape[1], 0], 2.0), X),
    ("flip", lambda x: (x, [0]), X),
    ("tril", lambda x: (x, 0), X),
    ("slice_backward", lambda x: (x, [x.shape[0], x.shape[1] + 2, x.shape[2]], 1, 2, 99, 1), X),
]


@pytest.mark.parametrize(("name", "arguments", "x"), SYMBOLIC)
def test_of_symbolic_extents(name: str, arguments: Any, x: torch.Tensor) -> None:
    check_symbolic(name, arguments, x)
