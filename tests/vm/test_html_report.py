"""The page of a program: what passes changed, who runs what and why, and what is not known."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base import config
from meta.base.errors import ArgumentError, FileError
from meta.ir import parse, text
from meta.model import trace
from meta.vm.executable import Executable
from meta.vm.inspect import graph_svg as graph_module
from meta.vm.inspect import pass_changes as changes_module
from meta.vm.inspect.graph_folding import repetitions
from meta.vm.inspect.graph_svg import graph_svg
from meta.vm.inspect.html_report import NO_PASSES, NO_TIMES, page
from meta.vm.inspect.pass_changes import SteadyPrinter, changes, changes_html

VOID = ("meta", "br")


class Document(HTMLParser):
    """The text of a page by section; elements must be balanced, and refer to nothing outside."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.sections: dict[str, str] = {}
        self.section = ""
        self.tags: set[str] = set()
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        known = dict(attrs)
        assert "src" not in known and not any(k.startswith("on") for k in known)
        assert re.match(r"#|file:", known.get("href") or "#"), known
        if tag == "section":
            self.section = str(known["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.sections[self.section] = self.sections.get(self.section, "") + data


def model(x: Any, y: Any) -> Any:
    a = op.exp(x + 0.0)
    b = op.matmul(a, y)
    return op.relu(b), op.sum(a, 1)


def f32(*shape: int) -> meta.ndarray:
    return meta.array(torch.linspace(-1.0, 1.0, torch.Size(shape).numel()).reshape(shape))


def compiled(**options: Any) -> Executable:
    with meta.dialect.only("torch"):
        return meta.vm.compile(trace(model), f32(2, 3), f32(3, 4), **options)


def test_the_page_has_every_section() -> None:
    run = compiled()
    html = page(run)
    found = Document(html)
    assert found.tags.isdisjoint({"script", "img", "link", "iframe"})
    sections = ["", "overview", "graph", "passes", "kernels", "memory", "program"]
    assert list(found.sections) == sections
    overview = found.sections["overview"]
    for part in ("float32[2, 3]", "float32[3, 4]", "(float32[2, 4], float32[2])", "cpu"):
        assert part in overview
    for name in (r.name for r in run.history[1:]):
        assert name in found.sections["passes"]
    kernels = found.sections["kernels"]
    for entry in run.explain():
        assert f"{entry.site.dialect}.{entry.site.operator}" in kernels
    assert NO_TIMES in kernels and "no CUDA graph: the device is cpu" in kernels
    assert "peak at binding" in found.sections["memory"]
    program = found.sections["program"]
    for line in text(run.module).split("\n"):
        assert line.partition("  #")[0] in program
    assert str(run.code) in program


def test_the_graph() -> None:
    """A node for each input and binding, an edge for each value that one takes of another."""
    html = graph_svg(compiled())
    assert re.findall(r'class="title">([^<]*)<', html) == [
        "%x", "%y", "torch.add", "torch.exp", "torch.sum", "torch.matmul", "torch.relu",
    ]  # fmt: skip
    assert html.count("<path") == 6 and html.count('class="result"') == 2
    assert "test_html_report.py:64" in html and "float32[2, 4]" in html
    Document(f"<html>{html}</html>")


def test_the_graph_of_branches_and_of_nothing() -> None:
    def choice(x: Any) -> Any:
        return meta.cond(x.sum() > 0.0, lambda: op.exp(x), lambda: x)

    html = graph_svg(meta.vm.compile(trace(choice), f32(2)))
    assert ">If<" in html and "%x" in html
    identity = graph_svg(meta.vm.compile(parse("func @main() -> () {\n  return (,)\n}")))
    assert "neither inputs nor bindings" in identity


class Layers(meta.Model):
    """So many layers of two branches, and what ends the last one otherwise."""

    def build(self, count: int) -> None:
        self.weights = [meta.model.parameter(f32(4, 4)) for _ in range(count)]

    @trace
    def forward(self, x: Any, mask: Any) -> Any:
        for weight in self.weights:
            y = op.exp(op.matmul(x, weight)) * mask
            x = op.tanh(op.reshape(op.reshape(y, (12,)), (3, 4))) + op.sin(x) + x
        return op.sum(op.cos(x))


def drawn(count: int) -> str:
    with meta.dialect.only("torch"):
        return graph_svg(meta.vm.compile(Layers(count), f32(3, 4), f32(4)))


def test_layers_are_drawn_once() -> None:
    one, *others = (re.findall(r'class="title">([^<]*)<', drawn(n)) for n in (1, 3, 20))
    assert "torch.reshape" not in one and one.count("torch.matmul") == 1
    for number, found in zip((3, 20), others, strict=True):
        assert sorted(found) == sorted([*one, f"{number} times"])
    # Edges: those of one layer; what a layer takes of the one before is that of the first.
    assert drawn(20).count("<path") == drawn(1).count("<path")
    assert "these 7 nodes come 20 times" in drawn(20)
    Document(f"<html>{drawn(3)}</html>")


@pytest.mark.parametrize(
    ("keys", "sources", "expected"),
    [
        ("abcabcabc", "chain", [(0, 3, 6)]),
        ("xabcdabcdabcy", "chain", [(1, 4, 7)]),  # the last one lacks one of four
        ("abcabc", "chain", []),  # too little
        ("aaaaaa", "chain", [(0, 1, 5)]),
        ("aaaaaa", [[], [], [], [], [], []], [(0, 1, 5)]),
        ("abababab", [[], [0], [0], [2], [0], [4], [0], [6]], [(1, 2, 4)]),  # of one source
        ("abababab", [[], [0], [1], [2], [2], [4], [3], [6]], []),  # other edges each time
        ("abcdabcdxyxyxyxy", "chain", [(0, 4, 4), (8, 2, 6)]),
    ],
)
def test_repetitions(keys: str, sources: Any, expected: list[tuple[int, int, int]]) -> None:
    if sources == "chain":
        sources = [[i - 1] for i in range(len(keys))]
    nodes = [SimpleNamespace(key=(k,), before=[]) for k in keys]
    for node, of in zip(nodes, sources, strict=True):
        node.before = [nodes[i] if i >= 0 else "input" for i in of]
    found = repetitions(nodes)
    assert [(r.start, r.period, r.saved) for r in found] == expected


def test_a_large_graph_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "MAX_NODES", 2)
    html = graph_svg(compiled())
    assert "more bindings" in html and html.count("<rect") == 4


def test_times_are_those_of_the_profile() -> None:
    run = compiled()
    profile = run.profile(f32(2, 3), f32(3, 4), repeat=2, warmup=0)
    kernels = Document(page(run, profile)).sections["kernels"]
    assert profile.title in kernels and NO_TIMES not in kernels
    for row in profile.rows:
        assert f"{row.share:.1%}" in kernels


def test_a_profile_of_another_program_is_refused() -> None:
    run = compiled()
    with meta.dialect.only("torch"):
        other = meta.vm.compile(trace(lambda x: op.tanh(x)), f32(2))
    with pytest.raises(ArgumentError, match="profile of another program"):
        run.show(profile=other.profile(f32(2), repeat=1))


def test_the_file_is_written_all_or_nothing(tmp_path: Path) -> None:
    run = compiled()
    target = tmp_path / "page.html"
    assert run.show(target) == target and run.show(str(target)) == target
    assert list(tmp_path.iterdir()) == [target]
    Document(target.read_text("utf-8"))
    with pytest.raises(FileError):
        run.show(tmp_path / "absent" / "page.html")
    somewhere = run.show()
    try:
        assert somewhere.suffix == ".html" and somewhere.read_text("utf-8").endswith("</html>")
    finally:
        somewhere.unlink()


def test_a_loaded_program_says_what_is_not_kept(tmp_path: Path) -> None:
    run = compiled()
    run.save(tmp_path / "saved")
    loaded = meta.vm.load(tmp_path / "saved")
    assert loaded.passes() == []
    found = Document(page(loaded, loaded.profile(f32(2, 3), f32(3, 4), repeat=1))).sections
    assert NO_PASSES in found["passes"] and NO_PASSES not in Document(page(run)).sections["passes"]
    assert "torch.matmul" in found["kernels"] and "peak at binding" in found["memory"]


def test_passes_of_a_program_from_the_cache_are_run_once_more(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with config.override(META_PROGRAM_CACHE=True, META_CACHE_DIR=folder):
        x = f32(2, 3)
        fresh = meta.vm.compile(_double, x)
        cached = meta.vm.compile(_double, x)
    assert fresh.history and not cached.history
    again = cached.passes()
    assert [r.name for r in again] == [r.name for r in fresh.history]
    assert text(again[-1].module) == text(cached.module)
    assert not cached.history
    replayed = "the passes were run once more"
    assert replayed in page(cached) and replayed not in page(fresh)


_double = meta.model.Linear(3, 3)


def test_variables_keep_their_names() -> None:
    run = compiled()
    printer = SteadyPrinter()
    lines = [printer.lines_of(r.module) for r in run.history]
    assert lines[0] == text(run.history[0].module).split("\n")
    kept = [[line.split(":")[0] for line in found if "relu" in line] for found in lines]
    assert len({line for found in kept for line in found}) == 1


def test_changes_are_those_of_the_text() -> None:
    run = compiled()
    printer = SteadyPrinter()
    before = printer.lines_of(run.history[0].module)
    for record, found in zip(run.history[1:], changes(run.history), strict=True):
        after = printer.lines_of(record.module)
        assert [a for a, _ in found.steps if a is not None] == before
        assert [b for _, b in found.steps if b is not None] == after
        assert (found.summary() == "no change") == (before == after)
        before = after
    by_name = {found.record.name: found for found in changes(run.history)}
    assert by_name["dispatch"].rewritten > 0 and by_name["dispatch"].added == 0


def test_marked_lines_hold_the_old_and_the_new_text() -> None:
    found = changes(compiled().history)
    html = changes_html(found)
    Document(f"<section id=passes>{html}</section>")
    edits = re.findall(r'<div class="edit">(.*?)</div>', html)
    plain = [re.sub("<(?!/?del|/?ins)[^>]*>", "", edit) for edit in edits]
    assert sum("<del>matmul</del><ins>torch.matmul</ins>" in line for line in plain) == 1


def test_a_large_page_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(x: Any) -> Any:
        for _ in range(60):
            x = op.tanh(x) @ x
        return x

    with meta.dialect.only("torch"):
        run = meta.vm.compile(trace(deep), f32(2, 2))
    found = changes(run.history)
    whole = changes_html(found)
    monkeypatch.setattr(changes_module, "MAX_UNCHANGED", 0)
    monkeypatch.setattr(changes_module, "MAX_CHANGED", 10)
    short = changes_html(found)
    assert len(short) < len(whole) / 2
    assert re.search(r"and [\d,]+ more changed lines", short)
    assert re.search(r">⋯ [\d,]+ unchanged lines</div>", short)


def test_why_a_kernel_was_chosen() -> None:
    def program(x: Any) -> Any:
        return op.matmul(x, x)

    x = f32(4, 4)
    with meta.dialect.only("torch"):
        (only,) = meta.vm.compile(trace(program), x).explain()
    assert only.why() == "the only one that accepts"
    with meta.dialect.only("tvm", "torch"):
        (usual,) = meta.vm.compile(trace(program), x).explain()
        with meta.dialect.prefer("tvm"):
            (preferred,) = meta.vm.compile(trace(program), x).explain()
    assert preferred.why() == "preferred by meta.dialect.prefer"
    vector = meta.ir.parse_type("float32[n]")
    (each,) = meta.vm.compile(trace(lambda x: op.exp(x)), vector).explain()
    assert each.why() == "chosen for all extents that a call may have"
    assert re.fullmatch(r"library 15, the highest that accepts \(also: tvm 10\)", usual.why())


def test_what_notebooks_show_is_balanced_and_bounded() -> None:
    run = compiled()
    x, y = f32(2, 3), f32(3, 4)
    shown = [
        run,
        run.explain(),
        run.profile(x, y, repeat=1),
        run.debug(x, y),
        run.memory(),
        meta.explain(op.softmax, x),
        meta.analysis.flops(run.module),
        meta.model.zoo.resnet18(),
        meta.model.zoo.resnet18().summary(),
    ]
    for one in shown:
        html = one._repr_html_()
        found = Document(html)
        assert found.sections[""].strip() and len(html) < 60_000, type(one)

    class Many(meta.Model):
        def build(self) -> None:
            self.arrays = [meta.array([float(i)]) for i in range(5000)]

    html = Many()._repr_html_()
    assert "… and 4,988 more" in html and len(html) < 5000
    assert "reference 5" in Document(meta.explain(op.softmax, x)._repr_html_()).sections[""]
