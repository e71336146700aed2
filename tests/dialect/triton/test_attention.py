"""Attention in Triton: run by the interpreter beside the oracle in float64, and compiled for sm_90
within its shared memory.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base import config
from meta.base.device import Device
from meta.dialect.core import Unsupported
from meta.ir.types import TensorType
from tests.op.attention import attention as oracle
from tests.op.attention import attention_dx as oracle_dx

pytest.importorskip("triton")

from meta.dialect.triton import attention, build, interpreted

CUDA = Device("cuda:0")
MOST_SHARED = 227 * 1024
KEY = torch.tensor([2**40 + 3])
DROPS = {"dropout_key": KEY, "dropout_p": 0.3}
BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def slopes(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.1


CASES: dict[str, tuple[tuple[int, ...], str, dict[str, Any]]] = {
    # b, h, l, d, g, s, e
    "rows of multiples of four": ((1, 2, 37, 20, 1, 36, 20), "", DROPS),
    "odd rows": ((2, 2, 70, 16, 2, 41, 24), "", {"causal": True, **DROPS}),
    "window": ((1, 2, 150, 16, 2, 140, 16), "", {"window": (20, 10), "slopes": slopes(2)}),
    "left": ((1, 1, 140, 8, 1, 70, 8), "", {"causal": True, "window": (3, -1), "scale": 0.5}),
    "blind": ((2, 2, 20, 16, 1, 33, 16), "bool", DROPS),
    "repeated": ((4, 2, 9, 16, 1, 33, 16), "numbers", {"slopes": slopes(4, 2), **DROPS}),
    "later": ((2, 4, 9, 40, 2, 12, 40), "keys", {"layout": "BSHD", **DROPS}),
    "plain": ((1, 2, 5, 16, 2, 7, 16), "", {}),
}


def arguments(name: str, dtype: torch.dtype) -> tuple[list[Any], torch.Tensor, dict[str, Any]]:
    """Return query, key, value and mask, dy, and options."""
    (b, h, l, d, g, s, e), mask, how = CASES[name]  # noqa: E741
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        x = torch.randn(shape, generator=generator).to(dtype)
        return x.transpose(1, 2).contiguous() if how.get("layout") == "BSHD" else x

    given: list[Any] = [random(b, h, l, d), random(b, g, s, d), random(b, g, s, e), None]
    dy = random(b, h, l, e)
    if mask == "bool":
        given[3] = torch.rand(b, 1, l, s, generator=generator) > 0.4
        given[3][0, 0, 3] = False
    elif mask == "numbers":
        given[3] = torch.randn(2, 1, l, s, generator=generator).to(dtype)
        given[3][0, 0, 3] = -torch.inf
    elif mask == "keys":
        given[3] = torch.rand(s, generator=generator) > 0.3
    return given, dy, how


def precise(value: Any) -> Any:
    return (
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )


def array(value: Any) -> Any:
    return meta.array(value) if isinstance(value, torch.Tensor) else value


RUNS = [(n, torch.float32) for n in CASES]
RUNS += [("repeated", torch.float16), ("odd rows", torch.bfloat16)]


@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_results_and_gradients(name: str, dtype: torch.dtype) -> None:
    given, dy, how = arguments(name, dtype)
    wide = {n: precise(v) for n, v in how.items()}
    y, logsumexp = oracle(*map(precise, given), **wide)
    rounded = y.to(dtype).contiguous(), logsumexp.float()
    wanted = oracle_dx(*map(precise, (*given, *rounded, dy)), **wide)
    options = {n: array(v) for n, v in how.items()}
    with interpreted():
        found = meta.op.triton.fused_attention(*map(array, given), **options)
        arrays = map(array, (*given, *rounded, dy))
        gradients = meta.op.triton.fused_attention_dx(*arrays, **options)
    for a, b in zip((*found, *gradients), (y, logsumexp, *wanted), strict=True):
        torch.testing.assert_close(
            a.torch().double(), b, rtol=BOUNDS[dtype], atol=BOUNDS[dtype] * max(1, b.abs().max())
        )


def call(base: Any, width: int, dtype: str, mask: str | None = "bool", **how: Any) -> Any:
    """Return a call with everything, as of a CUDA device."""
    b, h, l, g, s = 2, 4, 300, 2, 400  # noqa: E741
    query, dy = TensorType((b, h, l, width), dtype), TensorType((b, h, l, width), dtype)
    key, logsumexp = TensorType((b, g, s, width), dtype), TensorType((b, h, l), "float32")
    masks = None if mask is None else TensorType((b, 1, l, s), mask)
    options = {
        "causal": True, "scale": None, "layout": "BHSD", "window": (100, -1),
        "slopes": TensorType((h,), "float32"), "dropout_key": TensorType((1,), "int64"),
        "dropout_p": 0.1, **how,
    }  # fmt: skip
    given = [query, key, key, masks]
    if base is not op.fused_attention:
        given += [dy, logsumexp, dy]
    return base.call_values((*given, *options.values()), CUDA)


def compile_all(width: int, dtype: str, tf32: bool = True, **how: Any) -> None:
    made: list[Any] = []
    makers = attention.fused_attention, attention.fused_attention_dx
    with pytest.MonkeyPatch.context() as patch, config.override(META_TF32=tf32):
        patch.setattr(
            attention, "launch_sequence", lambda run, *launches, **_: made.extend(launches)
        )
        for base, maker in zip((op.fused_attention, op.fused_attention_dx), makers, strict=True):
            maker.make.__wrapped__(call(base, width, dtype, **how))
    assert len(made) == 3
    for launch in made:
        for variant in launch.unit.variants[:1]:
            shared = build.compiled(launch.unit, variant).shared
            assert shared <= MOST_SHARED, (launch.source.name, width, dtype, shared)


def test_compiles() -> None:
    compile_all(64, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 24, 32, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "exact"])
def test_compiles_for_all_widths(width: int, dtype: str) -> None:
    kind = "float32" if dtype == "exact" else dtype
    compile_all(width, kind, dtype != "exact", mask=kind)
    compile_all(width, kind, dtype != "exact", mask=None, window=None, slopes=None)


@pytest.mark.parametrize(
    ("width", "dtype", "says"),
    [(64, "float64", "made for float16"), (264, "float16", "up to 256 elements")],
)
def test_what_is_left_to_others(width: int, dtype: str, says: str) -> None:
    how = {"slopes": None} if dtype == "float64" else {}
    with pytest.raises(Unsupported, match=says):
        attention.fused_attention.make(call(op.fused_attention, width, dtype, **how))
