"""Operators of several launches, with memory in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import meta
from meta import op
from meta.base import config
from meta.base.device import CPU, Device
from meta.base.errors import RegistrationError
from meta.dialect import only
from meta.dialect.core import OpEnv, Unsupported, ask, compile_together, tunable
from meta.dialect.triton import TritonDialect, interpreted
from meta.dialect.triton.sequence import TritonLaunch, launch_sequence
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from tests.dialect.triton import kernels
from tests.dialect.triton.fake_driver import FakeDriver


@triton.jit
def sums(x, partial, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(partial + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < n, other=0.0)))


@triton.jit
def finish(partial, out, by, blocks, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(partial + at, mask=at < blocks, other=0.0)) * by)


@tunable
def total(call: CallValues) -> OpEnv:
    x = call.args.x
    if len(call.out.shape) or x.dtype != "float32":
        raise Unsupported("made for the sum of all elements in float32")
    block = ask("BLOCK", 32, (64,))
    blocks = -(-x.size // block)
    power = triton.next_power_of_2(max(blocks, 1))
    first = TritonLaunch(
        sums, call.device, (blocks,), x=x, partial="float32", n=x.size, BLOCK=block
    )
    how: dict[str, Any] = {"blocks": blocks, "BLOCK": power, "num_warps": 1}
    last = TritonLaunch(finish, call.device, (1,), partial="float32", out=x, by="fp32", **how)

    def run(x: torch.Tensor, out: torch.Tensor) -> None:
        partial = torch.empty(blocks, dtype=torch.float32)
        first(x, partial)
        last(partial, out, 2.0)

    return launch_sequence(run, first, last, workspace=4 * blocks)


def test_launches_follow_one_another(tested: TritonDialect):
    tested.op(op.sum, plevel=tested.levels(5))(total)
    assert tested.ops["sum"].plevels == {"cuda": 5, "cpu": 1}
    for count in (1, 33, 100):
        x = torch.randn(count)
        with interpreted(), only("tested"):
            found = meta.sum(meta.array(x))
        torch.testing.assert_close(found.torch(), 2 * x.sum())
    empty = meta.array(torch.zeros(0))
    with interpreted(), only("tested"):
        assert meta.sum(empty).item() == 0


def test_they_are_compiled_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake = FakeDriver(monkeypatch)
    call = kernels.call(op.sum, TensorType((100,), "float32"))
    with config.override(META_CACHE_DIR=str(tmp_path), META_COMPILE_THREADS=2):
        env = total(call)
        assert env.configs is not None and list(env.configs.listed()) == [(("BLOCK", 64),)]
        compile_together([env])
        env.run(torch.zeros(100), torch.zeros(()))
    assert [(one.name, one.grid[0]) for one in fake.launched] == [("sums", 4), ("finish", 1)]
    assert [fake.launched[1].read(i, w) for i, w in enumerate("QQfi")][2:] == [2.0, 4]
    assert fake.launched[1].threads == 32 and env.workspace_bytes == 16


def test_what_is_wrong_is_said_with_the_kernels_line():
    good: dict[str, Any] = {"x": "float32", "partial": "float32", "n": 3, "BLOCK": 16}
    for change, message in (
        ({"m": 3}, r"has no parameters \['m'\]"),
        ({"n": "int"}, "is told n='int'"),
        ({"num_warps": 3}, "num_warps=3"),
    ):
        with pytest.raises(RegistrationError, match=message) as caught:
            TritonLaunch(sums, CPU, (1,), **{**good, **change})
        assert "test_sequence.py" in str(caught.value)
    with pytest.raises(RegistrationError, match="is not told 'BLOCK'"):
        TritonLaunch(sums, CPU, (1,), x="float32", partial="float32", n=3)
    with pytest.raises(Unsupported, match="complex64, which Triton does not have"):
        TritonLaunch(sums, CPU, (1,), **{**good, "x": "complex64"})
    with pytest.raises(Unsupported, match="70000 blocks along axis 1"):
        TritonLaunch(sums, Device("cuda:0"), (1, 70000), **good)
