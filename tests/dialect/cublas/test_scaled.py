"""Products of float8: what is asked of cuBLASLt, and what it is not asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import meta
from meta.dialect import only
from meta.dialect.cublas import gemm
from meta.dialect.cublas.problem import Problem
from meta.runtime import gpu_properties
from meta.testing import check, opcheck
from meta.testing.case import OpCase, Sample
from tests.op.linalg import CASES

SAMPLES = [
    pytest.param(c, one, id=str(one)[:80])
    for c in CASES
    if c.op == "scaled_matmul"
    for one in c.samples
]


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_what_is_taken_agrees_with_the_oracle(
    emulated: list[Problem], case: OpCase, one: Sample
) -> None:
    if "cublas" in opcheck.accepting(case, one, "float32"):
        opcheck.check_dialect(case, one, "float32", "cublas")
        assert emulated[-1].kinds[:2] == tuple(str(x.dtype)[6:] for x in one.make("float32")[0][:2])


def float8(*shape: int, dtype: str = "float8_e4m3fn") -> meta.ndarray:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return meta.array(made, dtype)


ONE = meta.array(1.0)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ((float8(3, 24), float8(16, 24), ONE, ONE), "multiples of 16, not 24 and 16"),
        ((float8(3, 16), float8(5, 16), ONE, ONE), "multiples of 16, not 16 and 5"),
        (
            (float8(3, 16, dtype="float8_e5m2"), float8(16, 16, dtype="float8_e5m2"), ONE, ONE),
            "float8_e5m2 by float8_e4m3fn only",
        ),
        ((float8(3, 16), float8(16, 16), meta.array([1.0] * 3), ONE), "or both row by row"),
        ((float8(0, 16), float8(16, 16), ONE, ONE), "nothing to multiply"),
    ],
)
def test_what_is_refused(emulated: Any, args: tuple[Any, ...], reason: str) -> None:
    assert reason in str(meta.explain(meta.op.scaled_matmul, *args))
    assert meta.scaled_matmul(*args).dtype == "bfloat16"  # by another dialect


@pytest.mark.parametrize(
    ("capability", "version", "scales", "reason"),
    [
        ((8, 6), 130000, "whole", "capability 8.9"),
        ((8, 9), 130000, "whole", None),
        ((8, 9), 130000, "rows", "capability 9.0"),
        ((9, 0), 120800, "rows", "take cuBLASLt 120900, this is 120800"),
        ((9, 0), 120900, "rows", None),
    ],
)
def test_what_a_device_lacks(
    monkeypatch: pytest.MonkeyPatch, capability: Any, version: int, scales: str, reason: str | None
) -> None:
    class Library:
        cublasLtGetVersion = staticmethod(lambda: version)

    monkeypatch.setattr(
        gpu_properties,
        "query",
        lambda device: replace(gpu_properties.DEFAULT, capability=capability),
    )
    monkeypatch.setattr(gemm, "cublaslt", Library)
    found = gemm.lacking.__wrapped__(scales, 0)
    assert found is reason is None or (reason is not None and reason in str(found))


def test_a_factor_at_an_odd_place_is_copied(emulated: list[Problem]) -> None:
    x, w = float8(16, 32), float8(32, 32)
    odd = torch.cat([torch.zeros(1, dtype=torch.uint8), x.torch().view(torch.uint8).flatten()])
    moved = meta.from_dlpack(odd[1:].view(torch.float8_e4m3fn).view(16, 32))
    with only("cublas"):
        found = meta.scaled_matmul(moved, w, ONE, ONE, "float32")
    check(found, x.torch().double() @ w.torch().double().T, 1e-6, 1e-6)
    assert len(emulated) == 1
