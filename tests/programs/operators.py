"""The operator calls that random programs are made of, one row each.

A row takes the values so far and three numbers, which choose operands and attributes, and returns
the new values. To add an operator, add a row; what needs no more than its operands goes into one of
the lists of names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta import op
from meta.op.core.op import by_schema
from tests.programs.pool import Pool

Row = Callable[[Pool, int, int, int], "list[Any]"]

# Differentiable everywhere, or almost; all values are finite for arguments of moderate size.
SMOOTH = (
    "tanh", "sigmoid", "sin", "cos", "erf", "atan", "asinh", "negative", "relu", "gelu", "silu",
    "leaky_relu", "elu", "softplus", "mish", "hardswish", "abs", "copy", "softsign",
)  # fmt: skip
SMOOTH_PAIRS = ("add", "subtract", "multiply", "maximum", "minimum")
# With poles, jumps and NaN.
ROUGH = (
    "exp", "log", "sqrt", "rsqrt", "reciprocal", "square", "tan", "sinh", "cosh", "expm1",
    "log1p", "log2", "floor", "ceil", "round", "trunc", "sign", "acos",
)  # fmt: skip
ROUGH_PAIRS = ("divide", "pow", "atan2", "hypot", "copysign", "fmod", "logaddexp")
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
TESTS = ("isnan", "isinf", "isfinite")
REDUCTIONS = ("sum", "mean", "max", "min", "prod", "logsumexp", "var")
ORDERS = ("argmax", "argmin", "argsort", "sort")
SCANS = ("cumsum", "cumprod")
ALONG_AXIS = ("softmax", "log_softmax", "layer_norm", "rms_norm")


def unary(name: str) -> Row:
    return lambda p, i, j, k: [getattr(op, name)(p.float(i))]


def binary(name: str) -> Row:
    def row(p: Pool, i: int, j: int, k: int) -> list[Any]:
        x = p.float(i)
        other = p.like(j, x) if k % 4 else (0.5, 1.0, -0.0, 2)[k // 4 % 4]
        return [getattr(op, name)(*((x, other) if k % 3 else (other, x)))]

    return row


def logical(name: str) -> Row:
    def row(p: Pool, i: int, j: int, k: int) -> list[Any]:
        x = p.of(i, lambda v: v.dtype == "bool")
        return [getattr(op, name)(x, p.like(j, x))]

    return row


def reduction(name: str) -> Row:
    def row(p: Pool, i: int, j: int, k: int) -> list[Any]:
        x = p.of(i, lambda v: p.is_float(v) and v.ndim > 0)
        return [getattr(op, name)(x, j % x.ndim, bool(k % 2))]

    return row


def along_axis(name: str) -> Row:
    def row(p: Pool, i: int, j: int, k: int) -> list[Any]:
        x = p.of(i, lambda v: p.is_float(v) and v.ndim > 0)
        return [by_schema(getattr(op, name))(x, axis=j % x.ndim)]

    return row


def scan(name: str) -> Row:
    def row(p: Pool, i: int, j: int, k: int) -> list[Any]:
        x = p.of(i, lambda v: p.is_float(v) and v.ndim > 0)
        return [getattr(op, name).plain(x, j % x.ndim, x.dtype, bool(k % 2))]

    return row


def view(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.any(i)
    forms = [(x.size,), (1, x.size), (x.size, 1), (2, -1) if x.size % 2 == 0 else (-1,)]
    return [op.reshape(x, forms[k % 4])]


def permute_dims(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.any(i)
    axes = list(range(x.ndim))
    return [op.permute_dims(x, tuple(axes[j % (x.ndim or 1) :] + axes[: j % (x.ndim or 1)]))]


def flat_split(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = op.reshape(p.of(i, lambda v: v.size % 2 == 0 and v.size), (-1,))
    return list(op.split(x, 2 if k % 2 else (1, x.size // 2), 0))


def joined(name: str) -> Row:
    def row(p: Pool, i: int, j: int, k: int) -> list[Any]:
        x = p.of(i, lambda v: 0 < v.ndim and v.size <= p.LIMIT // 3)
        parts = (x, p.like(j, x), p.like(k, x))[: 2 + k % 2]
        return [getattr(op, name)(parts, j % x.ndim)]

    return row


def matmul(name: str) -> Row:
    """The transposed variants multiply a matrix by itself."""

    def row(p: Pool, i: int, j: int, k: int) -> list[Any]:
        x = p.rank(2, i)
        if name == "matmul":
            y = p.of(j, lambda v: v.dtype == x.dtype and v.ndim == 2 and v.shape[0] == x.shape[1])
            return [op.matmul(x, y)]
        return [getattr(op, name)(x, x)]

    return row


def attention(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = op.expand_dims(p.rank(2, i), 0)
    return [op.batch_matmul(op.softmax(op.batch_matmul_nt(x, x)), x)]


def convolution(p: Pool, i: int, j: int, k: int) -> list[Any]:
    image = p.of(i, lambda v: p.is_float(v) and v.ndim == 4 and v.shape[1] == 2 and v.shape[2] > 1)
    kernel = p.of(j, lambda v: v.shape == (2, 2, 3, 3) and v.dtype == image.dtype)
    return [op.conv2d(image, kernel, None, 1 + k % 2, 1)]


def pool2d(name: str) -> Row:
    def row(p: Pool, i: int, j: int, k: int) -> list[Any]:
        image = p.of(i, lambda v: p.is_float(v) and v.ndim == 4 and min(v.shape[2:]) > 1)
        return [getattr(op, name)(image, 2, 1 + k % 2)]

    return row


def group_norm(p: Pool, i: int, j: int, k: int) -> list[Any]:
    image = p.of(i, lambda v: p.is_float(v) and v.ndim == 4 and v.shape[1] % 2 == 0)
    return [op.group_norm(image, 2)]


def batch_norm(p: Pool, i: int, j: int, k: int) -> list[Any]:
    image = p.of(i, lambda v: p.is_float(v) and v.ndim == 4)
    c = image.shape[1]
    zeros, ones = op.zeros((c,), image.dtype), op.ones((c,), image.dtype)
    return [op.batch_norm_infer(image, zeros, ones, ones, zeros)]


def bias_add(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.rank(2, i)
    bias = p.of(j, lambda v: v.dtype == x.dtype and v.shape == x.shape[1:])
    return [op.bias_add(x, bias, 1)]


def where(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.float(i)
    y = p.like(j, x)
    return [op.where(op.less(x, y), x, y if k % 2 else 0.5)]


def smaller(p: Pool, i: int, j: int, k: int) -> list[Any]:
    """`where` without a jump: where the condition changes, both values are the same."""
    x = p.float(i)
    y = p.like(j, x) if k % 2 else 0.5
    return [op.where(op.less(x, y), x, y)]


def chosen(p: Pool, i: int, j: int, k: int) -> list[Any]:
    """Take by an index that the program was given."""
    x = p.of(i, lambda v: p.is_float(v) and v.ndim > 0 and v.size <= p.LIMIT // 3)
    index = p.of(j, lambda v: v.dtype == "int32" and v.ndim == 1 and v.size <= 3)
    return [op.take(x, index, k % x.ndim, "clip")]


def one_hot(p: Pool, i: int, j: int, k: int) -> list[Any]:
    index = p.of(i, lambda v: v.dtype == "int32" and v.size <= p.LIMIT // 3)
    return [op.one_hot(index, 3, 1.0, 0.0, -1, p.dtype)]


def constant(p: Pool, i: int, j: int, k: int) -> list[Any]:
    makers = [
        lambda: op.full((2, 3), 0.5 * i, p.dtype),
        lambda: op.arange(0.0, 3.0, 1.0, p.dtype),
        lambda: op.zeros((3,), p.dtype),
        lambda: op.ones((2, 3), p.dtype),
        lambda: p.constant((2, 3), i),
        lambda: p.constant((3,), i),
    ]
    return [makers[k % len(makers)]()]


def sliced(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.of(i, lambda v: v.ndim > 0 and min(v.shape) > 1)
    return [op.strided_slice(x, (0,), (x.shape[0],), (2,)) if k % 2 else x[1:]]


def padded(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.of(i, lambda v: p.is_float(v) and v.ndim == 2 and v.size <= 12)
    return [op.pad(x, ((0, 1), (j % 2, 0)), constant_values=0.25)]


def grown(name: str) -> Row:
    def row(p: Pool, i: int, j: int, k: int) -> list[Any]:
        x = p.of(i, lambda v: v.ndim > 0 and v.size <= p.LIMIT // 2)
        return [op.repeat(x, 2, j % x.ndim) if name == "repeat" else op.tile(x, (2,))]

    return row


def broadcast(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.of(i, lambda v: v.ndim < 4 and v.size <= p.LIMIT // 2)
    return [op.broadcast_to(x, (2, *x.shape))]


def flipped(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.of(i, lambda v: v.ndim > 0)
    return [op.flip(x, (j % x.ndim, None, (j % x.ndim,))[k % 3])]


def swapped(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.of(i, lambda v: v.ndim > 1)
    return [op.swapaxes(x, j % x.ndim, k % x.ndim)]


def rolled(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.of(i, lambda v: v.ndim > 0)
    return [op.roll(x, 1 + k % 2, j % x.ndim)]


def triangle(name: str) -> Row:
    return lambda p, i, j, k: [getattr(op, name)(p.rank(2, i), k % 2)]


def topk(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.of(i, lambda v: p.is_float(v) and v.ndim > 0 and v.shape[-1] > 1)
    values, indices = op.topk(x, 2, -1)
    return [values, op.astype(indices, "int32")]


def ordered(name: str) -> Row:
    def row(p: Pool, i: int, j: int, k: int) -> list[Any]:
        x = p.of(i, lambda v: p.is_float(v) and v.ndim > 0)
        return [getattr(op, name)(x, j % x.ndim)]

    return row


def ternary(p: Pool, i: int, j: int, k: int) -> list[Any]:
    x = p.float(i)
    y = p.like(j, x)
    return [op.addcmul(x, y, x, 0.5) if k % 2 else op.lerp(x, y, 0.25)]


def cast_back(p: Pool, i: int, j: int, k: int) -> list[Any]:
    return [op.astype(op.astype(p.float(i), ("float32", "float64", "bool")[k % 3]), p.dtype)]


def loss(name: str) -> Row:
    def row(p: Pool, i: int, j: int, k: int) -> list[Any]:
        x = p.float(i)
        return [getattr(op, name)(x, p.like(j, x))]

    return row


def write(p: Pool, i: int, j: int, k: int) -> list[Any]:
    """Write to a value, perhaps through a view; what shares its memory changes too."""
    x = op.reshape(p.writable(i), (-1,))
    op.sgd(x, op.copy(x), op.zeros_like(x), 0.25, 0.5)
    return []


SMOOTH_ROWS: dict[str, Row] = {
    **{n: unary(n) for n in SMOOTH},
    **{n: binary(n) for n in SMOOTH_PAIRS},
    **{n: reduction(n) for n in ("sum", "mean", "logsumexp")},
    **{n: along_axis(n) for n in ALONG_AXIS},
    "cumsum": scan("cumsum"),
    "view": view,
    "permute_dims": permute_dims,
    "swapaxes": swapped,
    "split": flat_split,
    **{n: joined(n) for n in ("concat", "stack")},
    **{n: matmul(n) for n in ("matmul", "matmul_nt", "matmul_tn")},
    "batch_matmul": attention,
    "conv2d": convolution,
    **{n: pool2d(n) for n in ("max_pool2d", "avg_pool2d")},
    "group_norm": group_norm,
    "batch_norm": batch_norm,
    "bias_add": bias_add,
    "where": smaller,
    "take": chosen,
    "constant": constant,
    "slice": sliced,
    "pad": padded,
    **{n: grown(n) for n in ("repeat", "tile")},
    "broadcast_to": broadcast,
    "flip": flipped,
    "roll": rolled,
    **{n: triangle(n) for n in ("tril", "triu")},
    "ternary": ternary,
    "expand_dims": lambda p, i, j, k: [op.expand_dims(p.of(i, lambda v: v.ndim < 4), 0)],
    "squeeze": lambda p, i, j, k: [op.squeeze(p.any(i))],
    "clip": lambda p, i, j, k: [op.clip(p.float(i), -0.5, 0.75)],
    "dead": lambda p, i, j, k: [op.exp(p.float(i)), p.float(j)][1:],
    "twice": lambda p, i, j, k: [op.add(op.tanh(p.float(i)), op.tanh(p.float(i)))],
    **{n: loss(n) for n in ("mse_loss", "huber_loss")},
}
ROWS: dict[str, Row] = {
    **SMOOTH_ROWS,
    **{n: unary(n) for n in (*ROUGH, *TESTS)},
    **{n: binary(n) for n in (*ROUGH_PAIRS, *COMPARISONS)},
    **{n: logical(n) for n in LOGICAL},
    "logical_not": lambda p, i, j, k: [op.logical_not(p.of(i, lambda v: v.dtype == "bool"))],
    **{n: reduction(n) for n in REDUCTIONS},
    **{n: ordered(n) for n in ORDERS},
    "cumprod": scan("cumprod"),
    "where": where,
    "one_hot": one_hot,
    "topk": topk,
    "astype": cast_back,
    "zeros_like": lambda p, i, j, k: [op.zeros_like(p.any(i)), op.ones_like(p.any(j))],
    "write": write,
}
