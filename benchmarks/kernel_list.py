"""The kernels that `kernels_cpu.py` measures, as data: about 2**20 elements each.

To add one, add a `Kernel`: a function of meta operators, the same in torch, and what makes the
inputs. Inputs come from a generator, so that every contender gets tensors of its own with the same
values. Matrix products and convolutions are not here: on the CPU they are ATen's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import meta

Tensors = list[torch.Tensor]
WIDE = (1024, 1024)
ROWS = (4096, 256)
CUBE = (64, 128, 128)
IMAGES = (16, 64, 32, 32)


@dataclass(frozen=True)
class Kernel:
    """One line of the table. ``chain``: several operators, so several kernels until they fuse.

    ``compiled`` is what torch.compile gets, if it is not the same as the eager function.
    """

    name: str
    meta: Callable[..., Any]
    torch: Callable[..., Any]
    inputs: Callable[[torch.Generator], Tensors]
    chain: bool = False
    compiled: Callable[..., Any] | None = None


def normal(*shapes: tuple[int, ...]) -> Callable[[torch.Generator], Tensors]:
    """Inputs from the normal distribution."""
    return lambda g: [torch.randn(shape, generator=g) for shape in shapes]


def positive(*shapes: tuple[int, ...]) -> Callable[[torch.Generator], Tensors]:
    """Inputs between 0.1 and 4.1."""
    return lambda g: [torch.rand(shape, generator=g) * 4 + 0.1 for shape in shapes]


def indexed(
    shapes: tuple[tuple[int, ...], ...], index_shape: tuple[int, ...], limit: int
) -> Callable[[torch.Generator], Tensors]:
    """Normal inputs, then int64 indices below ``limit``."""
    return lambda g: [
        *normal(*shapes)(g),
        torch.randint(limit, index_shape, generator=g),
    ]


def half(shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[torch.Generator], Tensors]:
    """Two normal inputs in half precision."""
    return lambda g: [t.to(dtype) for t in normal(shape, shape)(g)]


def condition(g: torch.Generator) -> Tensors:
    """Inputs of `where`."""
    a, b = normal(WIDE, WIDE)(g)
    return [torch.rand(WIDE, generator=g) < 0.5, a, b]


def adamw_state(g: torch.Generator) -> Tensors:
    """Parameter, gradient, first and second moment."""
    return [*normal(WIDE, WIDE, WIDE)(g), *positive(WIDE)(g)]


def adamw_fused(x: Any, dx: Any, m: Any, v: Any) -> Any:
    """torch's fused step, the tenth."""
    torch._fused_adamw_(
        [x], [dx], [m], [v], [], [torch.tensor(10.0)],
        lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    return x


def adamw_formula(x: Any, dx: Any, m: Any, v: Any) -> Any:
    """The same written out, for torch.compile."""
    m.mul_(0.9).add_(dx * 0.1)
    v.mul_(0.999).add_(dx * dx * 0.001)
    rate = 1e-3 / (1 - 0.9**10)
    x.mul_(1 - 1e-3 * 0.01).sub_(rate * m / (v.sqrt() / (1 - 0.999**10) ** 0.5 + 1e-8))
    return x


def sgd_torch(x: Any, dx: Any, v: Any) -> Any:
    """v = mu v + dx, x -= rate v."""
    v.mul_(0.9).add_(dx)
    x.sub_(v, alpha=0.01)
    return x


def norm_inputs(g: torch.Generator) -> Tensors:
    """Images, running mean and variance, scale and shift."""
    return [*normal(IMAGES)(g), *positive((64,), (64,), (64,), (64,))(g)]


def embedding_dx_torch(dy: Any, i: Any) -> Any:
    """The gradient of an embedding, as autograd computes it."""
    return torch.ops.aten.embedding_dense_backward(dy, i, 4096, -1, False)


def searched(g: torch.Generator) -> Tensors:
    """A sorted sequence and values."""
    return [torch.randn(4096, generator=g).sort().values, torch.randn(1 << 18, generator=g)]


def classes(g: torch.Generator) -> Tensors:
    """Logits and class numbers."""
    return [torch.randn(ROWS, generator=g), torch.randint(256, (4096,), generator=g)]


KERNELS = [
    # elementwise
    Kernel("add", meta.add, torch.add, normal(WIDE, WIDE)),
    Kernel("add bfloat16", meta.add, torch.add, half(WIDE, torch.bfloat16)),
    Kernel("multiply by row", meta.multiply, torch.mul, normal(WIDE, (1024,))),
    Kernel("multiply by column", meta.multiply, torch.mul, normal(WIDE, (1024, 1))),
    Kernel("where", meta.where, torch.where, condition),
    Kernel("relu", meta.relu, torch.relu, normal(WIDE)),
    Kernel("exp", meta.exp, torch.exp, normal(WIDE)),
    Kernel("log", meta.log, torch.log, positive(WIDE)),
    Kernel("sin", meta.sin, torch.sin, normal(WIDE)),
    Kernel("atan2", meta.atan2, torch.atan2, normal(WIDE, WIDE)),
    Kernel("tanh", meta.tanh, torch.tanh, normal(WIDE)),
    Kernel("sigmoid", meta.sigmoid, torch.sigmoid, normal(WIDE)),
    Kernel("erf", meta.erf, torch.erf, normal(WIDE)),
    Kernel("gelu", meta.gelu, F.gelu, normal(WIDE)),
    Kernel("silu", meta.silu, F.silu, normal(WIDE)),
    Kernel(
        "silu_dx",
        lambda x, dy: meta.silu_dx(x, dy),
        lambda x, dy: torch.ops.aten.silu_backward(dy, x),
        normal(WIDE, WIDE),
    ),
    Kernel("pow", meta.pow, torch.pow, positive(WIDE, WIDE)),
    Kernel("remainder", meta.remainder, torch.remainder, normal(WIDE, WIDE)),
    Kernel(
        "cast to bfloat16",
        lambda x: meta.astype(x, dtype="bfloat16"),
        lambda x: x.to(torch.bfloat16),
        normal(WIDE),
    ),
    # softmax and its kin
    Kernel("softmax", lambda x: meta.softmax(x, axis=-1), lambda x: x.softmax(-1), normal(ROWS)),
    Kernel(
        "softmax of the first axis",
        lambda x: meta.softmax(x, axis=0),
        lambda x: x.softmax(0),
        normal(WIDE),
    ),
    Kernel(
        "log_softmax",
        lambda x: meta.log_softmax(x, axis=-1),
        lambda x: x.log_softmax(-1),
        normal(ROWS),
    ),
    Kernel(
        "softmax_dx",
        lambda y, dy: meta.softmax_dx(y, dy, axis=-1),
        lambda y, dy: torch.ops.aten._softmax_backward_data(dy, y, -1, torch.float32),
        normal(ROWS, ROWS),
    ),
    Kernel(
        "cross_entropy",
        meta.cross_entropy,
        F.cross_entropy,
        classes,
    ),
    Kernel(
        "layer_norm",
        lambda x, w, b: meta.layer_norm.plain(x, w, b),
        lambda x, w, b: F.layer_norm(x, (256,), w, b),
        normal(ROWS, (256,), (256,)),
    ),
    Kernel(
        "rms_norm",
        lambda x, w: meta.rms_norm.plain(x, w),
        lambda x, w: F.rms_norm(x, (256,), w, 1e-6),
        normal(ROWS, (256,)),
    ),
    Kernel(
        "batch_norm_infer",
        lambda x, m, v, w, b: meta.batch_norm_infer(x, m, v, w, b),
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        norm_inputs,
    ),
    Kernel(
        "batch_norm_train",
        lambda x, m, v, w, b: meta.batch_norm_train(x, m, v, w, b)[0],
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True),
        norm_inputs,
    ),
    # reductions
    Kernel("sum of all", lambda x: meta.sum(x), lambda x: x.sum(), normal(WIDE)),
    Kernel("sum, first axis", lambda x: meta.sum(x, axis=0), lambda x: x.sum(0), normal(WIDE)),
    Kernel("sum, middle axis", lambda x: meta.sum(x, axis=1), lambda x: x.sum(1), normal(CUBE)),
    Kernel("sum, last axis", lambda x: meta.sum(x, axis=-1), lambda x: x.sum(-1), normal(WIDE)),
    Kernel("max, first axis", lambda x: meta.max(x, axis=0), lambda x: x.amax(0), normal(WIDE)),
    Kernel("max, last axis", lambda x: meta.max(x, axis=-1), lambda x: x.amax(-1), normal(WIDE)),
    Kernel(
        "mean of images",
        lambda x: meta.mean(x, axis=(2, 3)),
        lambda x: x.mean((2, 3)),
        normal(IMAGES),
    ),
    Kernel(
        "argmax, last axis", lambda x: meta.argmax(x, axis=-1), lambda x: x.argmax(-1), normal(WIDE)
    ),
    Kernel(
        "var, last axis",
        lambda x: meta.var(x, axis=-1, correction=1),
        lambda x: x.var(-1),
        normal(WIDE),
    ),
    Kernel(
        "cumsum, last axis",
        lambda x: meta.cumsum(x, axis=-1),
        lambda x: x.cumsum(-1),
        normal(WIDE),
    ),
    # movement
    Kernel(
        "transpose",
        lambda x: meta.permute_dims(x, axes=(1, 0)),
        lambda x: x.t().contiguous(),
        normal(WIDE),
    ),
    Kernel(
        "transpose of heads",
        lambda x: meta.permute_dims(x, axes=(0, 2, 1, 3)),
        lambda x: x.transpose(1, 2).contiguous(),
        normal((8, 128, 16, 64)),
    ),
    Kernel(
        "NCHW to NHWC",
        lambda x: meta.permute_dims(x, axes=(0, 2, 3, 1)),
        lambda x: x.permute(0, 2, 3, 1).contiguous(),
        normal(IMAGES),
    ),
    Kernel(
        "concat",
        lambda a, b: meta.concat((a, b), axis=-1),
        lambda a, b: torch.cat((a, b), -1),
        normal((1024, 512), (1024, 512)),
    ),
    # by index
    Kernel(
        "gather",
        lambda x, i: meta.take_along_axis(x, i, 1),
        lambda x, i: x.gather(1, i),
        indexed((WIDE,), WIDE, 1024),
    ),
    Kernel(
        "embedding",
        lambda x, i: meta.embedding(i, x),
        lambda x, i: F.embedding(i, x),
        indexed(((4096, 256),), (4096,), 4096),
    ),
    Kernel(
        "embedding_dx",
        lambda dy, i: meta.embedding_dx(dy, i, (4096, 256)),
        embedding_dx_torch,
        indexed(((4096, 256),), (4096,), 4096),
    ),
    Kernel(
        "scatter_add",
        lambda x, src, i: meta.scatter_add(x, 1, i, src),
        lambda x, src, i: x.scatter_add(1, i, src),
        indexed((WIDE, WIDE), WIDE, 1024),
    ),
    Kernel("searchsorted", meta.searchsorted, torch.searchsorted, searched),
    # windows
    Kernel(
        "max_pool2d",
        lambda x: meta.max_pool2d(x, kernel_size=2, stride=2),
        lambda x: F.max_pool2d(x, 2),
        normal(IMAGES),
    ),
    Kernel(
        "avg_pool2d",
        lambda x: meta.avg_pool2d(x, kernel_size=3, stride=2, padding=1),
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        normal(IMAGES),
    ),
    # steps of optimizers
    Kernel(
        "sgd", lambda x, dx, v: meta.sgd(x, dx, v, 0.01, 0.9)[0], sgd_torch, normal(*[WIDE] * 3)
    ),
    Kernel(
        "adamw",
        lambda x, dx, m, v: meta.adamw(x, dx, m, v, 10, 1e-3)[0],
        adamw_fused,
        adamw_state,
        compiled=adamw_formula,
    ),
    # chains
    Kernel(
        "gelu(x + bias)",
        lambda x, b: meta.gelu(meta.add(x, b)),
        lambda x, b: F.gelu(x + b),
        normal(WIDE, (1024,)),
        chain=True,
    ),
    Kernel(
        "silu(a) * b",
        lambda a, b: meta.multiply(meta.silu(a), b),
        lambda a, b: F.silu(a) * b,
        normal(WIDE, WIDE),
        chain=True,
    ),
]
