"""Cases of reductions, scans, searches, sorting, products and attention."""

import numpy as np
import torch
import torch.nn.functional as F
from tvm import relax as R

from tests.frontend.relax.records import RelaxCase, data

A = data(2, 3, 4)
INTS = data(2, 3, low=-9, high=9, dtype="int32")
Q, K, V = data(2, 5, 3, 4), data(2, 5, 3, 4, low=-1), data(2, 5, 3, 6)


def _attention(q, k, v, bias=None, causal=False):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, bias, is_causal=causal)
    return y.transpose(1, 2)


CASES = [
    RelaxCase("sum", lambda x: R.op.sum(x, [0, 2]), (A,), lambda x: x.sum((0, 2))),
    RelaxCase("sum", R.op.sum, (INTS,), lambda x: x.sum().to(torch.int32), label="integers stay"),
    RelaxCase("sum", lambda x: R.op.sum(x, []), (A,), lambda x: x, label="over no axes"),
    RelaxCase("prod", lambda x: R.op.prod(x, 1, True), (A,), lambda x: x.prod(1, True)),
    RelaxCase("max", lambda x: R.op.max(x, 1), (A,), lambda x: x.amax(1)),
    RelaxCase("min", R.op.min, (A,), torch.amin),
    RelaxCase("mean", lambda x: R.op.mean(x, -1, True), (A,), lambda x: x.mean(-1, True)),
    RelaxCase(
        "mean",
        lambda x: R.op.mean(x, 1),
        (np.array([[-4, 1, -2], [3, 3, 1]], np.int32),),
        np.array([-1, 2], np.int32),
        label="integers drop the fraction",
    ),
    RelaxCase("variance", lambda x: R.op.variance(x, 1), (A,), lambda x: x.var(1, correction=0)),
    RelaxCase("variance", lambda x: R.op.variance(x, []), (A,), torch.zeros_like, label="of one"),
    RelaxCase("std", R.op.std, (A,), lambda x: x.std(correction=0)),
    RelaxCase("median", lambda x: R.op.median(x, 2), (A,), lambda x: tuple(x.median(2))),
    RelaxCase("median", R.op.median, (A,), torch.median, label="all"),
    RelaxCase("argmax", lambda x: R.op.argmax(x, 1), (A,), lambda x: x.argmax(1)),
    RelaxCase("argmin", R.op.argmin, (A,), torch.argmin),
    RelaxCase("cumsum", lambda x: R.op.cumsum(x, 1), (A,), lambda x: x.cumsum(1)),
    RelaxCase(
        "cumsum",
        lambda x: R.op.cumsum(x, None, "int64", True),
        (INTS,),
        lambda x: x.flatten().cumsum(0) - x.flatten(),
        label="exclusive",
    ),
    RelaxCase("cumprod", lambda x: R.op.cumprod(x, -1), (A,), lambda x: x.cumprod(-1)),
    RelaxCase("sort", lambda x: R.op.sort(x, 1, True), (A,), lambda x: x.sort(1, True)[0]),
    RelaxCase(
        "argsort", lambda x: R.op.argsort(x, -1, False, "int64"), (A,), lambda x: x.argsort(-1)
    ),
    RelaxCase(
        "topk",
        lambda x: R.op.topk(x, 2, -1, "both", True, "int64"),
        (A,),
        lambda x: tuple(x.topk(2)),
    ),
    RelaxCase(
        "bucketize",
        lambda x, b: R.op.bucketize(x, b, right=True),
        (A, np.array([-1.0, 0.0, 1.0], np.float32)),
        lambda x, b: torch.bucketize(x, b, right=True),
    ),
    RelaxCase("nonzero", R.op.nonzero, (INTS,), lambda x: x.nonzero().T.contiguous()),
    RelaxCase(
        "unique",
        lambda x: R.op.unique(x, True, False, True, True),
        (np.array([[3, 1], [3, 2]]),),
        (torch.tensor([1, 2, 3]), torch.tensor([2, 0, 2, 1]), torch.tensor([1, 1, 2])),
    ),
    RelaxCase(
        "unique",
        lambda: R.op.unique(R.const(np.array([3, 1, 3, 2]), "int64"), False, True),
        (),
        (torch.tensor([3, 1, 2]), torch.tensor([0, 1, 3])),
        label="known",
    ),
    RelaxCase("matmul", R.op.matmul, (A, data(4, 5)), torch.matmul),
    RelaxCase(
        "matmul", R.op.matmul, (data(3, 1, 2, 4), data(5, 4, 3)), torch.matmul, label="stack"
    ),
    RelaxCase(
        "matmul",
        lambda x, y: R.op.matmul(x, y, "int32"),
        (data(2, 3, high=90, dtype="int8"), data(3, 2, high=90, dtype="int8")),
        lambda x, y: x.to(torch.int32) @ y.to(torch.int32),
        label="integers",
    ),
    RelaxCase("outer", R.op.outer, (data(3), data(4)), torch.outer),
    RelaxCase(
        "einsum",
        lambda x, y: R.op.einsum((x, y), "abc,cd->bad"),
        (A, data(4, 2)),
        lambda x, y: torch.einsum("abc,cd->bad", x, y),
    ),
    RelaxCase("nn.attention", R.op.nn.attention, (Q, K, V), _attention),
    RelaxCase(
        "nn.attention",
        lambda q, k, v: R.op.nn.attention(q, k, v, causal_mask="TopLeft"),
        (Q, K, V),
        lambda q, k, v: _attention(q, k, v, None, True),
        label="causal",
    ),
    RelaxCase(
        "nn.attention",
        lambda q, k, v: R.op.nn.attention(q, k, v, causal_mask="BottomRight"),
        (Q[:, :3], K, V),
        lambda q, k, v: _attention(q, k, v, torch.ones(3, 5, dtype=torch.bool).tril(2)),
        label="causal from the end",
    ),
    RelaxCase("nn.attention_bias", R.op.nn.attention, (Q, K, V, data(2, 1, 5, 5)), _attention),
    RelaxCase(
        "multinomial_from_uniform",
        lambda p, u, r: R.op.multinomial_from_uniform(p, u, r, "int64"),
        (
            np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], np.float32),
            np.array([[0.1], [0.65], [0.95]], np.float32),
            np.array([[0], [1], [1]], np.int64),
        ),
        torch.tensor([[0], [1], [2]]),
    ),
]
