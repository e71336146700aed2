"""The site of the documentation: `mkdocs build --strict` makes it, and a browser shows it without a
network: all names have their texts, pictures are there, and the search finds operators.

CI has built it already, and says where in SITE.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.vm.browser import Browser, find

pytest.importorskip("mkdocs", reason="pip install '.[docs]'")

ROOT = Path(__file__).parents[1]
QUERY = "document.querySelector('[data-md-component=search-query]')"
SEARCH = f"{QUERY}.focus(); {QUERY}.value = 'softmax'; {QUERY}.dispatchEvent(new Event('input'))"
FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(e => e.href)"
BROKEN = "[...document.images].filter(e => !e.naturalWidth).map(e => e.src)"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder; yields its address."""
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def built(folder: Path) -> Path:
    """Return where the site is."""
    if "SITE" in os.environ:
        return Path(os.environ["SITE"])
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


@pytest.mark.heavy
@pytest.mark.long
def test_the_site(tmp_path: Path) -> None:
    site = built(tmp_path / "site")
    check_reference(site / "reference")
    outside = re.compile(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="?https?://[^"> ]*')
    for page in site.rglob("*.html"):
        found = [f for f in outside.findall(page.read_text("utf-8")) if "canonical" not in f]
        assert not found, f"{page} loads {found}"
    chromium = find()
    if chromium is None:
        pytest.skip("no chromium on PATH")
    assert (site / "pictures" / "executable.png").stat().st_size > 20_000
    with served(site) as address, Browser(chromium) as browser:
        for page in ("", "architecture/", "howto/seen/", "training/", "reference/meta.model/"):
            browser.open(address + page)
            assert browser.evaluate(BROKEN) == []
        browser.evaluate(SEARCH)
        deadline = time.monotonic() + 60
        while not (links := browser.evaluate(FOUND)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert any("reference/operators/activation/" in link for link in links), links
        assert browser.problems == []
        assert all(url.startswith((address, "data:", "blob:")) for url in browser.requests)


def check_reference(folder: Path) -> None:
    """Every operator has a text, most with an example; every public name has a row, which leads to
    its text.
    """
    from meta.base.registry import FUNCTIONS, OPERATORS
    from tools.site.names import public_modules, public_names

    ids: set[str] = set()
    for page in folder.rglob("*.html"):
        ids.update(re.findall(r'id="?([\w.]+)', page.read_text("utf-8")))
    assert {f"meta.{name}" for kind in (OPERATORS, FUNCTIONS) for name in kind} <= ids
    families = "".join(p.read_text("utf-8") for p in (folder / "operators").rglob("*.html"))
    assert families.count("<p>Example:</p>") > 0.95 * len(OPERATORS)
    modules = public_modules()
    assert {"meta", "meta.model", "meta.interop.torch", "meta.testing"} <= modules.keys()
    for name, module in modules.items():
        text = (folder / name / "index.html").read_text("utf-8")
        rows = set(re.findall(r"<td>(?:<a[^>]*>)?<code>(\w+)</code>", text))
        assert rows >= set(public_names(module)), name


def test_docstrings_as_markdown() -> None:
    from tools.site.docstrings import TARGETS, markdown

    text = """Do it.

    Attributes
    ----------
    x: see `meta.nowhere`,
    ``y``. z, u: ends.
    v: begins.

    >>> 1 + 1
    2

    End::

        go()
    """
    TARGETS["meta.nowhere"] = "meta.elsewhere"
    assert markdown(text) == (
        "Do it.\n\n**Attributes**\n\n- `x`: see [`meta.nowhere`][meta.elsewhere],\n"
        "``y``. z, u: ends.\n- `v`: begins.\n\n"
        "```pycon\n>>> 1 + 1\n2\n```\n\nEnd:\n\n    go()"
    )
    del TARGETS["meta.nowhere"]
