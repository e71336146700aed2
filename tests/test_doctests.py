"""The examples in docstrings print what they say, and every public name has one. `meta` is imported
before.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import meta
from tools.site.names import is_made, public_objects

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"^ *>>> ", re.MULTILINE)
FILES = sorted(p for p in (ROOT / "meta").rglob("*.py") if EXAMPLE.search(p.read_text("utf-8")))
PUBLIC = public_objects()
MADE = [name for name, thing in PUBLIC.items() if is_made(thing)]
PLACES = {(inspect.unwrap(t).__module__, t.__qualname__) for t in PUBLIC.values()}


def run_examples(text: str, names: dict[str, object], where: tuple[str, str, int]) -> int:
    """Run the examples of a docstring; return how many there are."""
    runner = doctest.DocTestRunner()
    runner.run(doctest.DocTestParser().get_doctest(text, {**names, "meta": meta}, *where))
    assert not runner.failures
    return runner.tries


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_examples_of_docstrings(file: Path) -> None:
    """Read from the source: an operator is no function whose docstring doctest would find. Those of
    public names run as a reader copies them, others with the names of their file.
    """
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    names, count = vars(import_module(name)), 0
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            own = getattr(node, "name", name)
            where = own, str(file), getattr(node, "lineno", 0)
            known = {} if (name, own) in PLACES else names
            count += run_examples(ast.get_docstring(node) or "", known, where)
    assert count or any(PUBLIC[made].__module__ == name for made in MADE)


@pytest.mark.parametrize("name", MADE)
def test_examples_of_functions_that_others_make(name: str) -> None:
    """Their docstrings are in no source."""
    assert run_examples(inspect.cleandoc(PUBLIC[name].__doc__), {}, (name, name, 0))


def test_every_public_name_has_an_example() -> None:
    """Of all that the reference shows, one that prints something. Operators have theirs from their
    test records.
    """
    parser = doctest.DocTestParser()
    without = [
        name
        for name, thing in PUBLIC.items()
        if not any(example.want for example in parser.get_examples(thing.__doc__ or ""))
    ]
    assert not without, "no example that prints in the docstring of " + ", ".join(sorted(without))
