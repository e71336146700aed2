"""The pages of `Executable.show` in headless Chromium: they render, and load nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.model import trace
from meta.vm.executable import Executable
from tests.vm.browser import Browser, find

CHROMIUM = find()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM) as found:
        yield found


@pytest.fixture
def opened(browser: Browser) -> Iterator[Browser]:
    browser.requests.clear()
    browser.problems.clear()
    yield browser
    assert browser.problems == []
    assert all(url.startswith("file:") for url in browser.requests), browser.requests
    assert len(browser.requests) == 1, browser.requests  # the page itself


def compiled() -> tuple[Executable, meta.ndarray]:
    @trace
    def program(x: Any) -> Any:
        y = op.exp(x + 1.0)
        return op.softmax(y @ y.mT * 2.0, axis=-1), y

    x = meta.array(torch.linspace(-1.0, 1.0, 60).reshape(10, 6))
    return meta.vm.compile(program, x), x


def test_the_page_is_complete(opened: Browser, tmp_path: Path) -> None:
    run, x = compiled()
    opened.open(run.show(tmp_path / "page.html", profile=run.profile(x, repeat=2, warmup=0)))
    titles = opened.evaluate("[...document.querySelectorAll('h2')].map(e => e.textContent)")
    assert titles == ["Overview", "Graph", "Passes", "Kernels", "Memory", "Program"]
    assert opened.evaluate("document.compatMode") == "CSS1Compat"  # not quirks
    assert opened.evaluate("document.scripts.length") == 0
    # What is closed opens, and is seen then.
    height = "document.documentElement.scrollHeight"
    before = opened.evaluate(height)
    opened.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert opened.evaluate(height) > before + 200
    rows = opened.evaluate("document.querySelectorAll('#kernels tr b').length")
    assert rows >= len(run.explain())
    # The picture takes room, all within its frame.
    boxes = opened.evaluate(
        "[...document.querySelectorAll('#memory svg, #memory svg rect')].map(e => {"
        "const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]})"
    )
    (left, top, right, bottom), *inner = boxes
    assert right - left > 600 and bottom - top > 100 and len(inner) > 2
    assert all(
        left <= a and top <= b and c <= right + 1 and d <= bottom + 1 for a, b, c, d in inner
    )
    # Nothing sticks out to the right, now that all is open; nor on a small screen.
    for width in (1280, 500):
        opened.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.call("Emulation.clearDeviceMetricsOverride")


def test_links_lead_to_the_sections(opened: Browser, tmp_path: Path) -> None:
    opened.open(compiled()[0].show(tmp_path / "page.html"))
    missing = (
        "[...document.querySelectorAll('nav a')].filter("
        "e => !document.querySelector(e.getAttribute('href'))).length"
    )
    assert opened.evaluate(missing) == 0
    assert opened.evaluate("document.querySelectorAll('nav a').length") == 6


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_on_its_ground(scheme: str, opened: Browser, tmp_path: Path) -> None:
    """In both themes text and ground differ by a ratio of 4.5 (WCAG 2.2, 1.4.3)."""
    opened.call(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    opened.open(compiled()[0].show(tmp_path / "page.html"))
    colours = opened.evaluate(
        "['body', 'h2', '.tile', '.meta-ir a', ...['op', 'var', 'dtype', 'global', 'keyword',"
        "'number'].map(s => '.meta-ir .' + s)].map(s => {"
        "const e = document.querySelector(s); let g = e;"
        "while (getComputedStyle(g).backgroundColor === 'rgba(0, 0, 0, 0)') g = g.parentElement;"
        "return [getComputedStyle(e).color, getComputedStyle(g).backgroundColor]})"
    )
    for text, ground in colours:
        a, b = sorted(map(luminance, (text, ground)))
        assert (b + 0.05) / (a + 0.05) >= 4.5, (scheme, text, ground)
    assert (luminance(colours[0][1]) > 0.5) == (scheme == "light")


def luminance(colour: str) -> float:
    parts = [int(p) / 255 for p in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_names_of_a_program_are_text(opened: Browser, tmp_path: Path) -> None:
    evil = '<img src=x onerror="document.title=1">'

    def program(x: Any) -> Any:
        return op.exp(x)

    program.__qualname__ = program.__name__ = evil
    run = meta.vm.compile(trace(program), meta.array([1.0]))
    opened.open(run.show(tmp_path / "page.html"))
    assert opened.evaluate("document.querySelector('img')") is None
    assert evil in opened.evaluate("document.querySelector('h1').textContent")


def test_what_a_notebook_shows_renders(opened: Browser, tmp_path: Path) -> None:
    run, x = compiled()
    shown = (x, run, run.memory(), run.explain(), run.profile(x), run.debug(x), run.module)
    page = tmp_path / "notebook.html"
    body = "".join(f"<article>{one._repr_html_()}</article>" for one in shown)
    page.write_text(f"<!doctype html><meta charset=utf-8>{body}", "utf-8")
    opened.open(page)
    heights = opened.evaluate(
        "[...document.querySelectorAll('article')].map(e => e.getBoundingClientRect().height)"
    )
    assert len(heights) == len(shown) and min(heights) > 40
