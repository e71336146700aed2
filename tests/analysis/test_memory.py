"""Reports of memory: before a program is compiled, and of one that is."""

from __future__ import annotations

import json
from typing import Any

import torch

import meta
from meta import op
from meta.analysis import memory
from meta.ir import parse
from meta.model import trace
from meta.passes import infer_type

TEXT = """
func @main(%x: float32[64], %y: float32[64]) -> float32[64] {
  %a = cumsum(%x, axis=0)
  %b = add(%a, const float32[] 1.0)
  %c = concatenate((%b, %a), axis=0)
  %v = reshape(%c, shape=(2, 64))
  %d = sum(%v, axis=0)
  return %d
}"""


def test_a_program_before_it_runs() -> None:
    report = memory(infer_type(parse(TEXT)))
    assert (report.arguments, report.constants) == (512, 4)
    assert (report.total, report.lower_bound, report.peak) == (1280, 1024, 1024)
    assert (report.arena, report.worst) == (0, 2)
    assert [(r.binding, r.bytes) for r in report.at_peak()] == [(2, 512), (0, 256), (1, 256)]
    assert [(r.first, r.last) for r in report.rows] == [(0, 2), (1, 2), (2, 4), (4, 4)]
    assert all(r.offset is None for r in report.rows)


def program(x: Any, y: Any) -> Any:
    a = op.cumsum(x, 0)
    b = op.cumsum(op.add(a, y), 0)
    return op.multiply(op.concatenate((b, a), 0), 2.0)


def test_an_executable() -> None:
    x, y = (meta.array(torch.randn(1000)) for _ in range(2))
    with meta.dialect.only("tvm"):
        run = meta.vm.compile(trace(program), x, y)
    report = run.memory()
    assert report.arena == run.arena_bytes
    # The result is allocated at each call, beside the arena.
    assert report.rows[-1].offset is None
    assert report.peak == report.arena + 8000 >= report.lower_bound
    for row in report.rows:
        assert row.offset is None or row.offset + row.bytes <= report.arena
    records = report.records()
    assert json.loads(json.dumps(records)) == records
    assert {"offset", "bytes", "first", "last", "at_peak"} <= set(records[0])
    shown = str(report)
    assert f"peak {report.peak:,} bytes" in shown
    assert "concatenate" in shown
