"""Cases of operators that make tensors, and of shapes."""

import numpy as np
import torch
from tvm import relax as R

from tests.frontend.relax.records import RelaxCase, data

A = data(3, 4)
INDICES = np.array([1, 0, 5], np.int64)

CASES = [
    RelaxCase(
        "full",
        lambda: R.op.full((2, 3), R.const(1.5, "float32"), "float32"),
        (),
        lambda: torch.full((2, 3), 1.5),
    ),
    RelaxCase(
        "full",
        lambda v: R.op.full((2, 3), v, "int64"),
        (np.array(2.7, np.float32),),
        lambda v: torch.full((2, 3), 2),
        label="traced",
    ),
    RelaxCase(
        "full_like",
        lambda x: R.op.full_like(x, R.const(2.0, "float32")),
        (A,),
        lambda x: torch.full_like(x, 2),
    ),
    RelaxCase("zeros", lambda: R.op.zeros((2,), "int32"), (), torch.zeros(2, dtype=torch.int32)),
    RelaxCase("ones", lambda: R.op.ones((2,), "float32"), (), torch.ones(2)),
    RelaxCase("zeros_like", R.op.zeros_like, (A,), torch.zeros_like),
    RelaxCase(
        "ones_like",
        lambda x: R.op.ones_like(x, "int32"),
        (A,),
        lambda x: torch.ones_like(x, dtype=torch.int32),
    ),
    RelaxCase(
        "eye", lambda: R.op.eye(3, 4, 1, "float32"), (), torch.from_numpy(np.eye(3, 4, 1, "f"))
    ),
    RelaxCase("eye_like", R.op.eye_like, (A,), lambda x: torch.eye(3, 4)),
    RelaxCase("arange", lambda: R.op.arange(1, 9, 3, "int64"), (), torch.arange(1, 9, 3)),
    RelaxCase(
        "hamming_window",
        lambda: R.op.hamming_window(7, True, 0.54, 0.46, "float32"),
        (),
        torch.hamming_window(7),
    ),
    RelaxCase(
        "hamming_window",
        lambda: R.op.hamming_window(1, False, 0.54, 0.46, "float32"),
        (),
        torch.ones(1),
        label="of one",
    ),
    RelaxCase("tril", lambda x: R.op.tril(x, 1), (A,), lambda x: torch.tril(x, 1)),
    RelaxCase("triu", lambda x: R.op.triu(x, -1), (A,), lambda x: torch.triu(x, -1)),
    RelaxCase(
        "one_hot",
        lambda i: R.op.one_hot(i, R.prim_value(2), R.prim_value(-1), 4),
        (INDICES,),
        lambda i: torch.tensor([[-1, 2, -1, -1], [2, -1, -1, -1], [-1] * 4]),
    ),
    RelaxCase(
        "shape_to_tensor",
        lambda x: R.op.shape_to_tensor(R.op.shape_of(x)),
        (A,),
        torch.tensor([3, 4]),
    ),
    RelaxCase(
        "tensor_to_shape",
        lambda x: R.op.reshape(x, R.op.tensor_to_shape(R.const(np.array([2, 6]), "int64"))),
        (A,),
        lambda x: x.reshape(2, 6),
    ),
    RelaxCase(
        "tensor_to_shape",
        lambda x, s: R.op.broadcast_to(x, R.op.tensor_to_shape(s)),
        (A, np.array([2, 3, 4], np.int64)),
        lambda x, s: x.expand(2, 3, 4),
        label="of the run time",
    ),
    RelaxCase("size", R.op.size, (A,), torch.tensor(12)),
]
