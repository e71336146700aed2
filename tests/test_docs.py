"""The pages under `docs`: the listing of folders is true, links lead somewhere, lines are short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta.dialect.core.catalog import DIALECTS
from meta.dialect.core.plevel import PLevel

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ARCHITECTURE = (DOCS / "architecture.md").read_text("utf-8")
# Written by `python -m meta ops --markdown` and `python -m meta selftest --markdown`.
GENERATED = {"operators.md", "dialects.md"}
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.name not in GENERATED)
ALL_PAGES = [*sorted(ROOT.glob("*.md")), *PAGES]
INDEX = (DOCS / "README.md").read_text("utf-8")
# What a reader makes by following a how-to page.
NEW_FILES = {"meta/passes/double_by_add.py", "tests/passes/test_double_by_add.py"}
LISTED = ("meta", "tests", "tools", "benchmarks", "docs", "examples")


def page_name(page: Path) -> str:
    """Return how a test of a page is called."""
    return page.relative_to(ROOT).as_posix()


def folders(folder: Path) -> Iterator[str]:
    """Yield the folders of sources from here on, as the listing writes them: ``meta/op/``.

    Of the tests, the folders that are named after one of `meta`, and what is in folders of tests,
    are left out.
    """
    inner = [p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__"))]
    if any(p.is_file() for p in folder.rglob("*") if "__pycache__" not in p.parts):
        yield f"{folder.relative_to(ROOT).as_posix()}/"
    if folder == ROOT / "tests":
        mirrored = {p.name for p in (ROOT / "meta").iterdir()}
        inner = [p for p in inner if p.name not in mirrored]
    elif folder.is_relative_to(ROOT / "tests"):
        return
    for path in inner:
        yield from folders(path)


def test_the_listing_names_exactly_the_folders_that_exist() -> None:
    listed = re.findall(r"^\| `(\S+/)` \|", ARCHITECTURE, re.MULTILINE)
    existing = {name for top in LISTED if (ROOT / top).exists() for name in folders(ROOT / top)}
    assert len(listed) == len(set(listed)), "a folder has two lines in docs/architecture.md"
    listed = [name for name in listed if (ROOT / name.split("/")[0]).exists()]
    assert existing - set(listed) == set(), "folders without a line in docs/architecture.md"
    assert set(listed) - existing == set(), "lines of docs/architecture.md without a folder"


def test_the_floors_of_the_listing_are_those_of_the_imports() -> None:
    from tests.test_floors import FLOOR

    rows = re.findall(r"^\| `meta/(\w+)/\S*` \| (\w+) \|", ARCHITECTURE, re.MULTILINE)
    assert rows
    for folder, floor in rows:
        assert floor == str(FLOOR.get(folder, "all")), folder


def test_the_page_on_architecture_is_short() -> None:
    prose = [line for line in ARCHITECTURE.splitlines() if not line.startswith("|")]
    assert len(prose) <= 120  # of rows there are as many as folders


def test_the_index_links_to_every_page() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\(([\w/]+\.md)\)", INDEX))


@pytest.mark.parametrize("page", ALL_PAGES, ids=page_name)
def test_linked_files_exist(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, f"{page_name(page)} links to nothing: {missing}"


@pytest.mark.parametrize("page", ALL_PAGES, ids=page_name)
def test_lines_are_not_wider_than_100_columns(page: Path) -> None:
    wide = [
        number
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
        if len(line) > 100 and not line.lstrip().startswith("|")  # rows of tables cannot be broken
    ]
    assert not wide, f"over 100 columns in {page_name(page)}: lines {wide}"


@pytest.mark.parametrize("page", ALL_PAGES, ids=page_name)
def test_named_files_exist(page: Path) -> None:
    """Files of the tree are named from its root, or from `meta/`."""
    named = re.findall(r"`([\w/]+/[\w/]*\w\.py)`", page.read_text("utf-8"))
    roots = (ROOT, ROOT / "meta")
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    assert set(missing) <= NEW_FILES, f"{page_name(page)} names {missing}"


LEVEL = re.compile(r"(FUSED_ONLY|REFERENCE|COMPILER|LIBRARY|HANDWRITTEN)\s+(\d+)")
OF_DIALECT = re.compile(r"^\| `(\w+)` \| [A-Z_]+ (\d+) \|", re.MULTILINE)
LISTED_LEVELS = re.compile(r"levels \(([^)]*)\)")


def test_levels_are_what_pages_say() -> None:
    stated = 0
    for page in ALL_PAGES:
        text = page.read_text("utf-8")
        dialects = OF_DIALECT.findall(text)
        for listed in LISTED_LEVELS.findall(text):
            dialects += re.findall(r"`(\w+)` (\d+)", listed)
        for name, number in LEVEL.findall(text):
            assert PLevel[name] == int(number), f"{page}: {name}"
        for name, number in dialects:
            assert DIALECTS[name].plevel == int(number), f"{page}: {name}"
        stated += len(dialects)
    assert stated >= 9, "levels of dialects are no longer found"
