"""Products with quantised weights by Triton: the interpreter beside torch in float64, and both
kernels compiled for an H100.
"""

from __future__ import annotations

import pytest
import torch

import meta
from meta.dialect import only
from meta.ir import parse_type
from meta.testing import opcheck
from meta.testing.case import F, I, OpCase, Sample, sample
from tests.op import quantized

triton = pytest.importorskip("triton")

from meta.dialect.triton import interpreted, triton_dialect  # noqa: E402
from tests.dialect.triton import kernels  # noqa: E402


def _int4(n: int, k: int) -> object:
    return I(n, k // 2, low=0, high=256, dtype="uint8")


def _scales(*shape: int) -> object:
    return F(*shape, low=0.01, high=0.02)


MORE = OpCase(
    "quantized_matmul",
    [
        sample(F(1, 1152), I(9, 1152, low=-128, high=128, dtype="int8"), _scales(9, 9)),
        sample(F(1, 1152), _int4(9, 1152), _scales(9, 72), F(9, 72, low=0, high=15)),
        sample(F(2, 9, 160), _int4(70, 160), _scales(70, 5)),
        sample(F(130, 48), I(35, 48, low=-128, high=128, dtype="int8"), _scales(35, 3), F(35, 3)),
        sample(F(2, 65, 96), _int4(7, 96), _scales(7, 6)),
        sample(F(70, 48), I(35, 48, low=-128, high=128, dtype="int8"), _scales(35, 1), F(35, 1)),
    ],
    quantized.oracle,
    **quantized.HALF,
)
"""More than a block of rows, columns, and groups; groups of half of the 32 columns of a block."""
CASES = [*(c for c in quantized.CASES if c.samples), MORE]
SAMPLES = [pytest.param(case, one, id=str(one)[:70]) for case in CASES for one in case.samples]


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_as_torch_in_float64(case: OpCase, one: Sample) -> None:
    with interpreted():
        for dtype in ("float32", "bfloat16"):
            args = one.make(dtype)[0]
            taken = "triton" in opcheck.accepting(case, one, dtype)
            is_float8 = args[1].dtype == torch.float8_e4m3fn
            assert taken == (all(t.numel() for t in args[:2]) and not is_float8)
            if taken:
                opcheck.check_dialect(case, one, dtype, "triton")


def test_double_precision_is_left_to_others() -> None:
    weight, scales, _ = meta.quantize_weight(meta.ones((4, 32)))
    x = meta.zeros((2, 32), "float64")
    with interpreted(), only("triton"), pytest.raises(meta.errors.DispatchError):
        meta.quantized_matmul(x, weight, scales)


@pytest.mark.parametrize("rows", [1, 2, 64, 512])
@pytest.mark.parametrize(
    ("weight", "scales", "zeros"),
    [
        ("int8[2048, 4096]", "float32[2048, 1]", None),
        ("uint8[2048, 2048]", "float16[2048, 64]", None),
        ("uint8[2048, 2048]", "float16[2048, 256]", "float16[2048, 256]"),
    ],
)
def test_kernels_compile(rows: int, weight: str, scales: str, zeros: str | None) -> None:
    from meta.dialect.triton import build

    x = parse_type(f"bfloat16[{rows}, 4096]")
    types = [x, *map(parse_type, (weight, scales)), zeros and parse_type(zeros)]
    call = kernels.call(meta.op.quantized_matmul, *types)
    env = triton_dialect.resolve("quantized_matmul").make(call)
    listed = env.configs.listed() if env.configs is not None else ()
    assert len(listed) > 2
    for unit in (one.unit for one in env._deferred.source[1]):
        assert all(build.compiled(unit, v).shared <= 227 << 10 for v in unit.variants)
