"""Python numbers against dtypes: what does not fit is an error before a dialect sees the call; what
fits gives what the oracle gives in 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.dtype import FLOATS, TO_TORCH, TOLERANCE, is_float, limits
from meta.base.errors import MetaError, NumberOutOfRange, RegistrationError
from meta.base.registry import OPERATORS
from meta.dialect import only, prefer
from meta.model import trace
from meta.op.core import Op, Takes, Tensor
from meta.op.core.declare import op as make_op
from meta.op.core.tree import flatten
from meta.testing import OpCase
from meta.vm import compile
from tests.op.records import CASES

DIALECTS = ("tvm", "torch")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32")

# Calls that fit and calls of the same types that do not, by the dtype of x.
REFUSED: list[tuple[str, str, str]] = [
    ("int8", "op.clip(x, -100, 100)", "op.clip(x, -1000, 1000)"),
    ("uint8", "op.maximum(x, 1)", "op.maximum(x, -1)"),
    ("int8", "op.minimum(100, x)", "op.minimum(300, x)"),
    ("int8", "x + 100", "x + 300"),
    ("int8", "100 - x", "300 - x"),
    ("uint8", "x * 2", "x * -2"),
    ("int16", "op.pow(x, 3)", "op.pow(x, 2**15)"),
    ("int32", "x // 7", "x // 2**31"),
    ("int8", "op.remainder(x, 100)", "op.remainder(x, 200)"),
    ("int8", "x & 127", "x & 255"),
    ("int8", "op.bitwise_left_shift(1, x)", "op.bitwise_left_shift(128, x)"),
    ("int8", "op.where(x > 1, x, 1)", "op.where(x > 1, x, 257)"),
    ("int8", "op.where(x > 1, -5, x)", "op.where(x > 1, -129, x)"),
    ("int8", "op.pad.plain(x, 1, 3.0)", "op.pad.plain(x, 1, 300.0)"),
    ("int8", "op.pad.plain(x, 1, 3.0)", "op.pad.plain(x, 1, 0.5)"),
    ("int8", "op.pad.plain(x, 1, 3.0)", "op.pad.plain(x, 1, math.nan)"),
    ("bool", "op.pad.plain(x, 1, 1)", "op.pad.plain(x, 1, 2)"),
    ("uint8", "op.threshold(x, 1, 2)", "op.threshold(x, 1, 256)"),
    ("int8", "op.threshold(x, 1.0, 2.0)", "op.threshold(x, -0.5, 2.0)"),
    ("int8", "op.fmax(x, 5)", "op.fmax(x, 128)"),
    ("int8", "op.addcmul(x, x, x, 2)", "op.addcmul(x, x, x, 200)"),
    ("int8", "op.full_like(x, 1.0)", "op.full_like(x, math.inf)"),
    ("int8", "op.full((2,), 1.0, 'int8')", "op.full((2,), math.inf, 'int8')"),
    ("int8", "op.full((2,), 1.0, 'int8')", "op.full((2,), math.nan, 'int8')"),
    ("int8", "op.full((2,), 1, 'int8')", "op.full((2,), 300, 'int8')"),
    ("int8", "op.full((2,), 1, 'uint8')", "op.full((2,), -1, 'uint8')"),
    ("int8", "op.full((2,), 1, 'bool')", "op.full((2,), 2, 'bool')"),
    ("int8", "op.one_hot(x, 4, 1, 0, dtype='int8')", "op.one_hot(x, 4, 128, 0, dtype='int8')"),
    ("int8", "op.add(1, x, op.astype(x, 'int32'), x)", "op.add(300, x, op.astype(x, 'int32'), x)"),
    ("int32", "op.fixed_point_multiply(x, 1, 1)", "op.fixed_point_multiply(x, 2**31, 1)"),
    ("int8", "op.arange(0, 128, 1, 'int8')", "op.arange(0, 300, 1, 'int8')"),
    ("uint8", "op.arange(3, -1, -1, 'uint8')", "op.arange(3, -2, -1, 'uint8')"),
    ("int8", "op.arange(0.0, 3.0, 1.0, 'int8')", "op.arange(0.0, 300.0, 1.0, 'int8')"),
    ("int8", "op.argsort.plain(op.full((128,), 1), dtype='int8')",
     "op.argsort.plain(op.full((300,), 1), dtype='int8')"),
    ("int8", "op.topk.plain(op.full((256,), 1), 2, dtype='uint8')",
     "op.topk.plain(op.full((257,), 1), 2, dtype='uint8')"),
    ("int8", "op.searchsorted.plain(op.full((127,), 1), op.full((2,), 1), dtype='int8')",
     "op.searchsorted.plain(op.full((128,), 1), op.full((2,), 1), dtype='int8')"),
]  # fmt: skip


def evaluated(text: str, x: Any) -> Any:
    return eval(text, {"op": op, "math": math}, {"x": x})


@pytest.mark.parametrize(("dtype", "fits", "beyond"), REFUSED, ids=[r[2] for r in REFUSED])
def test_what_does_not_fit_is_refused(dtype: str, fits: str, beyond: str) -> None:
    x = meta.array([1, 0, 1], dtype)
    for dialect in DIALECTS:
        with prefer(dialect):
            # Before and after a plan of these types is known.
            for _ in range(2):
                with pytest.raises(NumberOutOfRange) as caught:
                    evaluated(beyond, x)
                shown = str(caught.value)
                assert "expected:" in shown and "found:" in shown and "try:" in shown
                assert caught.value.span is not None and caught.value.op is not None
                evaluated(fits, x)
    with pytest.raises(NumberOutOfRange):
        compile(trace(lambda a: (a, evaluated(beyond, a))), x)


@pytest.mark.parametrize(
    ("dtype", "text", "expected"),
    [
        ("int8", "x < 300", [True, True]),
        ("uint8", "x > -1", [True, True]),
        ("int8", "op.equal(257, x)", [False, False]),
        ("int8", "op.isclose(x, 1000, 1, 0)", [True, True]),
        ("int8", "op.logical_and(x, 256)", [True, True]),
        ("int8", "op.bitwise_left_shift(x, 300)", [0, 0]),
        ("uint8", "op.bitwise_right_shift(x, -1)", [0, 0]),
        ("int8", "op.divide(x, 300) * 300", [1.0, 2.0]),
        ("int8", "op.pad(x, (0, 1))", [1, 2, 0]),
        ("int64", "x + (2**53 + 1)", [2**53 + 2, 2**53 + 3]),
        ("int64", "op.maximum(x, 2**63 - 1)", [2**63 - 1] * 2),
        ("int64", "op.full((2,), -2**63, 'int64')", [-(2**63)] * 2),
        ("int64", "x < 2**53 + 1", [True, True]),
        ("float64", "x * 0.1", [0.1, 0.2]),
        ("float64", "x * 1e300", [1e300, 2e300]),
        ("float64", "op.full_like(x, 1 / 3)", [1 / 3] * 2),
        ("float64", "op.clip(x, 1.1, 1.3)", [1.1, 1.3]),
        ("float32", "x + 1e300", [math.inf, math.inf]),
        ("float16", "x - 1e6", [-math.inf, -math.inf]),
        ("float32", "op.full_like(x, -math.inf)", [-math.inf] * 2),
    ],
)
def test_what_fits_arrives_as_it_is(dtype: str, text: str, expected: list[Any]) -> None:
    x = meta.array([1, 2], dtype)
    for dialect in DIALECTS:
        with only(dialect):
            assert evaluated(text, x).numpy().tolist() == expected, dialect
            program = compile(trace(lambda a: op.flip(evaluated(text, a))), x)
            assert program(x).numpy().tolist() == expected[::-1], dialect
            if dtype in FLOATS:  # fused with its neighbours
                program = compile(trace(lambda a: op.copysign(evaluated(text, a * a / a), a)), x)
                assert program(x).numpy().tolist() == [math.copysign(e, 1) for e in expected]


WRONG = Annotated[float | int | bool, Takes("y")]


def test_a_number_says_whose_dtype_it_takes() -> None:
    assert Takes().slots == () and Takes("x").slots == ("x",) and Takes(None).slots is None
    with pytest.raises(RegistrationError, match="takes the dtype of 'y'"):

        @make_op(name="takes_what_there_is_not")
        def wrong(x: Tensor, value: WRONG) -> Tensor:
            return x


# The sweep: every operator with run-time numbers, every place for one.


def values(name: str, dtype: str) -> list[bool | int | float]:
    """Numbers around the borders of a dtype."""
    if name == "fixed_point_multiply":
        return [1, 2.0, True, 0, -5, 31, 0.5, math.nan, 2**31, -(2**31) - 1]  # shifts up to 31
    special = [0.5, math.inf, -math.inf, math.nan, -0.0, True]
    if is_float(dtype):
        largest = limits(dtype).max
        return [1, 3.0, largest, -largest * 4, 1e39, -1e300, 2**62, *special]
    low, high = (0, 1) if dtype == "bool" else (int(limits(dtype).min), int(limits(dtype).max))
    within = [v for v in (high + 1, low - 1) if -(2**63) <= v < 2**63]
    return [1, 1.0, low, high, float(low), *within, 2.0**70, *special]


def told_by_oracle(name: str, slot: str, value: float, dtype: str) -> bool:
    """Whether an oracle in 64 bits says what the result is.

    It overflows elsewhere than a narrower dtype, and some make floats of integers.
    """
    if slot in ("beta1", "beta2", "weight_decay") and not value < 1:  # which torch's Adam refuses
        return False
    if is_float(dtype):
        return 0 < value <= 3
    if name in ("floor_divide", "remainder", "fmod") and value == 0:
        return False
    by_floats = ("full_like", "pad", "dynamic_pad", "dynamic_one_hot")
    return name not in by_floats or abs(value) < 2**24


def calls(case: OpCase, dtype: str) -> Iterator[tuple[int, Callable[[Any], tuple[Any, Any]]]]:
    """Yield each slot that takes a run-time number, and what makes positional and named arguments
    with one in its place.
    """
    base: Op = OPERATORS[case.op]
    names = base.schema.names
    args, kwargs = max(case.samples, key=lambda one: len(one.args)).make("float32")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    given = {n: _as(v, dtype) for n, v in given.items()}
    if "dtype" in names:
        given["dtype"] = dtype
    for i, slot in enumerate(base.slots):
        if "scalar" not in slot.kind:
            continue
        tensors = flatten([v for n, v in given.items() if n != slot.name])[0]
        if not tensors and "dtype" not in names:
            continue  # numbers alone are computed at once

        def make(value: Any, name: str = slot.name) -> tuple[Any, Any]:
            named = {**given, name: value}
            first = [named.pop(n) for n in names[: len(args)]]
            return tuple(first), named

        yield i, make


def _as(value: Any, dtype: str) -> Any:
    if isinstance(value, tuple):
        return tuple(_as(v, dtype) for v in value)
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    return (value.nan_to_num(0, 1, 1).abs().clamp(max=8) * 3 + 1).to(TO_TORCH[dtype])


def wide(value: Any) -> Any:
    """Return tensors with 64 bits, for the oracle."""
    if isinstance(value, tuple):
        return tuple(map(wide, value))
    if not isinstance(value, torch.Tensor) or value.dtype == torch.bool:
        return value.clone() if isinstance(value, torch.Tensor) else value
    return value.to(torch.float64 if value.dtype.is_floating_point else torch.int64, copy=True)


def _close(
    x1: Any, x2: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """torch's takes no negative tolerance."""
    with np.errstate(all="ignore"):
        found = np.isclose(x1, x2, rtol, atol, equal_nan)
    return torch.from_numpy(np.asarray(found))


ORACLES = {"isclose": _close}
# These are shape arithmetic, and have no dtype.
SHAPES = ("get_reduce_axis", "get_kept_dims")


def _is_plain(case: OpCase) -> bool:
    """Whether the first sample is of dtypes that have arithmetic."""
    text = f"{case.samples} {case.dtypes}"
    return not any(kind in text for kind in ("float8", "Z[", "complex"))


SWEPT = {
    case.op: case
    for case in reversed(CASES)
    if case.samples
    and _is_plain(case)
    and case.op not in SHAPES
    and any("scalar" in s.kind for s in OPERATORS[case.op].slots)
}


def test_the_sweep_misses_no_operator() -> None:
    with_numbers = {n for n in OPERATORS if any("scalar" in s.kind for s in OPERATORS[n].slots)}
    ours = {n for n in with_numbers if OPERATORS[n].site.file.startswith(meta.__path__[0])}
    assert ours == SWEPT.keys() | set(SHAPES)


def sweep(name: str, dtype: str, dialect: str) -> list[str]:
    """Return what is wrong with an operator's numbers."""
    case, base, wrong = SWEPT[name], OPERATORS[name], []
    for i, make in calls(case, dtype):
        for value in values(name, dtype):
            args, kwargs = make(value)
            what = f"{name}({base.schema.names[i]}={value!r})"
            try:
                with only(dialect):
                    found = base(*map(copied, args), **{n: copied(v) for n, v in kwargs.items()})
            except MetaError:
                continue
            except Exception as error:  # what this test is about
                wrong.append(f"{what}: {type(error).__name__}: {error}")
                continue
            results = found if isinstance(found, tuple) else (found,)
            takes = base.slots[i].takes == () and results[0].dtype == dtype
            if takes and not is_float(dtype) and not whole(value, dtype):
                wrong.append(f"{what}: {results[0].numpy()}, and it does not fit {dtype}")
                continue
            if not told_by_oracle(name, base.schema.names[i], value, dtype):
                continue
            oracle = ORACLES.get(name, case.oracle)
            expected = oracle(*map(wide, args), **{n: wide(v) for n, v in kwargs.items()})
            several = expected if isinstance(expected, tuple) else (expected,)
            for f, e in zip(results, several, strict=True):
                e = torch.as_tensor(e).to(f.torch().dtype)
                rtol, atol = TOLERANCE.get(f.dtype, (0, 0))
                if not torch.allclose(f.torch(), e, rtol, atol, equal_nan=True):
                    wrong.append(f"{what}: {f.numpy().tolist()}, expected {e.tolist()}")
    return wrong


def copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    return meta.array(value) if isinstance(value, torch.Tensor) else value


def whole(value: float, dtype: str) -> bool:
    low, high = (0, 1) if dtype == "bool" else (limits(dtype).min, limits(dtype).max)
    return math.isfinite(value) and float(value).is_integer() and low <= value <= high


@pytest.mark.parametrize("name", sorted(SWEPT))
def test_every_number_of_every_operator(name: str) -> None:
    with meta.strict_dtypes():
        wrong = [w for dialect in DIALECTS for w in sweep(name, "int8", dialect)]
    assert not wrong, "\n".join(wrong)


# Number attributes, of which kernels are built: libraries refuse some of these values.


def attribute_cases() -> dict[str, OpCase]:
    """Return by operator a case of one that has a floating point attribute and a tensor."""
    return {
        case.op: case
        for case in reversed(CASES)
        if case.samples
        and _is_plain(case)
        and any("float" in s.accepts for s in OPERATORS[case.op].slots if s.kind == "attribute")
        and case.op != "arange"  # its numbers are extents
    }


ATTRIBUTES = attribute_cases()


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_attributes_are_no_raw_errors(name: str) -> None:
    base = OPERATORS[name]
    args, kwargs = max(ATTRIBUTES[name].samples, key=lambda one: len(one.args)).make("float32")
    given = {**dict(zip(base.schema.names, args, strict=False)), **kwargs}
    given = {n: copied(v) for n, v in given.items()}
    for slot in base.slots:
        if slot.kind != "attribute" or "float" not in slot.accepts:
            continue
        for value in (1e39, -1e300, math.inf, -math.inf, math.nan, 0.0, -1.0):
            try:
                with only("torch"):
                    found = base(**{**given, slot.name: value})
            except MetaError:
                continue
            assert flatten(found)[0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool", *sorted(FLOATS)])
@pytest.mark.parametrize("name", sorted(SWEPT))
def test_every_number_of_every_operator_and_dtype(name: str, dtype: str) -> None:
    with meta.strict_dtypes():
        wrong = [w for dialect in DIALECTS for w in sweep(name, dtype, dialect)]
    assert not wrong, "\n".join(wrong)
