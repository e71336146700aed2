"""What an executable tells about itself: the profiler, the debugger, the explanation."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.ir import parse
from meta.model import trace
from meta.vm.executable import Executable


def model(x: Any, y: Any) -> Any:
    a = op.exp(x)
    b = op.matmul(a, y)
    return op.relu(b), op.sum(a, 1)


def update(x: Any, v: Any) -> Any:
    op.sgd(x, op.tanh(x), v, 0.5, 0.25)
    return op.negative(x)


LOOP = """
func @main(%n: int32[], %x: float32[2]) -> float32[2] {
  %y: float32[2] = @loop(%n, %x)
  return %y
}

func @loop(%n: int32[], %x: float32[2]) -> float32[2] {
  %p: bool[] = less_equal(%n, 0)
  %r: float32[2] = if %p {
    yield %x
  } else {
    %m: int32[] = subtract(%n, 1)
    %z: float32[2] = tanh(%x)
    %s: float32[2] = @loop(%m, %z)
    yield %s
  }
  return %r
}
"""


def f32(*shape: int) -> meta.ndarray:
    return meta.array(torch.linspace(-1.0, 1.0, math.prod(shape)).reshape(shape))


def compiled(function: Any, *args: Any) -> Executable:
    with meta.dialect.only("torch"):
        return meta.vm.compile(trace(function), *args, opt_level=1)  # in the order written


def test_profile_of_a_straight_program() -> None:
    args = f32(4, 3), f32(3, 2)
    found = compiled(model, *args).profile(*args, repeat=5, warmup=1)
    records = found.records()
    assert [r["operator"] for r in records] == ["exp", "matmul", "relu", "sum"]
    assert {r["dialect"] for r in records} == {"torch"}
    assert [r["bytes_read"] for r in records] == [48, 48 + 24, 32, 48]
    assert [r["bytes_written"] for r in records] == [48, 32, 32, 16]
    assert records[1]["inputs"] == ["float32[4, 3]", "float32[3, 2]"]
    assert records[1]["outputs"] == ["float32[4, 2]"]
    assert all(r["calls"] == 1 and r["seconds"] > 0 for r in records)
    assert sum(r["share"] for r in records) == pytest.approx(1)
    assert sum(r["seconds"] for r in records) == pytest.approx(found.seconds)
    assert records[0]["line"].startswith(__file__)
    assert found.repeat == 5
    json.dumps(records)


def test_the_table_has_the_slowest_first() -> None:
    args = f32(4, 3), f32(3, 2)
    found = compiled(model, *args).profile(*args)
    lines = str(found).splitlines()
    assert lines[0].startswith("4 instructions on cpu, ")
    times = [float(line.split()[0]) for line in lines[2:]]
    assert times == sorted(times, reverse=True) and len(times) == 4
    assert found.table(top=1).splitlines()[-1] == "... and 3 more"


def test_a_loop_is_counted() -> None:
    run = meta.vm.compile(parse(LOOP), meta.array(0, "int32"), f32(2))
    records = {
        r["operator"]: r for r in run.profile(meta.array(7, "int32"), f32(2), repeat=2).records()
    }
    assert records["tanh"]["calls"] == 7 and records["tanh"]["function"] == "loop"
    assert records["less_equal"]["calls"] == 8
    assert records["tanh"]["bytes_read"] == 7 * 8
    assert run.profile(meta.array(0, "int32"), f32(2)).rows[0].calls == 1


def test_a_profile_writes_to_copies() -> None:
    x, v = f32(2, 3), f32(2, 3)
    run = compiled(update, x, v)
    before = x.numpy(), v.numpy()
    found = run.profile(x, v)
    run.debug(x, v)
    assert (x.numpy() == before[0]).all() and (v.numpy() == before[1]).all()
    sgd = next(r for r in found.records() if r["operator"] == "sgd")
    assert sgd["bytes_written"] == 2 * 24


def test_chrome_trace(tmp_path: Path) -> None:
    args = f32(4, 3), f32(3, 2)
    run = compiled(model, *args)
    run.profile(*args).chrome_trace(tmp_path / "trace.json")
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
    trace_ = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    events = [e for e in trace_["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in events] == ["exp", "matmul", "relu", "sum"]
    for event, following in pairwise(events):
        assert event["dur"] > 0
        assert event["ts"] + event["dur"] <= following["ts"] + 1e-3
    assert events[1]["cat"] == "torch"
    assert events[1]["args"]["inputs"] == ["float32[4, 3]", "float32[3, 2]"]
    names = {e["name"]: e["args"]["name"] for e in trace_["traceEvents"] if e["ph"] == "M"}
    assert names == {"process_name": "meta", "thread_name": "cpu"}
    assert all(isinstance(e["pid"], int) and isinstance(e["tid"], int) for e in events)


@pytest.mark.parametrize("numbers", [{"repeat": 0}, {"warmup": -1}])
def test_profiles_without_a_run(numbers: dict[str, int]) -> None:
    run = compiled(op.exp.__call__, f32(2))
    with pytest.raises(meta.errors.ArgumentError, match="repeat >= 1"):
        run.profile(f32(2), **numbers)


def test_debug_shows_every_value() -> None:
    args = f32(4, 3), f32(3, 2)
    found = compiled(model, *args).debug(*args)
    assert [s.operator for s in found] == ["exp", "matmul", "relu", "sum"]
    assert found.nan is None and not any(s.has_nan for s in found)
    exp, matmul = found[0], found[1]
    assert exp.input_names == ("x",) and exp.dialect == "torch"
    assert torch.equal(exp.inputs[0].torch(), args[0].torch())
    assert torch.equal(exp.outputs[0].torch(), args[0].torch().exp())
    assert matmul.input_names == (exp.output_names[0], "y")
    assert torch.equal(matmul.inputs[0].torch(), exp.outputs[0].torch())
    assert exp.span is not None and exp.span.file == __file__
    assert "torch.exp(x: float32[4, 3])" in str(found)
    assert len(str(found).splitlines()) == len(found) == 4


def test_debug_keeps_what_was_before_a_write() -> None:
    x, v = f32(2, 3), f32(2, 3)
    found = compiled(update, x, v).debug(x, v)
    sgd = next(s for s in found if s.operator == "sgd")
    after = dict(zip(sgd.output_names, sgd.outputs, strict=True))
    assert set(after) == {"x", "v"}
    before = dict(zip(sgd.input_names, sgd.inputs, strict=True))
    assert torch.equal(before["x"].torch(), x.torch())
    assert not torch.equal(after["x"].torch(), x.torch())


def test_debug_stops_at_the_first_nan() -> None:
    def rough(x: Any) -> Any:
        return op.exp(op.sqrt(op.negative(op.abs(x))))

    run = compiled(rough, f32(3))
    found = run.debug(f32(3), stop_at_nan=True)
    assert [s.operator for s in found] == ["abs", "negative", "sqrt"]
    assert found.nan is found[2] and "NaN!" in str(found.nan)
    assert [s.has_nan for s in run.debug(f32(3))] == [False, False, True, True]


def test_explanation() -> None:
    with meta.dialect.only("tvm"):
        meta.explain(op.exp, f32(2))  # which loads it
    args = f32(4, 3), f32(3, 2)
    found = compiled(model, *args).explain()
    records = found.records()
    assert [r["operator"] for r in records] == ["exp", "matmul", "relu", "sum"]
    assert records[0]["line"].startswith(__file__)
    refused = {c["dialect"]: c["reason"] for c in records[0]["calls"][0]["candidates"]}
    assert refused == {"tvm": "not among only('torch')", "torch": ""}
    assert "0: exp by torch" in str(found) and "refuses: not among only('torch')" in str(found)
    json.dumps(records)


def test_explanation_of_a_pattern() -> None:
    """A dialect's kernel for several calls: each call is explained by itself."""
    x, network = f32(2, 3), meta.model.Linear(3, 4).eval()
    (entry,) = found = meta.vm.compile(network, x).explain()
    assert found.records()[0]["line"].startswith(__file__)
    assert entry.site.operator == "linear"
    assert [c.title.split("(")[0] for c in entry.calls] == ["dense", "bias_add"]


def test_explanation_of_a_fused_kernel() -> None:
    def chain(x: Any) -> Any:
        return op.relu(op.add(x, 1.0))

    with meta.dialect.only("tvm"):
        run = meta.vm.compile(trace(chain), f32(2, 3))
    (entry,) = run.explain()
    assert entry.site.dialect == "tvm" and entry.site.operator == "fused_add_relu"
    assert [c.title.split("(")[0] for c in entry.calls] == ["add", "relu"]
    assert all(c.chosen.dialect_op.dialect.name == "tvm" for c in entry.calls)
    assert run.profile(f32(2, 3), repeat=2).records()[0]["operator"] == "fused_add_relu"


@pytest.mark.cuda
def test_profile_on_cuda(tmp_path: Path) -> None:
    args = f32(64, 64).to(device="cuda"), f32(64, 64).to(device="cuda")
    run = meta.vm.compile(trace(model), *args)
    found = run.profile(*args, repeat=3)
    assert all(0 < r["seconds"] < 1 for r in found.records())
    found.chrome_trace(tmp_path / "trace.json")
    assert len(run.debug(*args)) == len(found.rows)
