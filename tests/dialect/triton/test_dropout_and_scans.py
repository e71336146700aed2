"""Dropout, and running sums and products down columns, in Triton: run by the interpreter beside
torch, and compiled for sm_90.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.device import Device
from meta.dialect.core import Unsupported
from meta.ir.types import TensorType

pytest.importorskip("triton")

from meta.dialect.triton import build, interpreted, random, scan

CUDA = Device("cuda:0")
HALVES = {torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 5), (4100,), (), (0, 2)])
def test_dropout_keeps_what_the_operator_keeps(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = meta.array(torch.randn(shape).to(dtype))
    for key in (None, meta.array([2**40 + 7], "int64")):
        results = []
        for dialect in (meta.op.triton, meta.op.torch):
            meta.random.seed(3)
            with interpreted():
                y, mask, state = dialect.dropout_train(x, 0.3, key)
            assert state.shape == (0,)
            results.append((y.torch(), mask.torch()))
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.int64])
@pytest.mark.parametrize(
    ("shape", "axis"), [((70, 5), 0), ((2, 130, 3), 1), ((3, 4, 40), -2), ((0, 3), 0), ((2, 0), 0)]
)
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.long
def test_scans(dtype: torch.dtype, shape: tuple[int, ...], axis: int, exclusive: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(shape, generator=generator) + 0.5
    x = x.to(dtype) if dtype.is_floating_point else (x * 3).to(dtype)
    kept = dtype if dtype.is_floating_point else torch.int64
    wide = x.double() if dtype.is_floating_point else x.long()
    for name, function, first in (("cumsum", torch.cumsum, 0), ("cumprod", torch.cumprod, 1)):
        expected = function(wide, axis)
        if exclusive and x.numel():
            start = torch.full_like(expected.narrow(axis, 0, 1), first)
            rest = expected.narrow(axis, 0, expected.shape[axis] - 1)
            expected = torch.cat([start, rest], axis)
        with interpreted():
            made = getattr(op.triton, name)
            called = meta.model.trace(
                lambda x, made=made: made.plain(x, axis, str(kept)[6:], exclusive)
            )
            found = called(meta.array(x)).torch()
        assert found.dtype is kept
        bound = HALVES.get(dtype, 1e-5)
        if dtype.is_floating_point:
            torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)
        else:
            assert torch.equal(found, expected.to(kept))


def calls(dtype: str) -> dict[Any, Any]:
    x = TensorType((1000, 300), dtype)
    return {
        random.dropout_train: op.dropout_train.call_values((x, 0.1), CUDA),
        scan.cumsum: op.cumsum.call_values((x, 0), CUDA),
        scan.cumprod: op.cumprod.call_values((x, 0), CUDA),
    }


@pytest.mark.parametrize(
    "dtype",
    ["float16", *(pytest.param(d, marks=pytest.mark.slow) for d in ("bfloat16", "float32"))],
)
def test_compiles(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    for module in (random, scan):
        monkeypatch.setattr(module, "launch_sequence", lambda run, *launches: made.extend(launches))
    for maker, call in calls(dtype).items():
        maker.make.__wrapped__(call)
    assert len(made) == 3
    for launch in made:
        assert build.compiled(launch.unit, launch.unit.variants[0]).shared < 100 * 1024


def test_what_is_left_to_others() -> None:
    x = TensorType((3, 4), "float32")
    for axis, says in ((1, "not the last"), (-1, "not the last")):
        with pytest.raises(Unsupported, match=says):
            scan.cumsum.make(op.cumsum.call_values((x, axis), CUDA))
    with pytest.raises(Unsupported, match="made for float16"):
        random.dropout_train.make(
            op.dropout_train.call_values((x.with_dtype("float64"), 0.1), CUDA)
        )
