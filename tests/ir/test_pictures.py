"""Programs in notebooks and as graphs: what is shown, and that nothing of a program escapes."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from meta.base.source import Span
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Function,
    If,
    Module,
    Node,
    TensorType,
    Var,
    bindings,
    parse,
    text,
    to_dot,
    to_html,
)
from meta.ir.pictures import MAX_LINES
from tests.ir.programs import ADD, SUM, modules

EXAMPLE = """\
func @main(%x: float32[2], %p: bool[]) -> float32[2] {
  %b: float32[2] = test_add(%x, const float32[] 1.0)  # /home/me/my net.py:12
  %f = fn(%a: float32[2]) -> float32[2] {
    %c: float32[2] = test_sum(%a, axis=0)  # <stdin>:3
    return %c
  }
  %d: float32[2] = if %p {
    %e: float32[2] = %f(%b)
    yield %e
  } else {
    %g: float32[2] = @helper(%b)
    yield %g
  }
  return %d
}

func @helper(%x: float32[2]) -> float32[2] {
  return %x
}"""


class Plain(HTMLParser):
    """Collects the text of a page, and checks that its elements are balanced."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.open, self.titles = "", [""], []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("style", "div", "span", "a")
        self.open.append(tag)
        self.titles += [v for k, v in attrs if k == "title"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] != "style":
            self.text += data


def shown(node: Node) -> Plain:
    page = Plain()
    page.feed(to_html(node))
    page.close()
    assert page.open == [""]
    return page


def test_a_notebook_shows_the_text_with_types_and_links() -> None:
    module = parse(EXAMPLE)
    html = module._repr_html_()
    assert html == to_html(module)
    page = shown(module)
    assert page.text == EXAMPLE.replace("/home/me/my net.py", "my net.py")
    assert page.titles.count("float32[2]") == 17
    assert '<a href="file:///home/me/my%20net.py#L12" title="/home/me/my net.py:12">' in html
    assert '<span class="comment" title="&lt;stdin&gt;:3"># &lt;stdin&gt;:3</span>' in html
    assert '<span class="keyword">yield</span>' in html
    assert '<span class="op">test_add</span>(' in html
    assert '<span class="dtype">bool</span>' in html


def test_parts_are_shown_too() -> None:
    main = parse(EXAMPLE).main
    for part in (main, main.body, main.body.bindings[0], main.params[0], ADD):
        assert shown(part).text == re.sub("/home/me/", "", text(part))


@pytest.mark.parametrize(
    "name", ["<script>", '" onclick="x()', "a&amp;b", "</div>", "javascript:x"]
)
def test_nothing_of_a_program_is_html(name: str) -> None:
    x = Var(name, TensorType((2,), "float32"))
    binding = Binding(Var(name), Call(SUM, (x, name, False)), Span(name, 3))
    function = Function((x,), Block((binding,), x), None, {name: name})
    page = shown(Module({name: function}))
    assert page.text == text(Module({name: function}))


def test_a_broken_program_is_shown() -> None:
    x = Var("x")
    broken = Call(ADD, (Call(ADD, (x, object)), If(x, Block((), x), Block((), x))))
    assert shown(broken).text == "test_add(test_add(%x, y=<<class 'object'>>), <If>)"


def test_what_is_long_is_cut() -> None:
    x = Var("x", TensorType((2,), "float32"))
    constant = Constant(torch.arange(1000.0))
    body = [Binding(Var("y"), Call(ADD, (x, constant))) for _ in range(MAX_LINES + 50)]
    html = to_html(Function((x,), Block(tuple(body), x)))
    assert html.endswith('<span class="comment"># 55 more lines</span></div>')
    assert len(to_html(Function((x,), Block(tuple(body[:1]), x)))) < 3000


@pytest.mark.heavy
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(modules())
def test_every_program_is_shown(module: Module) -> None:
    page = shown(module)
    assert len(page.text.split("\n")) == len(text(module).split("\n"))


# Graphviz


GRAPH = r"""
digraph {
  node [shape=box, fontname=monospace, fontsize=10]
  edge [fontname=monospace, fontsize=8]
  subgraph cluster_1 {
    label="@main"
    n2 [label="%x", shape=ellipse]
    n3 [label="%p", shape=ellipse]
    n4 [label="%b = test_add"]
    n5 [label="float32[] 1.0", shape=plaintext]
    subgraph cluster_6 {
      label="%f: fn"
      n7 [label="%a", shape=ellipse]
      n8 [label="%c = test_sum(axis=0)"]
      n9 [label="return", shape=ellipse]
    }
    n10 [label="%f = fn", shape=component]
    subgraph cluster_11 {
      label="%d: then"
      n12 [label="%e = call"]
    }
    subgraph cluster_13 {
      label="%d: else"
      n14 [label="%g = @helper"]
    }
    n15 [label="%d = if", shape=diamond]
    n16 [label="return", shape=ellipse]
  }
  subgraph cluster_17 {
    label="@helper"
    n18 [label="%x", shape=ellipse]
    n19 [label="return", shape=ellipse]
  }
  n2 -> n4 [label="float32[2]"]
  n5 -> n4 [label="float32[]"]
  n7 -> n8 [label="float32[2]"]
  n8 -> n9 [label="float32[2]"]
  n10 -> n12
  n4 -> n12 [label="float32[2]"]
  n4 -> n14 [label="float32[2]"]
  n12 -> n15 [label="then float32[2]"]
  n14 -> n15 [label="else float32[2]"]
  n3 -> n15 [label="bool[]"]
  n15 -> n16 [label="float32[2]"]
  n18 -> n19 [label="float32[2]"]
}
"""


def test_a_graph() -> None:
    assert to_dot(parse(EXAMPLE)) == GRAPH.strip()


def dot_words(dot: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the nodes and edges of a graph; fail on a line that is neither, nor a cluster."""
    string = r'"(?:[^"\\]|\\["\\])*"'
    nodes, edges, depth = [], [], 0
    for line in dot.split("\n"):
        line = line.strip()
        if found := re.fullmatch(rf"(n\d+) \[label={string}(, shape=\w+)?\]", line):
            nodes.append(found[1])
        elif found := re.fullmatch(rf"(n\d+) -> (n\d+)( \[label={string}\])?", line):
            edges.append((found[1], found[2]))
        elif line == "}":
            depth -= 1
        elif line == "digraph {" or re.fullmatch(r"subgraph cluster_\d+ \{", line):
            depth += 1
        else:
            assert re.fullmatch(rf"label={string}|(node|edge) \[[\w=, ]+\]", line), line
    assert depth == 0
    return nodes, edges


@pytest.mark.heavy
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(modules())
def test_every_program_is_a_graph(module: Module) -> None:
    nodes, edges = dot_words(to_dot(module))
    assert len(nodes) == len(set(nodes))
    assert {n for edge in edges for n in edge} <= set(nodes)
    functions = list(module.functions.values())
    assert len(nodes) >= sum(len(list(bindings(f))) + len(f.params) + 1 for f in functions)
