"""Cases of operators that rearrange, repeat, convert, read and write elements."""

import numpy as np
import torch
import tvm
from tvm import relax as R

from tests.frontend.relax.records import RelaxCase, data

A, V = data(2, 3, 4), data(4)
INDEX = np.array([[0, 2], [1, 1]], np.int64)


def _put(x, i, j, v):
    return x.index_put((i, j), v)


CASES = [
    RelaxCase("astype", lambda x: R.op.astype(x, "int32"), (A,), lambda x: x.to(torch.int32)),
    RelaxCase(
        "broadcast_to", lambda x: R.op.broadcast_to(x, (2, 4)), (V,), lambda x: x.expand(2, 4)
    ),
    RelaxCase("reshape", lambda x: R.op.reshape(x, (4, -1)), (A,), lambda x: x.reshape(4, -1)),
    RelaxCase("flatten", R.op.flatten, (A,), torch.flatten),
    RelaxCase("nn.batch_flatten", R.op.nn.batch_flatten, (A,), lambda x: x.flatten(1)),
    RelaxCase(
        "concat", lambda x, y: R.op.concat([x, y], 1), (A, A), lambda x, y: torch.cat([x, y], 1)
    ),
    RelaxCase(
        "concat",
        lambda x, y: R.op.concat([x, y], None),
        (V, V),
        lambda x, y: torch.cat([x, y]),
        label="flat",
    ),
    RelaxCase(
        "stack", lambda x, y: R.op.stack([x, y], -1), (A, A), lambda x, y: torch.stack([x, y], -1)
    ),
    RelaxCase(
        "expand_dims",
        lambda x: R.op.expand_dims(x, [0, -1, 2]),
        (V,),
        lambda x: x.reshape(1, 4, 1, 1),
    ),
    RelaxCase("squeeze", lambda x: R.op.squeeze(x, [1]), (data(2, 1, 1),), lambda x: x.squeeze(1)),
    RelaxCase("squeeze", R.op.squeeze, (data(2, 1, 1),), lambda x: x.squeeze(), label="all"),
    RelaxCase("permute_dims", R.op.permute_dims, (A,), lambda x: x.permute(2, 1, 0)),
    RelaxCase("split", lambda x: R.op.split(x, 2, 2), (A,), lambda x: x.split(2, 2)),
    RelaxCase(
        "split",
        lambda x: R.op.split(x, [1, 3], 2),
        (A,),
        lambda x: x.split([1, 2, 1], 2),
        label="indices",
    ),
    RelaxCase("flip", lambda x: R.op.flip(x, 1), (A,), lambda x: x.flip(1)),
    RelaxCase("repeat", lambda x: R.op.repeat(x, 2, 1), (A,), lambda x: x.repeat_interleave(2, 1)),
    RelaxCase("tile", lambda x: R.op.tile(x, (2, 1)), (A,), lambda x: x.repeat(1, 2, 1)),
    RelaxCase(
        "reverse_sequence",
        lambda x, n: R.op.reverse_sequence(x, n, 1, 0),
        (A, np.array([2, 3], np.int64)),
        lambda x, n: torch.stack([x[0][[1, 0, 2]], x[1].flip(0)]),
    ),
    RelaxCase(
        "meshgrid",
        lambda x, y: R.op.meshgrid([x, y], "ij"),
        (V, data(3)),
        lambda x, y: torch.meshgrid(x, y, indexing="ij"),
    ),
    RelaxCase(
        "meshgrid",
        lambda x, y: R.op.meshgrid([x, y], "xy"),
        (V, data(3)),
        lambda x, y: torch.meshgrid(x, y, indexing="xy"),
        label="xy",
    ),
    RelaxCase("collapse_sum_like", R.op.collapse_sum_like, (A, V), lambda x, y: x.sum((0, 1))),
    RelaxCase(
        "collapse_sum_to",
        lambda x: R.op.collapse_sum_to(x, (3, 1)),
        (A,),
        lambda x: x.sum((0, 2)).reshape(3, 1),
    ),
    RelaxCase(
        "nn.pixel_shuffle",
        lambda x: R.op.nn.pixel_shuffle(x, 2),
        (data(2, 8, 3, 2),),
        lambda x: torch.pixel_shuffle(x, 2),
    ),
    RelaxCase("wrap_param", lambda: R.op.wrap_param(R.const(V), "float32"), (), torch.tensor(V)),
    RelaxCase("builtin.stop_lift_params", R.op.builtin.stop_lift_params, (A,), torch.clone),
    RelaxCase("hint_on_device", lambda x: R.op.hint_on_device(x, tvm.cpu()), (A,), torch.clone),
    RelaxCase("grad.no_grad", R.op.grad.no_grad, (A,), torch.clone),
    RelaxCase("grad.start_checkpoint", R.op.grad.start_checkpoint, (A,), torch.clone),
    RelaxCase("grad.end_checkpoint", R.op.grad.end_checkpoint, (A,), torch.clone),
    RelaxCase("memory.ensure_zero_offset", R.op.memory.ensure_zero_offset, (A,), torch.clone),
    RelaxCase(
        "strided_slice",
        lambda x: R.op.strided_slice(x, [2, 1], [-3, 2], [9, -9], [2, -1]),
        (A,),
        lambda x: x[:, :, 1::2].flip(1),
    ),
    RelaxCase(
        "dynamic_strided_slice",
        R.op.dynamic_strided_slice,
        (A, np.array([0, 1, 0]), np.array([2, 3, 4]), np.array([1, 1, 3])),
        lambda x, b, e, s: x[:, 1:, ::3],
    ),
    RelaxCase(
        "take",
        lambda x, i: R.op.take(x, i, 1),
        (A, INDEX),
        lambda x, i: x[:, i.reshape(-1)].reshape(2, 2, 2, 4),
    ),
    RelaxCase(
        "take",
        lambda x, i: R.op.take(x, i, 0, "wrap"),
        (V, np.array([-1, 5])),
        lambda x, i: x[[3, 1]],
        label="wrap",
    ),
    RelaxCase("take", lambda x, i: R.op.take(x, i, 0, "nan"), (V, INDEX), refused="mode='nan'"),
    RelaxCase(
        "gather_elements",
        lambda x, i: R.op.gather_elements(x, i, -1),
        (data(2, 4), INDEX),
        lambda x, i: x.gather(1, i),
    ),
    RelaxCase("gather_nd", R.op.gather_nd, (A, INDEX), lambda x, i: x[i[:, 0], i[:, 1]]),
    RelaxCase(
        "gather_nd",
        lambda x, i: R.op.gather_nd(x, i, 1),
        (A, np.array([[2], [0]])),
        lambda x, i: x[[0, 1], [2, 0]],
        label="batch",
    ),
    RelaxCase(
        "index_tensor",
        lambda x, i, j: R.op.index_tensor(x, [i, j]),
        (A, INDEX[:, :1], INDEX[0]),
        lambda x, i, j: x[i, j],
    ),
    RelaxCase(
        "index_put",
        lambda x, i, j, v: R.op.index_put(x, (i, j), v),
        (data(3, 4), np.array([0, 2]), np.array([1, 3]), data(2)),
        _put,
    ),
    RelaxCase(
        "index_put",
        lambda x, i, j, v: R.op.index_put(x, (i, j), v, True),
        (data(3, 4), np.array([0, 0]), np.array([1, 1]), data(2)),
        lambda x, i, j, v: x.index_put((i, j), v, accumulate=True),
        label="accumulate",
    ),
    *(
        RelaxCase(
            "scatter_elements",
            lambda x, i, v, kind=kind: R.op.scatter_elements(x, i, v, 1, kind),
            (data(2, 4), INDEX, data(2, 2)),
            function,
            label=kind,
        )
        for kind, function in {
            "add": lambda x, i, v: x.scatter_add(1, i, v),
            "max": lambda x, i, v: x.scatter_reduce(1, i, v, "amax"),
            "min": lambda x, i, v: x.scatter_reduce(1, i, v, "amin"),
            "mul": lambda x, i, v: x.scatter_reduce(1, i, v, "prod"),
        }.items()
    ),
    RelaxCase(
        "scatter_elements",
        lambda x, i, v: R.op.scatter_elements(x, i, v, 0),
        (data(3, 2), np.array([[0, 2], [-1, 1]]), data(2, 2)),
        lambda x, i, v: x.scatter(0, i % 3, v),
        label="update",
    ),
    *(
        RelaxCase(
            "scatter_nd",
            lambda x, i, v, kind=kind: R.op.scatter_nd(x, i, v, kind),
            (A, INDEX, data(2, 4)),
            function,
            label=kind,
        )
        for kind, function in {
            "update": lambda x, i, v: x.index_put((i[:, 0], i[:, 1]), v),
            "add": lambda x, i, v: x.index_put((i[:, 0], i[:, 1]), v, accumulate=True),
            "max": lambda x, i, v: x.index_put(
                (i[:, 0], i[:, 1]), torch.maximum(x[i[:, 0], i[:, 1]], v)
            ),
        }.items()
    ),
    RelaxCase(
        "slice_scatter",
        lambda x, v: R.op.slice_scatter(x, v, 0, 4, 2, axis=2),
        (A, data(2, 3, 2)),
        lambda x, v: torch.slice_scatter(x, v, 2, 0, 4, 2),
    ),
]
