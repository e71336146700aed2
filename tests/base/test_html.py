"""The writer of HTML: what is not HTML is escaped, tables are bounded, numbers are for people."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from meta.base.html import (
    Html,
    bytes_text,
    details,
    fragment,
    join,
    table,
    tag,
    time_text,
)

EVIL = '<script>alert("&")</script>'


class Reader(HTMLParser):
    """Collects tags and text; elements must be balanced."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("br", "meta"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data


def test_content_and_attributes_are_escaped() -> None:
    made = tag("p", EVIL, tag("b", EVIL), title=EVIL, class_="a", data_x=1, hidden=True, id=None)
    assert made.startswith('<p title="&lt;script&gt;alert(&quot;&amp;&quot;)&lt;/script&gt;"')
    assert ' class="a" data-x="1" hidden>' in made and " id" not in made
    found = Reader(made)
    assert found.tags == ["p", "b"] and found.text == EVIL * 2
    assert tag("br") == "<br>"


def test_html_is_not_escaped_twice() -> None:
    inner = join(("<", Html("<i>x</i>"), 3), between=" & ")
    assert inner == "&lt; &amp; <i>x</i> &amp; 3"
    assert tag("p", inner) == f"<p>{inner}</p>"


def test_a_table_says_what_it_leaves_out() -> None:
    rows = [(i, EVIL) for i in range(100)]
    made = table(("n", "text"), rows, numbers=(0,), code=(1,), most=7)
    found = Reader(made)
    assert found.tags.count("tr") == 1 + 7 + 1 and found.text.endswith("… and 93 more")
    assert made.count('<td class="number">') == 7 and made.count('<td class="code">') == 7
    assert Reader(table((), rows, most=None)).tags.count("tr") == 100
    assert table(("n",), []) == ""


def test_a_fragment_has_its_style_and_refers_to_nothing() -> None:
    made = fragment("text", details("more", tag("p", EVIL), open_=True))
    found = Reader(made)
    assert found.tags == ["style", "div", "details", "summary", "p"]
    assert found.text == f"textmore{EVIL}"
    assert "url(" not in made and "src=" not in made and "@import" not in made


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (12 << 20, "12 MiB"), (3 << 30, "3 GiB"),
     (1 << 50, "1,024.0 TiB")],
)  # fmt: skip
def test_bytes(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 µs"), (1.25e-5, "12.5 µs"), (0.0031, "3.1 ms"), (2.0, "2 s")],
)
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
