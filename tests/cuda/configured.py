"""Kernels of all dialects that have configurations on CUDA, at sizes of networks, and how far the
results of a configuration are from those of the default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.core import DIALECTS, OpEnv, dispatch, only
from meta.ir.types import TensorType

CUDA = Device("cuda")
ERROR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-12}
"""Of the largest element of the default's result: two roundings, and sums in another order."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel with the tensors of a call. ``written``: places of those that it writes, too."""

    env: OpEnv
    given: list[torch.Tensor]
    types: list[TensorType]
    written: tuple[int, ...] = ()

    def results(self) -> list[torch.Tensor]:
        """Return room for the results, filled with what shows if it stays there."""
        made = [
            torch.empty(t.static_shape, dtype=TO_TORCH[t.dtype], device="cuda") for t in self.types
        ]
        for one in made:
            one.fill_(77)
        return made

    def run(self, env: OpEnv) -> list[torch.Tensor]:
        """Return what a kernel computes, and what it writes into arguments."""
        given = [t.clone() if i in self.written else t for i, t in enumerate(self.given)]
        if env.allocates:
            found = env.run(*given)
            results = list(found) if isinstance(found, tuple) else [found]
        else:
            results = self.results()
            env.run(*given, *results)
        return [*results, *(given[i] for i in self.written)]


def distance(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Return how far results are from others, in shares of what is allowed: above 1 is wrong."""
    worst = 0.0
    for one, right in zip(found, expected, strict=True):
        if not right.dtype.is_floating_point:
            worst = max(worst, 0.0 if torch.equal(one, right) else float("inf"))
            continue
        if not torch.equal(one.isnan(), right.isnan()) or not right.numel():
            worst = max(worst, float("inf") if right.numel() else 0.0)
            continue
        finite = right.isfinite()
        scale = right[finite].double().abs().max().clamp(min=1e-20)
        off = (one[finite].double() - right[finite].double()).abs().max() / scale
        allowed = ERROR[str(right.dtype)[6:]] * (10 if len(expected) > 1 else 1)
        worst = max(worst, float(off) / allowed)
    return worst


def normal(*shape: int, dtype: str = "float16") -> torch.Tensor:
    """Return random numbers on the device."""
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device="cuda").to(TO_TORCH[dtype])


def _kind(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], torch.Tensor):
        return tuple(map(_kind, value))
    if isinstance(value, torch.Tensor):
        return TensorType(tuple(value.shape), str(value.dtype)[6:])
    return value


def call(dialect: str, of: Any, *args: Any, written: tuple[int, ...] = ()) -> Prepared:
    """Return a dialect's kernel of an operator."""
    bound = of.schema.bind(tuple(map(_kind, args)), {}, lambda t: t)
    values = of.call_values(bound, CUDA)
    with only(dialect):
        env = dispatch(values)
    given = [v for a in args for v in (a if isinstance(a, tuple) else (a,))]
    tensors = [v for v in given if isinstance(v, torch.Tensor)]
    return Prepared(env, tensors, list(values.outputs), written)


def fused(dialect: str, name: str, results: Sequence[TensorType], **captures: Any) -> Prepared:
    """Return a dialect's kernel of a pattern."""
    DIALECTS[dialect].load()
    types = {n: _kind(v) for n, v in captures.items()}
    result = results[0] if len(results) == 1 else tuple(results)
    env = DIALECTS[dialect].patterns[name].prepare(types, result, CUDA)
    given = [v for v in captures.values() if isinstance(v, torch.Tensor)]
    return Prepared(env, given, list(results))


def _layer(name: str, rows: int, inner: int, columns: int, dtype: str = "float16") -> Prepared:
    y = TensorType((rows, columns), dtype)
    x, w, b = (normal(*s, dtype=dtype) for s in ((rows, inner), (columns, inner), (columns,)))
    return fused("cublas", name, [y, y] if "kept" in name else [y], x=x, w=w, b=b, axis=1)


def _convolution(
    dialect: str, by: str, shape: tuple[int, ...], out: int, size: int, groups: int = 1,
    dtype: str = "float16",
) -> Prepared:  # fmt: skip
    half = size // 2
    options = (1, 1), (half, half), (1, 1), groups, "NHWC", "OHWI", "NHWC"
    x, w = normal(*shape, dtype=dtype), normal(out, size, size, shape[-1] // groups, dtype=dtype)
    y = normal(*shape[:3], out, dtype=dtype)
    if by == "x":
        return call(dialect, op.conv2d_dx, w, None, y, shape, *options)
    if by == "w":
        return call(dialect, op.conv2d_dw, x, None, y, tuple(w.shape), *options)
    return call(dialect, op.conv2d, x, w, *options)


def _followed(shape: tuple[int, ...], out: int) -> Prepared:
    options: dict[str, Any] = dict.fromkeys(("stride", "padding", "dilation"), (1, 1))
    options |= {"groups": 1, "layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
    options["axis"] = 3
    x, w, b = normal(*shape), normal(out, 3, 3, shape[-1]), normal(out)
    y = TensorType((*shape[:3], out), "float16")
    return fused("cudnn", "conv2d_bias_relu", [y], x=x, w=w, b=b, **options)


def _attention(dialect: str, batch: int, heads: int, steps: int, width: int, dtype: str = "float16",
               gradient: bool = False) -> Prepared:  # fmt: skip
    q, k, v = (normal(batch, heads, steps, width, dtype=dtype) * (1 + i / 8) for i in range(3))
    options = None, False, None, "BHSD"
    if not gradient:
        return call(dialect, op.fused_attention, q, k, v, *options)
    forward = call("torch", op.fused_attention, q, k, v, *options)
    y, logsumexp = forward.run(forward.env)[:2]
    dy = normal(batch, heads, steps, width, dtype=dtype)
    return call(dialect, op.fused_attention_dx, q, k, v, None, y, logsumexp, dy, *options[1:])


def _batch_norm(shape: tuple[int, ...], gradient: bool = False) -> Prepared:
    x, dy, c = normal(*shape), normal(*shape), shape[-1]
    w, b = (normal(c, dtype="float32") + i for i in range(2))
    if gradient:
        return call("cuda", op.batch_norm_train_dxwb, dy, x, w, None, 1e-3, -1)
    running = torch.zeros(c, device="cuda"), torch.ones(c, device="cuda")
    return call("cuda", op.batch_norm_train, x, *running, w, b, 0.3, 1e-3, -1, written=(1, 2))


def _layer_norm(rows: int, width: int, gradient: bool = False) -> Prepared:
    x, dy, w, b = normal(rows, width), normal(rows, width), normal(width), normal(width)
    if gradient:
        return call("cuda", op.layer_norm_dx, x, w, dy, -1, 1e-5)
    return call("cuda", op.layer_norm, x, w, b, -1, 1e-5)


def _embedding(rows: int, count: int, width: int) -> Prepared:
    indices = torch.arange(count, device="cuda") * 7919 % rows
    return call("cuda", op.embedding_dx, normal(count, width), indices, rows)


def _norm_of_list(*sizes: int) -> Prepared:
    tensors = tuple(normal(size, dtype="float32") for size in sizes)
    return call("cuda", op.multi_tensor_norm, tensors)


def _product(rows: int, inner: int, columns: int, dtype: str = "float16") -> Prepared:
    x, w = normal(rows, inner, dtype=dtype), normal(columns, inner, dtype=dtype)
    return call("cublas", op.dense, x, w)


CASES: dict[str, Callable[[], Prepared]] = {
    "cublas dense 4096x768x3072": lambda: _product(4096, 768, 3072),
    "cublas dense 128x768x768": lambda: _product(128, 768, 768),
    "cublas dense 1x4096x4096": lambda: _product(1, 4096, 4096),
    "cublas dense 1024 bfloat16": lambda: _product(1024, 1024, 1024, "bfloat16"),
    "cublas dense 1024 float32": lambda: _product(1024, 1024, 1024, "float32"),
    "cublas dense 512 float64": lambda: _product(512, 512, 512, "float64"),
    "cublas matmul_tn 768x4096x768": lambda: call(
        "cublas", op.matmul_tn, normal(4096, 768), normal(4096, 768)
    ),
    "cublas matmul 96 batches": lambda: call(
        "cublas", op.batch_matmul, normal(96, 128, 64), normal(96, 64, 128)
    ),
    "cublas bias 4096x768x3072": lambda: _layer("dense_bias", 4096, 768, 3072),
    "cublas bias_relu 1024x3072x768": lambda: _layer("dense_bias_relu", 1024, 3072, 768),
    "cublas bias_gelu_kept 4096x768": lambda: _layer("dense_bias_gelu_kept", 4096, 768, 3072),
    "cublas bias 1024 float32": lambda: _layer("dense_bias", 1024, 1024, 1024, "float32"),
    "cudnn conv 3x3x64 56": lambda: _convolution("cudnn", "", (32, 56, 56, 64), 64, 3),
    "cudnn conv 1x1 256 28": lambda: _convolution("cudnn", "", (32, 28, 28, 256), 512, 1),
    "cudnn conv by x": lambda: _convolution("cudnn", "x", (32, 28, 28, 128), 128, 3),
    "cudnn conv by w": lambda: _convolution("cudnn", "w", (32, 28, 28, 128), 128, 3),
    "cudnn conv float32": lambda: _convolution("cudnn", "", (8, 28, 28, 64), 64, 3, 1, "float32"),
    "cudnn conv bias relu": lambda: _followed((32, 28, 28, 128), 128),
    "cudnn attention": lambda: _attention("cudnn", 8, 12, 512, 64),
    "tvm exp 1M half": lambda: call("tvm", op.exp, normal(1024, 1024)),
    "tvm exp 50k": lambda: call("tvm", op.exp, normal(50176, dtype="float32")),
    "tvm add row 4096x3072": lambda: call("tvm", op.add, normal(4096, 3072), normal(3072)),
    "tvm softmax 4096x1000": lambda: call(
        "tvm", op.softmax, normal(4096, 1000, dtype="float32"), -1
    ),
    "tvm softmax 1024x50257": lambda: call("tvm", op.softmax, normal(1024, 50257), -1),
    "tvm sum down 4096x768": lambda: call("tvm", op.sum, normal(4096, 768), (0,), False),
    "tvm sum all 4M": lambda: call("tvm", op.sum, normal(2048, 2048, dtype="float32"), None, False),
    "tvm max along 4096x768": lambda: call("tvm", op.max, normal(4096, 768), (1,), False),
    "tvm permute 4096x768": lambda: call("tvm", op.permute_dims, normal(4096, 768), (1, 0)),
    "tvm max_pool2d": lambda: call(
        "tvm", op.max_pool2d, normal(32, 64, 56, 56), 3, 2, 1, 1, False, True, "NCHW"
    ),
    "tvm cumsum down": lambda: call("tvm", op.cumsum, normal(1024, 1024, dtype="float32"), 0),
    "cuda batch_norm 56": lambda: _batch_norm((32, 56, 56, 64)),
    "cuda batch_norm 7": lambda: _batch_norm((32, 7, 7, 512)),
    "cuda batch_norm gradient": lambda: _batch_norm((32, 28, 28, 128), gradient=True),
    "cuda layer_norm 4096x768": lambda: _layer_norm(4096, 768),
    "cuda layer_norm gradient": lambda: _layer_norm(4096, 768, gradient=True),
    "cuda depthwise": lambda: _convolution("cuda", "", (32, 28, 28, 192), 192, 7, 192),
    "cuda depthwise by w": lambda: _convolution("cuda", "w", (32, 28, 28, 192), 192, 7, 192),
    "cuda grouped": lambda: _convolution("cuda", "", (32, 28, 28, 256), 256, 3, 32),
    "cuda embedding": lambda: _embedding(30522, 4096, 768),
    "cuda norm of a list": lambda: _norm_of_list(*[768 * 768] * 24, *[768] * 48),
    "cuda attention float32": lambda: _attention("cuda", 4, 12, 256, 64, "float32"),
    "cuda short attention": lambda: _attention("cuda", 512, 6, 49, 32),
    "cuda short attention gradient": lambda: _attention("cuda", 512, 6, 49, 32, gradient=True),
}
"""By dialect and call."""
