"""The examples in docstrings print what they say. `meta` is imported before."""

from __future__ import annotations

import ast
import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

import meta

ROOT = Path(__file__).parents[1]
SESSION = re.compile(r"^ *>>> ", re.MULTILINE)
FILES = sorted(p for p in (ROOT / "meta").rglob("*.py") if SESSION.search(p.read_text("utf-8")))


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_examples_of_docstrings(file: Path) -> None:
    """Read from the source: an operator is no function whose docstring doctest would find."""
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    names = {**vars(import_module(name)), "meta": meta}
    runner = doctest.DocTestRunner()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            where = getattr(node, "name", name), str(file), getattr(node, "lineno", 0)
            runner.run(doctest.DocTestParser().get_doctest(text, dict(names), *where))
    assert runner.tries and not runner.failures
