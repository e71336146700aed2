"""Hand-written kernels in each of their configurations, run as C++ on the CPU: the results are
those of the default, which other tests compare with torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from meta import op
from meta.base.device import CPU, Device
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import attention as _attention  # noqa: F401, registers kernels, as do all:
from meta.dialect.cuda import batch_norm, conv, embedding, layer_norm, optimizer  # noqa: F401
from meta.dialect.cuda import cuda as dialect
from meta.ir import TensorType
from meta.testing.emulator.handwritten import Function

CUDA = Device("cuda:0")
pytestmark = pytest.mark.usefixtures("emulated")


def numbers(*shape: int, dtype: str = "float16") -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(getattr(torch, dtype))


def lists(start: float) -> tuple[torch.Tensor, ...]:
    """Return tensors of which one is of several chunks."""
    sizes = (300, 257), (9,), (1, 1), (4096,)
    return tuple(numbers(*size, dtype="float32") + start for size in sizes)


def kind(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], torch.Tensor):
        return tuple(map(kind, value))
    if isinstance(value, torch.Tensor):
        return TensorType(tuple(value.shape), str(value.dtype)[6:])
    return value


def norm(shape: tuple[int, ...], name: str = "batch_norm_train") -> Callable[[], tuple[Any, ...]]:
    def args() -> tuple[Any, ...]:
        x, w, b, dy = numbers(*shape), *(numbers(shape[-1], dtype="float32") for _ in "wb"), 0
        if name == "batch_norm_train":
            running = torch.zeros(shape[-1]), torch.ones(shape[-1])
            return op.batch_norm_train, x, *running, w, b, 0.3, 1e-3, -1
        dy = numbers(*shape)
        if name == "batch_norm_train_dxwb":
            return op.batch_norm_train_dxwb, dy, x, w, None, 1e-3, -1
        w, b = w.half(), b.half()
        if name == "layer_norm":
            return op.layer_norm, x, w, b, -1, 1e-5
        return op.layer_norm_dx, x, w, dy, -1, 1e-5

    return args


def convolution(shape: tuple[int, ...], groups: int, each: int, by: str = "") -> Any:
    channels = shape[-1]
    options = (1, 1), (1, 1), (1, 1), groups, "NHWC", "OHWI", "NHWC"

    def args() -> tuple[Any, ...]:
        x, w = numbers(*shape), numbers(channels, 3, 3, each)
        if by == "dx":
            return op.conv2d_dx, w, None, x, shape, *options
        if by == "dw":
            return op.conv2d_dw, x, None, numbers(*shape[:1], *shape[1:]), tuple(w.shape), *options
        return op.conv2d, x, w, *options

    return args


def attention(steps: int, width: int, dtype: str, gradient: bool = False) -> Any:
    def args() -> tuple[Any, ...]:
        q, k, v = (numbers(2, 2, steps, width, dtype=dtype) + 0.1 * i for i in range(3))
        options = None, False, None, "BHSD"
        if not gradient:
            return op.fused_attention, q, k, v, *options
        y, lse = numbers(2, 2, steps, width, dtype=dtype), numbers(2, 2, steps, dtype="float32") + 9
        return op.fused_attention_dx, q, k, v, None, y, lse, q, *options[1:]

    return args


CASES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "batch_norm": norm((7, 11, 72)),
    "batch_norm, one row": norm((2, 1, 3)),
    "batch_norm, tall": norm((500, 4, 8)),
    "batch_norm gradient": norm((7, 11, 72), "batch_norm_train_dxwb"),
    "layer_norm": norm((37, 136), "layer_norm"),
    "layer_norm, odd": norm((5, 77), "layer_norm"),
    "layer_norm gradient": norm((37, 136), "layer_norm_dx"),
    "depthwise": convolution((2, 9, 11, 24), 24, 1),
    "depthwise by x": convolution((2, 9, 11, 24), 24, 1, "dx"),
    "depthwise by w": convolution((2, 9, 11, 24), 24, 1, "dw"),
    "grouped": convolution((1, 9, 11, 32), 4, 8),
    "embedding": lambda: (
        op.embedding_dx, numbers(300, 40), torch.arange(300) * 7 % 41, 200,
    ),
    "embedding, few": lambda: (op.embedding_dx, numbers(30, 8), torch.arange(30) % 3, 5),
    "norm of a list": lambda: (op.multi_tensor_norm, lists(0.0)),
    "cast of a list": lambda: (op.multi_tensor_cast, lists(0.0), "float16"),
    "attention": attention(70, 16, "float32"),
    "short attention": attention(49, 32, "float16"),
    "short attention, gradient": attention(20, 16, "float16", gradient=True),
}  # fmt: skip
OFTEN = "batch_norm", "layer_norm", "depthwise", "embedding", "short attention"


def prepared(of: Any, *args: Any) -> tuple[OpEnv, list[torch.Tensor], list[TensorType]]:
    # Sums over lists are kept where the call runs.
    device = CPU if of is op.multi_tensor_norm else CUDA
    call = of.call_values(of.schema.bind(tuple(map(kind, args)), {}, lambda t: t), device)
    return dialect.ops[of.name].make(call), list(call.outputs)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in OFTEN else pytest.mark.slow) for n in CASES]
)
def test_each_configuration_has_the_same_results(name: str, emulated: list[Function]) -> None:
    of, *args = CASES[name]()
    env, types = prepared(of, *args)
    assert env.configs is not None

    def run(made: OpEnv) -> list[torch.Tensor]:
        results = [torch.full(t.static_shape, -7.0).to(getattr(torch, t.dtype)) for t in types]
        values = [v for a in args for v in (a if isinstance(a, tuple) else (a,))]
        given = [v.clone() for v in values if isinstance(v, torch.Tensor)]
        made.run(*given, *results)
        return [*results, *given]

    expected = run(env)
    launched = {id(one) for one in emulated}
    configs = env.configs.listed()
    assert configs
    for config in configs:
        found = run(env.configured(config))
        for one, right in zip(found, expected, strict=True):
            torch.testing.assert_close(one, right, atol=2e-3, rtol=2e-3, msg=str(config))
    assert {id(one) for one in emulated} >= launched


def test_what_was_not_asked_for_is_refused() -> None:
    env, _ = prepared(*norm((7, 11, 72))())
    for config in ((("threads", 64),), (("warps", 4),), (("ahead", 4), ("blocks", 3))):
        with pytest.raises(Unsupported, match="this kernel has no"):
            env.configured(config)
    assert env.configured((("ahead", 4), ("blocks", 2))).workspace_bytes >= env.workspace_bytes
