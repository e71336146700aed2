"""The kernels that `kernels_cuda.py` measures, as data: what they read is 64 MB and more.

To add one, add a `Kernel` to a group of `KERNELS`: a function of meta operators, the same in torch,
and what makes the inputs in a dtype. All inputs are made on the device; every contender gets
tensors of its own with the same values.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from cuda_kernel import IMAGES, Kernel, indexed, labelled, normal, size
from kernel_list_cuda_attention import ATTENTION, SCANS
from kernel_list_cuda_experts import EXPERTS
from kernel_list_cuda_gated import GATED
from kernel_list_cuda_pooling import POOLING

import meta

WIDE = (8192, 8192)
ROWS = (32768, 1024)
TOKENS = (16384, 768)
CUBE = (256, 512, 512)
HEADS = (64, 512, 16, 64)
VOCABULARY, CLASSES = 30522, 50257


def condition(g: torch.Generator, dtype: torch.dtype) -> list[torch.Tensor]:
    """Inputs of `where`."""
    a, b = normal(WIDE, WIDE)(g, dtype)
    return [torch.rand(WIDE, generator=g, device=g.device) < 0.5, a, b]


def statistics(g: torch.Generator, dtype: torch.dtype) -> list[torch.Tensor]:
    """Images, and float32 running mean and variance, scale and shift."""
    rest = [torch.rand(64, generator=g, device=g.device) + 0.5 for _ in range(4)]
    return [*normal(IMAGES)(g, dtype), *rest]


ELEMENTWISE = [
    Kernel("elementwise", "add", meta.add, torch.add, normal(WIDE, WIDE)),
    Kernel("elementwise", "multiply by row", meta.multiply, torch.mul, normal(WIDE, (8192,))),
    Kernel("elementwise", "multiply by column", meta.multiply, torch.mul, normal(WIDE, (8192, 1))),
    Kernel("elementwise", "where", meta.where, torch.where, condition),
    Kernel("elementwise", "exp", meta.exp, torch.exp, normal(WIDE)),
    Kernel("elementwise", "gelu", meta.gelu, F.gelu, normal(WIDE)),
    Kernel("elementwise", "tanh", meta.tanh, torch.tanh, normal(WIDE)),
    Kernel(
        "elementwise",
        "cast to float16",
        lambda x: meta.astype(x, dtype="float16"),
        lambda x: x.to(torch.float16),
        normal(WIDE),
        dtypes=(torch.float32,),
    ),
    Kernel(
        "elementwise",
        "cast to float32",
        lambda x: meta.astype(x, dtype="float32"),
        lambda x: x.to(torch.float32),
        normal(WIDE),
        dtypes=(torch.float16,),
    ),
    Kernel(
        "elementwise",
        "add of odd size",
        meta.add,
        torch.add,
        normal((8191, 8191), (8191, 8191)),
    ),
    Kernel(
        "elementwise",
        "relu(a * b + a)",
        lambda a, b: meta.relu(meta.add(meta.multiply(a, b), a)),
        lambda a, b: torch.relu(a * b + a),
        normal(WIDE, WIDE),
        chain=True,
    ),
    Kernel(
        "elementwise",
        "gelu(x + bias)",
        lambda x, b: meta.gelu(meta.add(x, b)),
        lambda x, b: F.gelu(x + b),
        normal((16384, 3072), (3072,)),
        chain=True,
    ),
    Kernel(
        "elementwise",
        "relu(images + channel)",
        lambda x, b: meta.relu(meta.bias_add(x, b)),
        lambda x, b: torch.relu(x + b[:, None, None]),
        normal(IMAGES, (64,)),
        chain=True,
    ),
    Kernel(
        "elementwise",
        "dropout",
        lambda x: meta.dropout(x, 0.1),
        lambda x: F.dropout(x, 0.1),
        normal(WIDE),
    ),
]

REDUCTIONS = [
    Kernel("reductions", "sum of all", lambda x: meta.sum(x), lambda x: x.sum(), normal(WIDE)),
    Kernel(
        "reductions", "sum, first axis", lambda x: meta.sum(x, axis=0), lambda x: x.sum(0),
        normal(WIDE),
    ),
    Kernel(
        "reductions", "sum, first axis, narrow", lambda x: meta.sum(x, axis=0), lambda x: x.sum(0),
        normal((131072, 768)),
    ),
    Kernel(
        "reductions", "sum, middle axis", lambda x: meta.sum(x, axis=1), lambda x: x.sum(1),
        normal(CUBE),
    ),
    Kernel(
        "reductions", "sum, last axis", lambda x: meta.sum(x, axis=-1), lambda x: x.sum(-1),
        normal(WIDE),
    ),
    Kernel(
        "reductions", "sum, last axis, short", lambda x: meta.sum(x, axis=-1), lambda x: x.sum(-1),
        normal((1048576, 64)),
    ),
    Kernel(
        "reductions", "mean of images", lambda x: meta.mean(x, axis=(2, 3)),
        lambda x: x.mean((2, 3)), normal(IMAGES),
    ),
    Kernel(
        "reductions", "sum of channels", lambda x: meta.sum(x, axis=(0, 2, 3)),
        lambda x: x.sum((0, 2, 3)), normal(IMAGES),
    ),
    Kernel(
        "reductions", "max, last axis", lambda x: meta.max(x, axis=-1), lambda x: x.amax(-1),
        normal(WIDE),
    ),
    Kernel(
        "reductions", "argmax, last axis", lambda x: meta.argmax(x, axis=-1),
        lambda x: x.argmax(-1), normal(WIDE),
    ),
    Kernel(
        "reductions", "var, last axis", lambda x: meta.var(x, axis=-1, correction=1),
        lambda x: x.var(-1), normal(WIDE),
    ),
    Kernel(
        "reductions", "sum(relu(a * b))",
        lambda a, b: meta.sum(meta.relu(meta.multiply(a, b)), axis=-1),
        lambda a, b: torch.relu(a * b).sum(-1), normal(WIDE, WIDE), chain=True,
    ),
]  # fmt: skip

NORMALISATIONS = [
    Kernel(
        "normalisations", "layer_norm", lambda x, w, b: meta.layer_norm.plain(x, w, b),
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), normal(ROWS, (1024,), (1024,)),
    ),
    Kernel(
        "normalisations", "layer_norm of 8192", lambda x, w, b: meta.layer_norm.plain(x, w, b),
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), normal(WIDE, (8192,), (8192,)),
    ),
    Kernel(
        "normalisations", "layer_norm_dx", lambda x, w, dy: meta.layer_norm_dx(x, w, dy)[0],
        lambda x, w, dy: _layer_norm_backward(x, w, dy)[0],
        normal(ROWS, (1024,), ROWS),
    ),
    Kernel(
        "normalisations", "rms_norm", lambda x, w: meta.rms_norm.plain(x, w),
        lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), normal(ROWS, (1024,)),
    ),
    Kernel(
        "normalisations", "layer_norm(x + y)",
        lambda x, y, w, b: meta.layer_norm.plain(meta.add(x, y), w, b),
        lambda x, y, w, b: F.layer_norm(x + y, x.shape[-1:], w, b),
        normal(ROWS, ROWS, (1024,), (1024,)), chain=True,
    ),
    Kernel(
        "normalisations", "batch_norm_infer",
        lambda x, m, v, w, b: meta.batch_norm_infer(x, m, v, w, b),
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), statistics,
    ),
    Kernel(
        "normalisations", "batch_norm_train",
        lambda x, m, v, w, b: meta.batch_norm_train(x, m, v, w, b)[0],
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True), statistics,
        bytes=lambda given, made: size(given) + size(given[:1]) + size(made),
    ),
]  # fmt: skip

SOFTMAX = [
    Kernel("softmax", "softmax", lambda x: meta.softmax(x), lambda x: x.softmax(-1), normal(WIDE)),
    Kernel(
        "softmax", "softmax of 512", lambda x: meta.softmax(x), lambda x: x.softmax(-1),
        normal((131072, 512)),
    ),
    Kernel(
        "softmax", "log_softmax of 30,522", lambda x: meta.log_softmax(x),
        lambda x: x.log_softmax(-1), normal((2048, VOCABULARY)),
    ),
    Kernel(
        "softmax", "log_softmax of 50,257", lambda x: meta.log_softmax(x),
        lambda x: x.log_softmax(-1), normal((2048, CLASSES)),
    ),
    Kernel(
        "softmax", "softmax_dx", lambda y, dy: meta.softmax_dx(y, dy),
        lambda y, dy: torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype),
        normal(WIDE, WIDE),
    ),
    Kernel(
        "softmax", "softmax(x / 8 + mask)",
        lambda x, m: meta.softmax(meta.add(meta.multiply(x, 0.125), m)),
        lambda x, m: (x * 0.125 + m).softmax(-1), normal((64, 16, 256, 256), (64, 1, 1, 256)),
        chain=True,
    ),
    Kernel(
        "softmax", "cross_entropy of 30,522", meta.cross_entropy,
        F.cross_entropy, labelled((4096, VOCABULARY)),
    ),
    Kernel(
        "softmax", "cross_entropy of 50,257", meta.cross_entropy,
        F.cross_entropy, labelled((4096, CLASSES)),
    ),
    Kernel(
        "softmax", "cross_entropy_dpred of 30,522",
        lambda p, t, dy: meta.cross_entropy_dpred(dy, p, t),
        lambda p, t, dy: _cross_entropy_backward(p, t, dy),
        lambda g, dtype: [
            *labelled((4096, VOCABULARY))(g, dtype), torch.ones((), device=g.device, dtype=dtype)
        ],
    ),
]  # fmt: skip

MOVEMENT = [
    Kernel(
        "transposes", "transpose", lambda x: meta.permute_dims(x, axes=(1, 0)),
        lambda x: x.t().contiguous(), normal(WIDE),
    ),
    Kernel(
        "transposes", "transpose of odd sizes", lambda x: meta.permute_dims(x, axes=(1, 0)),
        lambda x: x.t().contiguous(), normal((8191, 4097)),
    ),
    Kernel(
        "transposes", "transpose of heads", lambda x: meta.permute_dims(x, axes=(0, 2, 1, 3)),
        lambda x: x.transpose(1, 2).contiguous(), normal(HEADS),
    ),
    Kernel(
        "transposes", "batched transpose", lambda x: meta.permute_dims(x, axes=(0, 2, 1)),
        lambda x: x.transpose(1, 2).contiguous(), normal(CUBE),
    ),
    Kernel(
        "transposes", "NCHW to NHWC", lambda x: meta.permute_dims(x, axes=(0, 2, 3, 1)),
        lambda x: x.permute(0, 2, 3, 1).contiguous(), normal(IMAGES),
    ),
    Kernel(
        "transposes", "NHWC to NCHW", lambda x: meta.permute_dims(x, axes=(0, 3, 1, 2)),
        lambda x: x.permute(0, 3, 1, 2).contiguous(), normal((64, 112, 112, 64)),
    ),
    Kernel(
        "transposes", "relu(transpose + bias)",
        lambda x, b: meta.relu(meta.add(meta.permute_dims(x, axes=(1, 0)), b)),
        lambda x, b: torch.relu(x.t() + b).contiguous(), normal(WIDE, (8192,)), chain=True,
    ),
    Kernel(
        "transposes", "concat", lambda a, b: meta.concat((a, b), axis=-1),
        lambda a, b: torch.cat((a, b), -1), normal((8192, 4096), (8192, 4096)),
    ),
]  # fmt: skip

INDEXED = [
    Kernel(
        "by index", "embedding", lambda x, i: meta.embedding(i, x),
        lambda x, i: F.embedding(i, x), indexed((VOCABULARY, 768), (65536,), VOCABULARY),
        bytes=lambda given, made: size(given[1:]) + 2 * size(made),
    ),
    Kernel(
        "by index", "embedding_dx", lambda dy, i: meta.embedding_dx(dy, i, (VOCABULARY, 768)),
        lambda dy, i: torch.ops.aten.embedding_dense_backward(dy, i, VOCABULARY, -1, False),
        indexed((65536, 768), (65536,), VOCABULARY),
    ),
]  # fmt: skip


def _layer_norm_backward(x: Any, w: Any, dy: Any) -> Any:
    """As autograd calls it: with the statistics of the forward pass, which are small."""
    shape = list(x.shape[-1:])
    _, mean, inverse = torch.ops.aten.native_layer_norm(x, shape, w, w, 1e-5)
    return torch.ops.aten.native_layer_norm_backward(
        dy, x, shape, mean, inverse, w, w, [True, True, True]
    )


def _cross_entropy_backward(p: Any, t: Any, dy: Any) -> Any:
    hot = torch.zeros_like(p).scatter_(1, t[:, None], 1.0)
    return (p.softmax(-1) - hot) * (dy / p.shape[0])


def _product(m: int, k: int, n: int) -> Kernel:
    return Kernel(
        "products", f"matmul {m}x{k}x{n}", meta.matmul, torch.matmul, normal((m, k), (k, n)),
        flops=2.0 * m * k * n,
    )  # fmt: skip


def _linear(m: int, k: int, n: int, then: str, meta_then: Any, torch_then: Any) -> Kernel:
    """A linear layer with what follows it, which a library's epilogue may do."""
    return Kernel(
        "products", f"linear {m}x{k}x{n}, {then}",
        lambda x, w, b, c: meta_then(meta.bias_add(meta.dense(x, w), b, 1), c),
        lambda x, w, b, c: torch_then(F.linear(x, w, b), c),
        normal((m, k), (n, k), (n,), (m, n)), flops=2.0 * m * k * n, chain=True,
    )  # fmt: skip


def _convolution(n: int, c: int, extent: int, o: int, k: int, stride: int) -> Kernel:
    out = (extent + 2 * (k // 2) - k) // stride + 1
    return Kernel(
        "convolutions", f"conv {n}x{c}x{extent}x{extent}, {o} of {k}x{k}, stride {stride}",
        lambda x, w: meta.conv2d(x, w, stride=stride, padding=k // 2),
        lambda x, w: F.conv2d(x, w, stride=stride, padding=k // 2),
        normal((n, c, extent, extent), (o, c, k, k)), flops=2.0 * n * o * out * out * c * k * k,
    )  # fmt: skip


PRODUCTS = [
    _product(4096, 768, 3072),
    _product(4096, 4096, 4096),
    _linear(4096, 768, 3072, "relu", lambda y, c: meta.relu(y), lambda y, c: F.relu(y)),
    _linear(
        4096, 768, 3072, "gelu (tanh)",
        lambda y, c: meta.gelu(y, "tanh"), lambda y, c: F.gelu(y, approximate="tanh"),
    ),
    _linear(4096, 3072, 768, "residual", lambda y, c: meta.add(y, c), lambda y, c: y + c),
    Kernel(
        "products", "batch_matmul 512x(512x64x512)", meta.batch_matmul, torch.bmm,
        normal((512, 512, 64), (512, 64, 512)), flops=2.0 * 512 * 512 * 64 * 512,
    ),
    _convolution(64, 64, 56, 64, 3, 1),
    _convolution(64, 256, 56, 64, 1, 1),
    _convolution(64, 3, 224, 64, 7, 2),
]  # fmt: skip

KERNELS = [
    *ATTENTION,
    *SCANS,
    *ELEMENTWISE,
    *REDUCTIONS,
    *NORMALISATIONS,
    *SOFTMAX,
    *MOVEMENT,
    *POOLING,
    *INDEXED,
    *PRODUCTS,
    *EXPERTS,
    *GATED,
]
