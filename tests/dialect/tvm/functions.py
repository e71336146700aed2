"""Records of TE functions with their torch oracles, for the tests of schedules and builds.

`RECORDS` maps a name to a maker of ``(inputs, outputs, oracle)``; the oracle takes the input
arrays and returns the outputs. To cover another form of function, add a maker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tvm import te, tirx, topi

from meta.base.dtype import TO_TORCH

Record = tuple[list[Any], list[Any], Callable[..., Sequence[torch.Tensor]]]


def tensor(*shape: Any, dtype: str = "float32", name: str = "x") -> te.Tensor:
    return te.placeholder(shape, dtype=dtype, name=name)


def sample(placeholder: te.Tensor, seed: int = 0) -> torch.Tensor:
    """Random values of a placeholder's shape and dtype."""
    generator = torch.Generator().manual_seed(seed)
    shape = [int(extent) for extent in placeholder.shape]
    dtype = TO_TORCH[str(placeholder.dtype)]
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 10, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def empty_like(output: te.Tensor) -> torch.Tensor:
    """An array for an output, filled with something that is not the answer."""
    shape = [int(extent) for extent in output.shape]
    return torch.full(shape, 77, dtype=torch.float64).to(TO_TORCH[str(output.dtype)])


def _row_sum(x: te.Tensor, of: Callable[[Any, Any], Any]) -> te.Tensor:
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute((x.shape[0],), lambda i: te.sum(of(i, k), axis=k))


def layer_norm(rows: int, columns: int, with_moments: bool = False) -> Record:
    x, w = tensor(rows, columns), tensor(columns, name="w")
    mean = topi.divide(_row_sum(x, lambda i, k: x[i, k]), float(columns))
    square = _row_sum(x, lambda i, k: (x[i, k] - mean[i]) * (x[i, k] - mean[i]))
    y = te.compute(
        (rows, columns),
        lambda i, j: (x[i, j] - mean[i]) * tirx.rsqrt(square[i] / columns + 1e-5) * w[j],
    )

    def oracle(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        result = torch.layer_norm(x, (columns,), w)
        m = x.mean(1)
        return [m, result, ((x - m[:, None]) ** 2).sum(1)] if with_moments else [result]

    return [x, w], [mean, y, square] if with_moments else [y], oracle


def unary(shape: tuple[int, ...], function: str, dtype: str = "float32") -> Record:
    x = tensor(*shape, dtype=dtype)
    return [x], [getattr(topi, function)(x)], lambda x: [getattr(torch, function)(x)]


def reduction(shape: tuple[int, ...], axis: Any, function: str, dtype: str = "float32") -> Record:
    x = tensor(*shape, dtype=dtype)
    axes = tuple(range(len(shape))) if axis is None else axis

    def oracle(x: torch.Tensor) -> list[torch.Tensor]:
        return [getattr(torch, {"max": "amax", "min": "amin"}.get(function, function))(x, axes)]

    return [x], [getattr(topi, function)(x, axis)], oracle


def mean(*shape: int) -> Record:
    """A reduction to a scalar, and an epilogue that is in no loop."""
    x = tensor(*shape)
    count = float(math.prod(shape))
    return [x], [topi.divide(topi.sum(x), count)], lambda x: [x.mean()]


def softmax(*shape: int) -> Record:
    x = tensor(*shape)
    return [x], [topi.nn.softmax(x)], lambda x: [torch.softmax(x, -1)]


def broadcast(a: tuple[int, ...], b: tuple[int, ...], dtype: str = "float32") -> Record:
    x, y = tensor(*a, dtype=dtype), tensor(*b, dtype=dtype, name="y")
    return [x, y], [topi.add(x, y)], lambda x, y: [x + y]


def transpose(shape: tuple[int, ...], axes: tuple[int, ...]) -> Record:
    x = tensor(*shape)
    return [x], [topi.transpose(x, axes)], lambda x: [x.permute(axes)]


def matmul(m: int, k: int, n: int, transposed: bool = False) -> Record:
    a, b = tensor(m, k), tensor(*((n, k) if transposed else (k, n)), name="b")
    oracle = (lambda a, b: [a @ b.T]) if transposed else (lambda a, b: [a @ b])
    return [a, b], [topi.matmul(a, b, False, transposed)], oracle


def convolution() -> Record:
    x, w = tensor(2, 3, 17, 17), tensor(8, 3, 3, 3, name="w")
    y = topi.nn.relu(topi.nn.conv2d(x, w, 1, 1, 1))
    return [x, w], [y], lambda x, w: [torch.conv2d(x, w, padding=1).relu()]


def gather() -> Record:
    x, i = tensor(20, 30), tensor(7, dtype="int64", name="i")
    return [x, i], [topi.take(x, i, 0, mode="clip")], lambda x, i: [x[i]]


def several_readers() -> Record:
    """A dear intermediate that is read twice, and two outputs of different shape."""
    x = tensor(40, 64)
    e = topi.exp(x)
    return (
        [x],
        [topi.multiply(e, topi.add(e, 1.0)), topi.sum(e, 0)],
        lambda x: [x.exp() * (x.exp() + 1), x.exp().sum(0)],
    )


def arg_max() -> Record:
    x = tensor(50, 70)
    return [x], [topi.argmax(x, 1)], lambda x: [x.argmax(1).int()]


def sort() -> Record:
    x = tensor(6, 9)
    return [x], [topi.sort(x)], lambda x: [x.sort().values]


def cumulative() -> Record:
    x = tensor(6, 9)
    return [x], [topi.cumsum(x, 1)], lambda x: [x.cumsum(1)]


def sorted_and_summed() -> Record:
    """An opaque block between ordinary ones."""
    x = tensor(6, 64)
    y = topi.sum(topi.multiply(topi.sort(topi.add(x, 1.0)), 2.0), 1)
    return [x], [y], lambda x: [((x + 1) * 2).sum(1)]


def empty_sum() -> Record:
    x = tensor(3, 0)
    return [x], [topi.sum(x, 1)], lambda x: [x.sum(1)]


RECORDS: dict[str, Callable[[], Record]] = {
    "elementwise": lambda: unary((1000,), "exp"),
    "elementwise_2d": lambda: unary((3, 5), "tanh"),
    "elementwise_big": lambda: unary((300, 700), "abs"),
    "elementwise_large": lambda: unary((1100, 1001), "abs"),
    "elementwise_prime": lambda: unary((100003,), "abs"),
    "zero_d": lambda: unary((), "exp"),
    "empty": lambda: unary((3, 0), "exp"),
    "empty_sum": empty_sum,
    "unit": lambda: unary((1, 1, 1), "exp"),
    "sum_all": lambda: reduction((512, 512), None, "sum"),
    "sum_few": lambda: reduction((3, 400000), 1, "sum"),
    "sum_all_odd": lambda: reduction((37, 41), None, "sum"),
    "sum_rows": lambda: reduction((300, 1024), 1, "sum"),
    "sum_rows_odd": lambda: reduction((300, 1001), 1, "sum"),
    "sum_rows_prime": lambda: reduction((30, 1009), 1, "sum"),
    "sum_columns": lambda: reduction((300, 512), 0, "sum"),
    "sum_columns_odd": lambda: reduction((1024, 331), 0, "sum"),
    "sum_middle": lambda: reduction((8, 64, 48), 1, "sum"),
    "sum_ends": lambda: reduction((8, 64, 48), (0, 2), "sum"),
    "max_rows": lambda: reduction((64, 512), 1, "max"),
    "max_all": lambda: reduction((512, 512), None, "max"),
    "min_integers": lambda: reduction((64, 512), 1, "min", "int32"),
    "sum_one": lambda: reduction((1, 100000), 1, "sum"),
    "mean": lambda: mean(37, 41),
    "mean_tall": lambda: mean(1024, 1024),
    "mean_tall_odd": lambda: mean(1021, 1031),
    "softmax": lambda: softmax(64, 1024),
    "softmax_odd": lambda: softmax(10, 77),
    "softmax_3d": lambda: softmax(4, 5, 300),
    "softmax_one_row": lambda: softmax(1, 5000),
    "layer_norm": lambda: layer_norm(200, 768),
    "layer_norm_outputs": lambda: layer_norm(64, 256, with_moments=True),
    "broadcast_row": lambda: broadcast((300, 400), (400,)),
    "broadcast_column": lambda: broadcast((300, 400), (300, 1)),
    "broadcast_half": lambda: broadcast((30, 40), (40,), "float16"),
    "transpose": lambda: transpose((256, 320), (1, 0)),
    "transpose_odd": lambda: transpose((13, 7, 5), (2, 0, 1)),
    "transpose_batch": lambda: transpose((4, 64, 32), (0, 2, 1)),
    "matmul": lambda: matmul(64, 48, 80),
    "matmul_big": lambda: matmul(256, 256, 256),
    "matvec": lambda: matmul(1, 512, 512, transposed=True),
    "matmul_nt": lambda: matmul(64, 256, 80, transposed=True),
    "convolution": convolution,
    "gather": gather,
    "several_readers": several_readers,
    "arg_max": arg_max,
    "sort": sort,
    "cumulative": cumulative,
    "sorted_and_summed": sorted_and_summed,
}
