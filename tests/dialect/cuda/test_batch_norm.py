"""Batch normalisation in CUDA, run as C++ on the CPU, beside torch in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base.device import Device
from meta.dialect.core import Unsupported
from meta.dialect.cuda import batch_norm
from meta.dialect.cuda.batch_norm import shares
from meta.ir import TensorType, parse_type
from meta.testing.emulator.handwritten import Function

CUDA = Device("cuda:0")


def type_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorType(tuple(value.shape), str(value.dtype).removeprefix("torch."))
    return value


def kernel(name: str, *args: Any) -> Callable[..., None]:
    """Return the kernel of a call; strings are types."""
    base = getattr(meta.op, name)
    given = [parse_type(a) if isinstance(a, str) else type_of(a) for a in args]
    bound = base.schema.bind(tuple(given), {}, lambda t: t)
    return getattr(batch_norm, name).make(base.call_values(bound, CUDA)).run


def fused(name: str, results: tuple[torch.Tensor, ...], **captures: Any) -> None:
    """Run the kernel of a pattern with its captures, and check what memory it says it takes."""
    types = tuple(map(type_of, results))
    known = {n: type_of(v) for n, v in captures.items()}
    pattern = batch_norm.dialect.patterns[name]
    env = pattern.prepare(known, types if len(types) > 1 else types[0], CUDA)
    taken: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        empty = torch.empty
        patch.setattr(torch, "empty", lambda *a, **k: taken.append(empty(*a, **k)) or taken[-1])
        env.run(*(v for v in captures.values() if isinstance(v, torch.Tensor)), *results)
    if all(t.data_ptr() % 16 == 0 for t in (*captures.values(), *results) if hasattr(t, "dtype")):
        assert env.workspace_bytes == sum(t.nbytes for t in taken) > 0


def numbers(*shape: int, dtype: str = "float32", mean: float = 0.0, at: int = 0) -> torch.Tensor:
    """Return random numbers whose memory begins ``at`` elements into an allocation."""
    count = torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(sum(shape) + at)
    flat = torch.randn(count + at, generator=generator) + mean
    return flat.to(getattr(torch, dtype))[at:].view(shape)


BOUNDS = {"float16": 2e-2, "bfloat16": 1.5e-1, "float32": 2e-4}


def close(found: torch.Tensor, wanted: torch.Tensor, dtype: str) -> None:
    torch.testing.assert_close(found.double(), wanted.detach(), atol=BOUNDS[dtype], rtol=1e-2)


def first(x: torch.Tensor) -> torch.Tensor:
    return x.double().movedim(-1, 1)


class Norm:
    """An input, and what torch makes of it in float64, with the channels first."""

    def __init__(self, *shape: int, dtype: str, mean: float = 0.0, at: int = 0) -> None:
        self.dtype = dtype
        self.x = numbers(*shape, dtype=dtype, mean=mean, at=at)
        self.w, self.b, mean_, var = (numbers(shape[-1], at=i) + 2.0 for i in range(4))
        self.running, self.known = (mean_.clone(), var.abs()), (mean_.double(), var.abs().double())
        self.exact = [first(self.x).requires_grad_()]
        self.exact += [t.double().requires_grad_() for t in (self.w, self.b)]
        self.y = F.batch_norm(self.exact[0], *self.known, *self.exact[1:], True, 0.3, 1e-3)

    @property
    def captures(self) -> dict[str, Any]:
        mean, var = self.running
        named = {"x": self.x, "running_mean": mean, "running_var": var, "w": self.w, "b": self.b}
        return {**named, "momentum": 0.3, "eps": 1e-3, "axis": -1}

    def check_running(self) -> None:
        for found, expected in zip(self.running, self.known, strict=True):
            torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)

    def check_gradients(self, y: torch.Tensor, dy: torch.Tensor, *found: torch.Tensor) -> None:
        dx, dw, db = torch.autograd.grad(y, self.exact, first(dy))
        for got, wanted in zip(found, (dx.movedim(1, -1), dw, db), strict=True):
            close(got, wanted, self.dtype)


SHAPES = [
    ("float16", (7, 11, 72), 0),  # two tiles, the second one not full
    pytest.param("float16", (3, 41, 8), 0, marks=pytest.mark.slow),
    pytest.param("float16", (5, 5, 1032), 0, marks=pytest.mark.slow),
    pytest.param("float16", (7, 11, 64), 3, marks=pytest.mark.slow),  # nothing is aligned
    pytest.param("bfloat16", (9, 5, 24), 0, marks=pytest.mark.slow),
    pytest.param("bfloat16", (9, 5, 7), 0, marks=pytest.mark.slow),
    pytest.param("float32", (7, 11, 40), 0, marks=pytest.mark.slow),
    pytest.param("float32", (2, 1, 1), 0, marks=pytest.mark.slow),
    pytest.param("float32", (500, 3, 3), 0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("dtype", "shape", "at"), SHAPES)
def test_both_passes(emulated: list[Function], dtype: str, shape: tuple[int, ...], at: int) -> None:
    mean = {"float32": 100.0, "float16": 2.0, "bfloat16": 0.0}[dtype]
    norm = Norm(*shape, dtype=dtype, mean=mean, at=at)
    dy = numbers(*shape, dtype=dtype, mean=1.0, at=at)
    y = torch.empty_like(norm.x)
    args = norm.x, *norm.running, norm.w, norm.b
    kernel("batch_norm_train", *args, 0.3, 1e-3, -1)(*args, y)
    close(y, norm.y.movedim(1, -1), dtype)
    norm.check_running()
    results = torch.empty_like(norm.x), torch.empty_like(norm.w), torch.empty_like(norm.b)
    backward = kernel("batch_norm_train_dxwb", dy, norm.x, norm.w, None, 1e-3, len(shape) - 1)
    backward(dy, norm.x, norm.w, *results)
    norm.check_gradients(norm.y, dy, *results)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("dtype", "shape", "at"), SHAPES)
def test_with_relu(
    emulated: list[Function], adds: bool, dtype: str, shape: tuple[int, ...], at: int
) -> None:
    """Of a sum with another array or without, forward and backward."""
    norm = Norm(*shape, dtype=dtype, at=at)
    dy, z, more = (numbers(*shape, dtype=dtype, at=at + 8 * i) for i in (0, 1, 2))
    y = torch.empty_like(norm.x)
    total = norm.y + first(z) if adds else norm.y
    fused("batch_norm_relu", (y,), **norm.captures, z=z if adds else None)
    close(y, total.relu().movedim(1, -1), dtype)
    norm.check_running()
    dx, masked = torch.empty_like(y), torch.empty_like(y)
    dw, db = torch.empty_like(norm.w), torch.empty_like(norm.b)
    captures = {"y": y, "x": norm.x, "w": norm.w, "b": None, "eps": 1e-3, "axis": -1}
    # Where y is 0 by rounding or otherwise, nothing comes back.
    if not adds:
        wanted = dy * (y > 0)
        fused("batch_norm_relu_dxwb", (dx, dw, db), dy=dy, z=None, **captures)
        norm.check_gradients(norm.y, wanted, dx, dw, db)
        return
    for z, results in ((more, (dx, dw, db, masked)), (None, (dx, dw, db, masked))):
        wanted = (dy if z is None else dy + z) * (y > 0)
        fused("batch_norm_add_relu_dxwb", results, dy=dy, z=z, **captures)
        assert torch.equal(masked, wanted)
        norm = Norm(*shape, dtype=dtype, at=at)
        norm.check_gradients(norm.y, wanted, dx, dw, db)
    fused("batch_norm_relu_dxwb", (dx, dw, db), dy=dy, z=more, **captures)
    norm = Norm(*shape, dtype=dtype, at=at)
    norm.check_gradients(norm.y, (dy + more) * (y > 0), dx, dw, db)


HARDER = {
    "relu": (F.relu, {}),
    "silu": (F.silu, {}),
    "hardswish": (F.hardswish, {}),
    "gelu": (F.gelu, {}),
    "gelu_tanh": (lambda y: F.gelu(y, approximate="tanh"), {}),
    "leaky_relu": (lambda y: F.leaky_relu(y, 0.2), {"first": 0.2}),
    "clip": (lambda y: F.hardtanh(y, -0.5, 3), {"first": -0.5, "second": 3}),
}


@pytest.mark.product
@pytest.mark.parametrize("name", HARDER)
@pytest.mark.parametrize(("dtype", "shape", "at"), SHAPES)
def test_with_other_activations(
    emulated: list[Function], name: str, dtype: str, shape: tuple[int, ...], at: int
) -> None:
    """Of a sum or without; the gradient is given nothing but x."""
    activation, numbers_of = HARDER[name]
    norm = Norm(*shape, dtype=dtype, at=at)
    dy, z = (numbers(*shape, dtype=dtype, at=at + 8 * i) for i in (0, 1))
    y = torch.empty_like(norm.x)
    for addend in (z, None):
        fresh = Norm(*shape, dtype=dtype, at=at)
        fused(f"batch_norm_{name}", (y,), **fresh.captures, z=addend, **numbers_of)
        total = norm.y if addend is None else norm.y + first(z)
        close(y, activation(total).movedim(1, -1), dtype)
    results = torch.empty_like(y), torch.empty_like(norm.w), torch.empty_like(norm.b)
    over, axis = tuple(range(len(shape) - 1)), len(shape) - 1
    captures = {"w": norm.w, "b": norm.b, "over": over, "momentum": 0.1, "c": None, "eps": 1e-3}
    given = {"dy": dy, "x": norm.x, **captures, "axis": axis, **numbers_of}
    fused(f"batch_norm_{name}{'_again' * (name == 'relu')}_dxwb", results, **given)
    norm.check_gradients(activation(norm.y), dy, *results)


def test_numbers_that_are_not_finite_are_refused(emulated: list[Function]) -> None:
    norm = Norm(4, 9, 16, dtype="float16")
    with pytest.raises(Unsupported, match="clip has the number inf"):
        fused("batch_norm_clip", (norm.x,), **norm.captures, z=None, first=0.0, second=math.inf)


def test_a_sum_alone(emulated: list[Function]) -> None:
    norm = Norm(4, 9, 16, dtype="float16")
    z, y = numbers(4, 9, 16, dtype="float16", at=1), torch.empty_like(norm.x)
    fused("batch_norm_add", (y,), **norm.captures, z=z)
    close(y, norm.y.movedim(1, -1) + z.double(), "float16")


def test_large_means_and_what_is_not_finite(emulated: list[Function]) -> None:
    """A mean of 4,000 deviations, far from the first row, which is 0; NaN stays in its channel."""
    x = numbers(8, 25, 8) + 4000.0
    x[0, 0] = 0.0
    x[3, 3, 2] = float("nan")
    x[3, 3, 5] = float("inf")
    running, y = (torch.zeros(8), torch.ones(8)), torch.empty_like(x)
    fused("batch_norm_relu", (y,), x=x, running_mean=running[0], running_var=running[1],
          w=None, b=None, momentum=1.0, eps=1e-5, axis=2, z=None)  # fmt: skip
    bad = [2, 5]
    assert y[..., bad].isnan().all() and running[1][bad].isnan().all()
    fine = [c for c in range(8) if c not in bad]
    wide = first(x)[:, fine]
    wanted = F.batch_norm(wide, None, None, None, None, True).relu().movedim(1, -1)
    torch.testing.assert_close(y[..., fine].double(), wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("vectors", "wanted"), [(1, (1, 1)), (8, (8, 1)), (10, (8, 2)), (80, (8, 10)), (3, (4, 1))]
)
def test_how_threads_share_a_row(vectors: int, wanted: tuple[int, int]) -> None:
    assert shares(vectors, 8) == wanted


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("float32[2, 3, 4]", *["float32[3]"] * 2), "channels on the last axis"),
        (("float64[2, 3]", *["float64[3]"] * 2), "made for float16"),
        (("float16[4, 3]", "float16[3]", "float32[3]"), "running_mean and running_var differ"),
    ],
)
def test_refusals(args: tuple[str, ...], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        kernel("batch_norm_train", *args)
