"""docs/coming_from_torch.md: every row is run on both sides, and the names are those of the errors.

The last column of a row says how both sides compare: equal numbers, if it does not begin with
"another result", "an error" (of meta), "torch raises" or "other numbers" (of the same shape).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import MetaError
from tests.together import together
from tools import spellings
from tools.names_page import HEADING, PAGE, section

TEXT = PAGE.read_text("utf-8")
VALUES = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.5]]


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield the two sides and the last column of each row."""
    cell = r"\| `([^`]+)` \| `([^`]+)` \|(.*)\|$"
    for line in TEXT.partition(HEADING)[0].splitlines():
        if line.startswith("| `"):
            found = re.match(cell, line)
            assert found, f"a row that cannot be run: {line}"
            yield found[1], found[2], found[3].strip()


def worlds() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the names of either side."""
    a = np.array([1.0, 2.0, 4.0])
    shared = {"np": np, "a": a, "torch": torch, "meta": meta}
    layer, model = torch.nn.Linear(3, 2), meta.model.Linear(3, 2)
    model.load_state_dict(layer.state_dict())
    theirs = {"x": torch.tensor(VALUES), "i": torch.tensor([2, 0]), "n": torch.tensor([3, 1])}
    theirs |= {"nn": torch.nn, "F": torch.nn.functional, "model": layer}
    ours = {name: meta.array(theirs[name].numpy().copy()) for name in ("x", "i", "n")}
    theirs["y"], ours["y"] = theirs["x"] * 2, ours["x"] * 2
    return shared | theirs, shared | ours | {"model": model}


def value(code: str, names: dict[str, Any]) -> Any:
    """Return the value of the last expression, in what can be compared."""
    *before, last = code.split("; ")
    for statement in before:
        _run(ast.parse(statement), names)
    result = _run(ast.Expression(ast.parse(last, mode="eval").body), names)
    if isinstance(result, torch.Tensor | np.ndarray | meta.ndarray):
        return np.asarray(result.detach() if hasattr(result, "detach") else result)
    return result


def _run(tree: Any, names: dict[str, Any]) -> Any:
    code = compile(tree, str(PAGE), "eval" if isinstance(tree, ast.Expression) else "exec")
    if isinstance(tree, ast.Expression):
        return eval(code, names)
    return exec(code, names)


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal; of arrays, their shapes and numbers."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-5, atol=1e-6)
    return bool(a == b)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch.meshgrid without indexing, tensors
@pytest.mark.parametrize(("theirs", "here", "difference"), list(rows()))
def test_a_row(theirs: str, here: str, difference: str) -> None:
    their_names, names = worlds()
    if difference.startswith("an error"):
        value(theirs, their_names)
        with pytest.raises(MetaError):
            value(here, names)
        return
    if difference.startswith("torch raises"):
        value(here, names)
        with pytest.raises((RuntimeError, ZeroDivisionError)):
            value(theirs, their_names)
        return
    expected, found = value(theirs, their_names), value(here, names)
    if difference.startswith("other numbers"):
        if not isinstance(found, np.ndarray):
            assert found is None
            return
        assert found.shape == expected.shape
        assert found.dtype.kind == expected.dtype.kind
    else:
        assert same(expected, found) is not difference.startswith("another result")


def test_the_loop(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(code, {})
    best, last = map(float, re.findall(r"\d\.\d{3}", capsys.readouterr().out))
    assert best <= last < 1.2


def test_there_are_rows() -> None:
    assert len(list(rows())) > 80


def test_the_names_are_those_of_the_errors() -> None:
    written = HEADING + TEXT.partition(HEADING)[2]
    assert written == section(), "run `python -m tools.names_page`"


@together(spellings.rows())
def test_a_spelling(side: str, code: str) -> None:
    found, text = spellings.outcome(side, code)
    if found not in ("same", "clear"):
        different = found == "another result" and code in spellings.DIFFERENT
        assert different, f"{found}: {text}"
