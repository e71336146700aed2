"""What a launch passes to the driver: every parameter where Triton's code reads it, the variant
that suits the tensors, and the attributes of a launch.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from meta import op
from meta.base import config
from meta.base.device import Device
from meta.base.errors import DeviceError
from meta.dialect.core.launch import Launch
from meta.dialect.triton import TritonDialect, build
from meta.dialect.triton.launch import LaunchPlan
from meta.dialect.triton.sequence import TritonLaunch
from meta.dialect.triton.type_names import FORMAT
from meta.ir.types import TensorType
from meta.runtime import cuda_driver as driver
from tests.dialect.triton import kernels
from tests.dialect.triton.fake_driver import STREAM, FakeDriver

SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "f32": 4, "f64": 8, "b8": 1, "b32": 4, "b64": 8}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDriver]:
    build.kernels.forget()
    with config.override(META_CACHE_DIR=str(tmp_path), META_COMPILE_THREADS=1):
        yield FakeDriver(monkeypatch)
    build.kernels.forget()


def parameters_of(ptx: str) -> list[int]:
    """Return the sizes of the parameters of the kernel in PTX, in order."""
    head = ptx[ptx.index(".entry") :]
    head = head[: head.index(")")]
    return [SIZES[word] for word in re.findall(r"\.param \.([a-z]+\d+)", head)]


def prepared(dialect: TritonDialect, operator: Any, *types: Any, **more: Any):
    """Return the run of a kernel, and what it was made of, after comparing the parameters of each
    variant with those in Triton's PTX."""
    env = dialect.ops[operator.name].make(kernels.call(operator, *types, **more))
    assert env._deferred is not None
    ready = env._deferred.source
    for variant, passed in zip(ready.unit.variants, ready.plan.passed, strict=True):
        made = build.assembled(ready.unit, variant)
        sizes = parameters_of(made.asm["ptx"])
        assert sizes == [*(struct.calcsize(_format(p)) for p in passed), 8, 8]
    return env, ready


def _format(part: tuple[Any, ...]) -> str:
    """Return how `struct` writes a parameter."""
    fixed = {"pointer": "Q", "stride": "q"}
    return fixed.get(part[0]) or FORMAT[part[2] if part[0] == "number" else part[1]]


def test_a_flat_kernel(tested: TritonDialect, fake: FakeDriver):
    env, _ = prepared(tested, op.relu, TensorType((3, 50), "float16"))
    x, out = torch.zeros(3, 50, dtype=torch.float16), torch.empty(3, 50, dtype=torch.float16)
    env.run(x, out)
    (one,) = fake.launched
    assert (one.name, one.grid, one.threads, one.stream) == ("relu", (3, 1, 1), 128, STREAM)
    assert one.attributes == {}
    values = [one.read(i, word) for i, word in enumerate("QQiQQ")]
    assert values == [x.data_ptr(), out.data_ptr(), 150, 0, 0]
    assert not env.strided and env.artifact is not None


def test_strides_of_tensors_that_are_not_compact(tested: TritonDialect, fake: FakeDriver):
    env, ready = prepared(tested, op.softmax, TensorType((6, 40), "float32"), axis=1)
    names = [p[0] for p in ready.plan.passed[0]]
    assert names == ["pointer", "pointer", "known", "known", "known", "known"]
    wide, out = torch.zeros(6, 80), torch.empty(6, 40)
    compact, strided = torch.zeros(6, 40), wide[:, 1::2]
    env.run(compact, out)
    env.run(strided, out)
    env.run(compact.flatten()[: 5 * 40].as_strided((6, 40), (39, 1)), out)
    env.run(torch.zeros(241)[1:].view(6, 40), out)  # its address is not a multiple of 16
    first, second, third, fourth = fake.launched
    assert [len(one.addresses) for one in fake.launched] == [8, 9, 9, 9]
    assert first.read(2, "i") == 40
    for one, steps in ((second, (80, 2)), (third, (39, 1)), (fourth, (40, 1))):
        assert tuple(one.read(i, "q") for i in (2, 3, 4)) == (*steps, 40)


def test_every_kind_of_number(tested: TritonDialect, fake: FakeDriver):
    @triton.jit
    def numbers(x, out, numel, flag, small: tl.int8, half: tl.float64, wide, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < numel) * half + wide + small
        tl.store(out + at, tl.where(flag, value, 0.0), mask=at < numel)

    given = {"flag": True, "small": -3, "half": 0.5, "wide": 2**40}
    tested.kernel(op.exp, grid=(1,), configs=[{"BLOCK": 32}], bind=lambda call: given)(numbers)
    env, ready = prepared(tested, op.exp, TensorType((7,), "float32"))
    x, out = torch.zeros(7), torch.empty(7)
    env.run(x, out)
    (one,) = fake.launched
    words = [p[1] for p in ready.plan.passed[0][2:]]
    assert words == ["i32", "u1", "i8", "fp64", "i64"]
    values = [one.read(2 + i, word) for i, word in enumerate("i?bdq")]
    assert values == [7, True, -3, 0.5, 2**40]
    for address, size in zip(one.addresses[2:], (4, 1, 1, 8, 8), strict=False):
        assert address % size == 0


def test_numbers_that_are_given_at_run_time(tested: TritonDialect, fake: FakeDriver):
    @triton.jit
    def leaky(x, out, negative_slope, numel, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < numel)
        tl.store(out + at, tl.where(value > 0, value, value * negative_slope), mask=at < numel)

    tested.kernel(op.leaky_relu, grid=kernels.flat, configs=[{"BLOCK": 32}])(leaky)
    for dtype, word in (("float32", "f"), ("float64", "d"), ("bfloat16", "f")):
        type_ = TensorType((7,), dtype)
        env, _ = prepared(tested, op.leaky_relu, type_, negative_slope=0.25)
        x = torch.zeros(7, dtype=getattr(torch, dtype))
        for slope in (0.25, 0.5, 1e300):
            env.run(x, slope, torch.empty_like(x))
            expected = slope if word == "d" or slope < 1 else float("inf")
            assert fake.launched[-1].read(2, word) == expected


@triton.jit
def described(x, out, n, BLOCK: tl.constexpr):
    rows = tl.make_tensor_descriptor(x, [n, BLOCK], [BLOCK, 1], [8, BLOCK])
    twice = tl.make_tensor_descriptor(out, [n, BLOCK], [BLOCK, 1], [8, BLOCK])
    row = tl.program_id(0) * 8
    twice.store([row, 0], rows.load([row, 0]) * 2)


def test_memory_that_the_code_wants(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    empty = torch.empty

    def on_cpu(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        asked.append(size)
        return empty(size, dtype=dtype)

    launch = TritonLaunch(
        described, Device("cuda:0"), (8,), x="float32", out="float32", n=64, BLOCK=32
    )
    launch.load()
    monkeypatch.setattr(torch, "empty", on_cpu)
    x, odd, out = torch.ones(64, 32), torch.ones(2049)[1:].view(64, 32), torch.zeros(64, 32)
    launch(x, out)
    launch(odd, out)
    assert len(asked) == 2 and asked[0] % (8 * 128) == 0
    first, second = fake.launched
    assert first.shared > 0 and first.read(-2, "Q") % 16 == 0 and first.read(-1, "Q") == 0
    assert first.read(0, "Q") == x.data_ptr()
    assert second.read(0, "Q") % 16 == 0 and second.read(0, "Q") != odd.data_ptr()


def test_each_launch_has_memory_of_its_own(fake: FakeDriver):
    function = fake.load(b"", "k", 0)
    launch = Launch(function, ["q", "i"], {1: 5}, (1, 1, 1), (32, 1, 1))
    seen: list[int] = []
    inner = fake.launch

    def nested(*args: Any) -> int:
        if len(fake.launched) == 0:
            code = inner(*args)
            launch(2)  # as another thread does while the driver reads
            seen.append(fake.launched[0].read(0, "q"))
            return code
        return inner(*args)

    driver.library().cuLaunchKernelEx = nested
    launch(1)
    assert [one.read(0, "q") for one in fake.launched] == [1, 2]
    assert seen == [1] and len(launch.free) == 2
    first, second = fake.launched
    assert first.addresses[0] != second.addresses[0]
    threads = [threading.Thread(target=launch, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = sorted(one.read(0, "q") for one in fake.launched[2:])
    assert values == list(range(8))


def test_clusters_and_errors(fake: FakeDriver):
    function = fake.load(b"", "k", 0, 1000)
    Launch(function, ["d"], {}, (3, 2, 1), (64, 1, 1), cluster=4)(1.5)
    (one,) = fake.launched
    assert one.grid == (12, 2, 1) and one.threads == 64 and one.shared == 1000
    assert one.attributes == {4: [4, 1, 1], 5: [1, 0, 0]}
    fake.code = 1
    with pytest.raises(DeviceError, match="cuLaunchKernelEx failed"):
        Launch(function, ["d"], {}, (1, 1, 1), (64, 1, 1))(1.5)


@pytest.mark.parametrize(
    "change",
    [
        {"grid": [1, 2]},
        {"grid": [1, 2, -1]},
        {"passed": []},
        {"passed": [[["pointer", -1]]]},
        {"passed": [[["number", 0, "i128"]]]},
        {"passed": [[["known", "i32", None]]]},
        {"passed": [[["other", 1]]]},
        {"strided": [True]},
        {"compacted": "all"},
        {"more": 1},
    ],
)
def test_a_record_that_is_none_is_refused(change: dict[str, Any]):
    passed = (("pointer", 0), ("number", 1, "fp32"), ("stride", 0, 1), ("known", "fp64", 0.1))
    plan = LaunchPlan((passed,), (1, 2, 3), (0,), (1,))
    assert LaunchPlan.read(plan.record()) == plan
    with pytest.raises(ValueError, match="does not say how to launch"):
        LaunchPlan.read({**plan.record(), **change})
