"""Configurations of generated kernels: each is another kernel of the same results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tvm import te, tirx

import meta
from meta import op
from meta.base.device import CPU
from meta.dialect.core import Config, Unsupported, only
from meta.dialect.core.knobs import Knobs
from meta.dialect.core.openv import config_text
from meta.dialect.tvm import build, schedule_cpu, schedule_cuda, tvm
from meta.dialect.tvm import configs as tvm_configs
from meta.dialect.tvm.configs import configs_of, with_config
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.target import for_device
from meta.ir import parse
from meta.passes import canonicalize, dispatch, fuse_operators
from meta.testing.emulator import generated
from tests.dialect.tvm.functions import (
    RECORDS,
    Record,
    broadcast,
    empty_like,
    layer_norm,
    reduction,
    sample,
    softmax,
    transpose,
    unary,
)

HOST = for_device(CPU)
EMULATED: dict[str, Callable[[], Record]] = {
    "elements": lambda: unary((5003,), "exp"),
    "one element": lambda: unary((1,), "exp"),
    "half": lambda: broadcast((150, 48), (48,), "float16"),
    "bytes": lambda: unary((70, 13), "logical_not", "bool"),
    "rows": lambda: softmax(19, 333),
    "one row": lambda: softmax(1, 2050),
    "rows with weights": lambda: layer_norm(9, 256, with_moments=True),
    "columns": lambda: reduction((331, 70), 0, "sum"),
    "half columns": lambda: reduction((130, 64), 0, "max", "float16"),
    "a number": lambda: reduction((130, 77), None, "sum"),
    "ends": lambda: reduction((8, 64, 48), (0, 2), "sum"),
    "transpose": lambda: transpose((45, 133), (1, 0)),
}
"""The configurations of these are emulated one by one; those of `RECORDS` are compiled for the
CPU."""
OFTEN = "elements", "rows", "columns", "transpose"
ODD = {"elements", "half", "rows", "columns", "a number", "transpose"}


def listed(function: tirx.PrimFunc, cuda: bool = False) -> list[Config]:
    rules, target = (schedule_cuda, generated.TARGET) if cuda else (schedule_cpu, HOST)
    found = configs_of(function, target, rules.schedule, lambda one: one)
    assert found is not None
    return list(found.listed())


def compare(record: Record, run: Callable[[tirx.PrimFunc], Any], cuda: bool) -> int:
    """Run all configurations of a function; return how many there are."""
    inputs, outputs, oracle = record
    function = prim_func(inputs, outputs)
    arrays = [sample(placeholder, seed) for seed, placeholder in enumerate(inputs)]
    configs = listed(function, cuda)
    for config in configs:
        results = [empty_like(output) for output in outputs]
        run(with_config(function, config))(*arrays, *results)
        for result, expected in zip(results, oracle(*arrays), strict=True):
            torch.testing.assert_close(
                result, expected.contiguous(), rtol=2e-3 if result.dtype == torch.half else 2e-5,
                atol=2e-4, msg=lambda text, config=config: f"{config}: {text}",
            )  # fmt: skip
    return len(configs)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in OFTEN else pytest.mark.sweep) for n in EMULATED]
)
def test_each_emulated_kernel_is_right(name: str) -> None:
    count = compare(EMULATED[name](), generated.emulated, cuda=True)
    assert count >= 2 or name not in ODD


@pytest.mark.parametrize(
    "name",
    ["elementwise_large", "sum_rows_odd", "sum_few", "softmax_odd", "layer_norm", "transpose"]
    + [pytest.param(n, marks=pytest.mark.sweep) for n in RECORDS],
)
def test_each_kernel_of_the_processor_is_right(name: str) -> None:
    compare(RECORDS[name](), lambda one: build.kernel(one, HOST), cuda=False)


def test_what_a_configuration_turns() -> None:
    def first(record: Record, cuda: bool) -> set[str]:
        return {name for config in listed(prim_func(*record[:2]), cuda) for name, _ in config}

    assert first(unary((1 << 22,), "exp"), True) == {"vector", "threads", "items"}
    assert first(softmax(512, 1000), True) == {"threads", "rows"}
    assert first(reduction((512, 1000), 0, "sum"), True) == {"vector", "across", "slices", "ahead"}
    assert first(transpose((256, 320), (1, 0)), True) == {"tile"}
    assert first(unary((1 << 16,), "exp"), False) == {"parallel", "chunks"}
    assert first(reduction((300, 1024), 1, "sum"), False) == {"parallel", "lanes"}
    assert first(unary((16,), "exp"), False) == set()


def test_what_is_scheduled_to_be_listed_is_not_scheduled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tvm_configs, "_schedules", {})
    scheduled: list[dict[str, Any]] = []

    def schedule(function: tirx.PrimFunc, target: Any, knobs: Knobs) -> tirx.PrimFunc:
        scheduled.append(knobs.chosen)
        return schedule_cpu.schedule(function, target, knobs)

    inputs, outputs, oracle = reduction((37, 1024), 1, "sum")
    function = prim_func(inputs, outputs)
    configs = configs_of(function, HOST, schedule, lambda one: one)
    assert configs is not None
    listed = configs.listed()
    count = len(scheduled)
    assert count > len(listed) > 1
    # Sums of whole numbers are exact in any order.
    x, out = torch.randint(-8, 9, (37, 1024)).float(), torch.empty(37)
    with monkeypatch.context() as patch:
        patch.setattr(schedule_cpu, "_schedule", lambda _: pytest.fail("scheduled again"))
        for config in listed:
            build.kernel(configs.made(config), HOST)(x, out)
            assert torch.equal(out, *oracle(x))
    assert len(scheduled) == count
    configs.made(listed[0])  # what was compiled is forgotten
    assert scheduled[count:] == [dict(listed[0])]


def test_a_configuration_is_part_of_the_key_on_disk() -> None:
    inputs, outputs, _ = unary((1 << 16,), "exp")
    function = prim_func(inputs, outputs)
    texts = {
        build._key_text(with_config(function, config), HOST)
        for config in ((), *listed(function), (("chunks", 16), ("parallel", 1)))
    }
    assert len(texts) == 5


def test_a_kernel_of_an_operator_has_configurations() -> None:
    x = meta.array(torch.randn(512, 512))
    with meta.dialect.only("tvm"):
        env = next(c.env for c in meta.explain(op.exp, x) if c.env is not None)
    assert env.configs is not None
    for config in env.configs.listed():
        made, out = env.configured(config), torch.empty(512, 512)
        assert made.config == config
        made.run(x.torch(), out)
        torch.testing.assert_close(out, x.torch().exp())
        assert made.artifact is not None and made.configured(()).config == ()


PROGRAM = """
func @main(%x: float32[512, 256], %y: float32[256, 512]) -> float32[256, 512] {
  %0: float32[256, 512] = permute_dims(%x, axes=(1, 0))
  %1: float32[256, 512] = add(%0, %y)
  %2: float32[256, 512] = exp(%1)
  return %2
}"""


def test_programs_name_configurations() -> None:
    module = parse("""
func @main(%x: float32[512, 256]) -> float32[512, 256] {
  %y: float32[512, 256] = tvm.exp@chunks=16,parallel=1(%x)
  return %y
}""")
    assert "tvm.exp@chunks=16,parallel=1(%x)" in str(module)
    x, run = torch.randn(512, 256), meta.vm.compile(module)
    assert run.kernels() == {"tvm.exp@chunks=16,parallel=1": 1}
    torch.testing.assert_close(run(meta.array(x)).torch(), x.exp())


def test_a_fused_kernel_has_configurations() -> None:
    module = parse(PROGRAM)
    with only("tvm"):
        for one in (canonicalize, partial(dispatch, device=CPU), fuse_operators):
            module = one(module)
    [fused] = [f for f in module.functions.values() if "fused" in f.attrs]
    x, y = torch.randn(512, 256), torch.randn(256, 512)
    env = tvm.fused_kernel(fused, CPU)
    assert env.configs is not None
    assert {config[0][0] for config in env.configs.listed()} == {"parallel", "tile"}
    for config in env.configs.listed():
        stated = replace(fused, attrs={**fused.attrs, "config": config_text(config)})
        made, out = tvm.fused_kernel(stated, CPU), torch.empty(256, 512)
        made.run(x, y, out)
        assert made.config == config
        torch.testing.assert_close(out, (x.t() + y).exp())


@pytest.mark.parametrize("config", [(("warps", 4),), (("chunks", 17),), (("chunks", "many"),)])
def test_what_a_kernel_does_not_have_is_refused(config: Config) -> None:
    x = meta.array(torch.randn(512, 512))
    with meta.dialect.only("tvm"):
        env = next(c.env for c in meta.explain(op.exp, x) if c.env is not None)
    with pytest.raises(Unsupported, match=f"no {config[0][0]}={config[0][1]}"):
        env.configured(config)


def test_functions_of_loops_by_hand_have_none() -> None:
    x = te.placeholder((4,), name="x")
    function = prim_func([x], [te.compute((4,), lambda i: x[i])]).with_attr("meta.scheduled", 1)
    assert configs_of(function, HOST, schedule_cpu.schedule, lambda one: one) is None
