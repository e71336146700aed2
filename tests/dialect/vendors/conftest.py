"""A vendor's folder in a temporary directory, and a dialect whose operators it implements."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meta.dialect import REFERENCE, Dialect, vendors
from tests.registered import remove_dialects

Write = Callable[..., Path]
DESCRIBED = """
    from meta.dialect.vendors import Vendor
    vendor = Vendor({name!r}, "cpu", dialect="chips", {more})
    """


@pytest.fixture
def chips() -> Iterator[Dialect]:
    """A dialect on the CPU without kernels."""
    made = Dialect("chips", devices=("cpu", "cuda"), plevel=REFERENCE)
    yield made
    remove_dialects(made)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the folder of a vendor of the CPU: files by name, with the text of each."""

    def written(name: str = "acme", more: str = "", **files: str) -> Path:
        folder = tmp_path / name
        texts = {"__init__.py": DESCRIBED.format(name=name, more=more), **files}
        for file, text in texts.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), "utf-8")
        return folder

    return written


@pytest.fixture(autouse=True)
def none_stay() -> Iterator[None]:
    """Vendors that a test adds are removed."""
    yield
    for verdict in vendors.verdicts():
        vendors.remove(verdict.known.name)
