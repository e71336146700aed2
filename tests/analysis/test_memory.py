"""Reports of memory: before a program is compiled, and of one that is."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import meta
from meta import op
from meta.analysis import memory
from meta.analysis.memory import LANES, LEFT, WIDTH
from meta.ir import parse
from meta.model import trace
from meta.passes import infer_type

TEXT = """
func @main(%x: float32[64], %y: float32[64]) -> float32[64] {
  %a = cumsum(%x, axis=0)
  %b = add(%a, const float32[] 1.0)
  %c = concat((%b, %a), axis=0)
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


EXCHANGED = """
func @main(%x: float32[64]) -> float32[64] {
  %a = cumsum(%x, axis=0)
  %i = axis_index(over="dp", size=2, device="cpu")
  %b = all_reduce(%a, over="dp", size=2, reduction="sum")
  %v = reshape(%b, shape=(2, 32))
  %c = all_gather(%v, over="dp", size=2, axis=0)
  %s = sum(%c, axis=0)
  %t = concat((%s, %s), axis=0)
  return %t
}"""


def test_results_that_ranks_exchange() -> None:
    report = memory(infer_type(parse(EXCHANGED)))
    found = {r.text.partition(":")[0].strip(): r.exchanged for r in report.rows}
    assert found == {
        **dict.fromkeys(("%a", "%b", "%c"), True),
        **dict.fromkeys(("%i", "%s", "%t"), False),
    }
    assert report.exchanged == 256 + 512  # b, seen as v, and c
    assert "exchanged between ranks: 768 of it" in str(report) and "(exchanged)" in str(report)
    assert "exchanged between ranks" in report._repr_html_()
    assert sum(r["exchanged"] for r in report.records()) == 3
    alone = memory(infer_type(parse(TEXT)))
    assert alone.exchanged == 0 and "exchanged" not in str(alone)


def program(x: Any, y: Any) -> Any:
    a = op.cumsum(x, 0)
    b = op.cumsum(op.add(a, y), 0)
    return op.multiply(op.concat((b, a), 0), 2.0)


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
    assert "concat" in shown


def boxes(svg: str) -> list[dict[str, str]]:
    """Return the rectangles that have a title, of results, with their text."""
    root = ElementTree.fromstring(svg.partition("</style>")[2])
    found = []
    for rectangle in root.iter("rect"):
        title = rectangle.find("title")
        if title is not None:
            found.append({**rectangle.attrib, "title": str(title.text)})
    return found


def test_the_picture_shows_results_where_and_when_they_live() -> None:
    with meta.dialect.only("torch"):
        program = trace(lambda x: op.sum(op.cumsum(op.cumsum(op.cumsum(x, 0), 0), 0)))
        report = meta.vm.compile(program, meta.array(torch.ones(64))).memory()
    placed = [r for r in report.rows if r.offset is not None]
    found = boxes(report.picture())
    assert len(found) == len([r for r in report.rows if r.offset is not None or not r.shared])
    step = (WIDTH - LEFT - 1) / (max(r.last for r in report.rows) + 1)
    for row in placed:
        (box,) = (b for b in found if b["title"].startswith(f"{row.text}\n"))
        assert float(box["x"]) == pytest.approx(LEFT + row.first * step, abs=0.01)
        assert float(box["width"]) == pytest.approx((row.last - row.first + 1) * step, abs=0.01)
        height = max(LANES * row.bytes / report.arena, 0.8)
        assert float(box["height"]) == pytest.approx(height, abs=0.01)
        assert (box.get("class") == "now") == (row.at_peak and not row.shared)
    # Those in use at one time do not overlap.
    for a in placed:
        for b in placed:
            if a is not b and a.first <= b.last and b.first <= a.last and not b.shared | a.shared:
                assert a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset


def test_the_picture_of_nothing_and_of_very_much(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "func @main(%x: float32[2]) -> float32[2] {\n  return %x\n}"
    nothing = memory(infer_type(parse(text)))
    assert nothing.picture() == "<p>The program computes nothing that takes memory.</p>"
    monkeypatch.setattr(import_module("meta.analysis.memory"), "MAX_RECTANGLES", 3)
    report = memory(infer_type(parse(TEXT)))
    largest = sorted((r.bytes for r in report.rows), reverse=True)[:3]
    assert [b["title"].split("\n")[1].split(" B")[0] for b in boxes(report.picture())] == [
        str(size) for size in largest
    ]
