"""Functions of elements as elementwise operators: dtypes, broadcasts and layouts, against torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import meta
from meta import op
from meta.base import config
from meta.base.errors import DispatchError, RegistrationError
from meta.base.registry import OPERATORS
from meta.dialect import only
from meta.dialect.triton import TritonDialect, build, interpreted
from meta.dialect.triton.pointwise import Layout, collapsed
from meta.ir.types import TensorType, TupleType
from meta.op import core as operators
from meta.op.core import Tensor
from tests.dialect.triton import kernels
from tests.dialect.triton.fake_driver import FakeDriver
from tests.registered import remove_dialects

NAME = "elementwise"
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-12}


@triton.jit
def add(x1, x2):
    return x1 + x2


@triton.jit
def less(x1, x2):
    return x1 < x2


@triton.jit
def leaky_relu(x, negative_slope):
    return tl.where(x > 0, x, x * negative_slope)


@triton.jit
def gelu(x, approximate: tl.constexpr):
    if approximate == "tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x * (1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0))
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def where(condition, x, y):
    return tl.where(condition, x, y)


@triton.jit
def sin_and_cos(x):
    return tl.sin(x), tl.cos(x)


@pytest.fixture(scope="module")
def elementwise() -> Iterator[TritonDialect]:
    @operators.op
    def sin_and_cos_of(x: Tensor) -> tuple[Tensor, Tensor]:
        """The sine and the cosine, elementwise."""
        return TupleType((x, x))

    dialect = TritonDialect(NAME)
    dialect.pointwise(sin_and_cos_of)(sin_and_cos)
    for operator, function in (
        (op.add, add),
        (op.less, less),
        (op.leaky_relu, leaky_relu),
        (op.gelu, gelu),
        (op.where, where),
    ):
        dialect.pointwise(operator)(function)
    yield dialect
    OPERATORS.remove("sin_and_cos_of")
    remove_dialects(dialect)


pytestmark = pytest.mark.usefixtures("elementwise")
SHAPES = [
    ((3, 4), (3, 4)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (3, 1)),
    ((2, 1, 4), (3, 1)),
    ((), ()),
    ((), (5,)),
    ((1, 1), (1,)),
    ((0, 3), (3,)),
    ((33, 65), (33, 1)),
]


def _turned(t: torch.Tensor) -> torch.Tensor:
    return t.permute(tuple(reversed(range(t.ndim))))


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "compact": lambda t: t,
    "every second": lambda t: torch.stack([t, t + 1], -1)[..., 0],
    "turned": lambda t: _turned(_turned(t).contiguous()),
    "repeated": lambda t: t[..., :1].expand(t.shape) if t.ndim and t.numel() else t,
    "at an odd address": lambda t: (
        torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape) if t.numel() else t
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_broadcasts_and_layouts(shapes: tuple[tuple[int, ...], ...], layout: str):
    torch.manual_seed(0)
    first, second = (torch.randn(shape) * 3 for shape in shapes)
    x, y = LAYOUTS[layout](first), LAYOUTS[layout](second)
    condition = x > 0
    with interpreted(), only(NAME):
        assert torch.equal(meta.add(meta.array(x), meta.array(y)).torch(), x + y)
        assert torch.equal(meta.less(meta.array(x), meta.array(y)).torch(), x < y)
        if layout == "turned":
            found = meta.where(meta.array(condition), meta.array(x), meta.array(y))
            assert torch.equal(found.torch(), torch.where(condition, x, y))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_attributes_and_half_precision(dtype: str, approximate: str):
    x = (torch.randn(3, 5) * 2).to(getattr(torch, dtype))
    with interpreted(), only(NAME):
        y = meta.gelu(meta.array(x), approximate=approximate)
    expected = torch.nn.functional.gelu(x.double(), approximate=approximate)
    error = TOLERANCE[dtype]
    # Triton's erf of float64 is that of NumPy's floats here.
    torch.testing.assert_close(y.torch().double(), expected, rtol=error, atol=error)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "bool"])
def test_integers(dtype: str):
    x, y = (torch.randint(0, 2, (3, 5)).to(getattr(torch, dtype)) for _ in range(2))
    with interpreted(), only(NAME):
        assert torch.equal(meta.less(meta.array(x), meta.array(y)).torch(), x < y)
        if dtype != "bool":
            assert torch.equal(meta.add(meta.array(x), meta.array(y)).torch(), x + y)


def test_run_time_numbers_and_several_results():
    x = torch.tensor([0.0, 1.0, -3.0, 0.3, 1000.0])
    with interpreted(), only(NAME):
        for slope in (0.5, 0.25):
            y = meta.leaky_relu(meta.array(x), slope)
            torch.testing.assert_close(y.torch(), torch.nn.functional.leaky_relu(x, slope))
        sine, cosine = OPERATORS["sin_and_cos_of"](meta.array(x))
    torch.testing.assert_close(sine.torch(), x.sin())
    torch.testing.assert_close(cosine.torch(), x.cos())


def test_layouts_are_collapsed():
    assert collapsed((2, 3, 4), [(12, 4, 1), (12, 4, 1)]) == Layout((24,), ((1,), (1,)))
    assert collapsed((2, 3, 4), [(12, 4, 1), (0, 0, 1)]) == Layout((6, 4), ((4, 1), (0, 1)))
    assert collapsed((2, 3, 4), [(12, 4, 1), (0, 1, 0)]).extents == (2, 3, 4)
    assert collapsed((1, 3, 1), [(3, 1, 1)]) == Layout((3,), ((1,),))
    assert collapsed((), [()]) == Layout((), ((),))
    assert collapsed((4, 5), [(0, 0)]) == Layout((20,), ((0,),))


def unit_of(dialect: TritonDialect, operator: Any, *types: TensorType) -> build.Unit:
    env = dialect.ops[operator.name].make(kernels.call(operator, *types))
    assert env._deferred is not None
    unit: build.Unit = env._deferred.source.unit
    return unit


def test_the_flat_case_is_one_vectorised_loop(elementwise: TritonDialect):
    x = TensorType((64, 64), "float32")
    compact, general = unit_of(elementwise, op.add, x, x).variants
    unit = unit_of(elementwise, op.add, x, x)
    text = compact.source.jit.src
    assert "%" not in text and "//" not in text
    assert "ld.global.v4" in build.assembled(unit, compact).asm["ptx"]
    assert "ld.global.v4" not in build.assembled(unit, general).asm["ptx"]
    row = unit_of(elementwise, op.add, x, TensorType((64,), "float32")).variants[0]
    assert [name for name in row.types if name[0] in "es"] == ["e1", "s0_0"]
    huge = TensorType((2**16, 2**16), "float16")
    wide = unit_of(elementwise, op.add, huge, huge).variants
    assert all(v.constants["INDEX"] == tl.int64 for v in wide)


def test_launches_pass_strides_in_64_bits(
    elementwise: TritonDialect, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
):
    fake = FakeDriver(monkeypatch)
    with config.override(META_CACHE_DIR=str(tmp_path)):
        types = TensorType((6, 40), "float32"), TensorType((40,), "float32")
        env = elementwise.ops["add"].make(kernels.call(op.add, *types))
        x, row, out = torch.zeros(6, 80)[:, ::2], torch.zeros(40), torch.zeros(6, 40)
        env.run(x, row, out)
        env.run(x.contiguous(), row, out)
    first, second = fake.launched
    assert first.grid == second.grid == (1, 1, 1) and first.threads == 128
    assert [first.read(i, w) for i, w in enumerate("QQQiiqqqQQ")][3:] == [240, 40, 80, 2, 1, 0, 0]
    assert [second.read(i, w) for i, w in enumerate("QQQiiiQQ")][3:] == [240, 40, 40, 0, 0]


def test_what_is_refused(elementwise: TritonDialect):
    with pytest.raises(RegistrationError, match=r"asks for \['y'\]") as caught:

        @elementwise.pointwise(op.exp)
        @triton.jit
        def exp(y):
            return y

    assert "test_pointwise.py" in str(caught.value)
    with pytest.raises(RegistrationError, match=r"as tl.constexpr: \['x'\]"):

        @elementwise.pointwise(op.exp)
        @triton.jit
        def exp_(x: tl.constexpr):
            return x

    x = meta.array(torch.ones(3, dtype=torch.complex64))
    with interpreted(), only(NAME), pytest.raises(DispatchError, match="is complex64, which"):
        meta.add(x, x)
