"""Integers divided by 0, and to negative powers: an error wherever the numbers are at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
import meta.frontend.dynamo
from meta import op
from meta.base.errors import DivisionByZero, TypeInferError
from meta.model import trace

DTYPES = ("int8", "int64", "uint8", "uint16", "uint32", "uint64")
Function = Callable[[Any, Any], Any]
DIVISIONS: dict[str, Function] = {
    "floor_divide": op.floor_divide,
    "remainder": op.remainder,
    "fmod": op.fmod,
}
RUNS: dict[str, Callable[[Function, Any, Any], Any]] = {
    "eager": lambda f, x, y: f(x, y),
    "interpreted": lambda f, x, y: trace(f)(x, y),
    "compiled": lambda f, x, y: meta.vm.compile(trace(f), x, y)(x, y),
    "fused": lambda f, x, y: meta.vm.compile(trace(lambda x, y: f(x + 0, y + y) * 1 + x), x, y)(
        x, y
    ),
}


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", DIVISIONS)
def test_by_an_array(name: str, run: str, dialect: str) -> None:
    f, go = DIVISIONS[name], RUNS[run]
    x = meta.array([10, 7, -3], "int32")
    with meta.dialect.only(dialect):
        go(f, x, meta.array([1, -2, 3], "int32"))
        with pytest.raises(DivisionByZero, match=r"divided by 0, at \[1\] of x2") as caught:
            go(f, x, meta.array([1, 0, 3], "int32"))
    assert isinstance(caught.value, ZeroDivisionError) and isinstance(caught.value, RuntimeError)
    assert caught.value.op == name


@pytest.mark.product
@pytest.mark.parametrize(
    ("dtype", "dialect"),
    [(dtype, d) for dtype in DTYPES for d in ("tvm", "torch") if (dtype, d) != ("uint64", "torch")],
)
@pytest.mark.parametrize("count", [3, 100])
def test_dtypes_and_sizes(dtype: str, count: int, dialect: str) -> None:
    x, y = (meta.array(torch.arange(1, count + 1), dtype) for _ in "xy")
    with meta.dialect.only(dialect):
        for f in DIVISIONS.values():
            assert f(x, y).shape == (count,)
            y.update(torch.arange(count))
            with pytest.raises(DivisionByZero, match=f"1 of {count} are 0|divided by 0"):
                f(x, y)
            y.update(torch.arange(1, count + 1))
            assert f(7, y).shape == (count,)


@pytest.mark.parametrize("name", DIVISIONS)
def test_by_a_number(name: str) -> None:
    """Its value is not part of the key by which a plan is found."""
    f, x = DIVISIONS[name], meta.array([10, 7, -3])
    for _ in range(2):
        assert f(x, 2).shape == (3,)
        assert f(x, -2).shape == (3,)
        with pytest.raises(DivisionByZero):
            f(x, 0)
    with pytest.raises(DivisionByZero):
        meta.vm.compile(trace(lambda x: f(x, 0)), x)
    with pytest.raises(DivisionByZero):
        f(7, 0)
    assert f(meta.array([1.0]), 0).shape == (1,)


def test_a_saved_program(tmp_path: Path) -> None:
    x, y = meta.array([10, 7]), meta.array([3, 4])
    meta.vm.compile(trace(op.remainder), x, y).save(tmp_path / "program")
    run = meta.vm.load(tmp_path / "program")
    assert run(x, y).tolist() == [1, 3]
    with pytest.raises(DivisionByZero):
        run(x, meta.array([0, 4]))


def test_nobody_looks_at_what_is_known() -> None:
    """Divisors that cannot be 0: constants, and numbers within bounds."""
    x, y = meta.array([10, 7]), meta.array([3, 4])

    def program(x: Any, y: Any) -> Any:
        return x // 3 + x % op.clip(y, 1, 9) + op.fmod(x, op.minimum(y, -1))

    known = meta.vm.compile(trace(program), x, y)
    assert str(known.code).count("check ") == str(known.code).count("fmod needs")
    looked = meta.vm.compile(trace(lambda x, y: x // y), x, y)
    assert "check " in str(looked.code)


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: a // b,
        lambda a, b: a % b,
        lambda a, b: torch.fmod(a, b),
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
    ],
)
def test_torch_compile_raises_as_eager(f: Function) -> None:
    a, b = torch.tensor([10, 7, 3]), torch.tensor([1, 2, 0])
    run = torch.compile(f, backend="meta")
    assert torch.equal(run(a, b + 1), f(a, b + 1))
    for function in (f, run):
        with pytest.raises(RuntimeError, match=r"(?i)zero|by 0"):
            function(a, b)


def test_negative_powers() -> None:
    x = meta.array([1, 2, 3])
    for _ in range(2):
        assert (x**2).tolist() == [1, 4, 9]
        with pytest.raises(TypeInferError, match="negative power"):
            x**-1
    with pytest.raises(TypeInferError, match="negative power"):
        meta.vm.compile(trace(lambda x: x**-1), x)
    # In a tensor of exponents they are as in torch.
    exponents = torch.tensor([-1, -2, 0])
    assert (x ** meta.array(exponents)).tolist() == (torch.tensor([1, 2, 3]) ** exponents).tolist()
    assert (meta.array([2.0]) ** -1).tolist() == [0.5]
