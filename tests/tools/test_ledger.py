"""`tools.ledger` counts what the tree costs its readers, and the tree is within its budgets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import ledger

NAMES = "relu tanh exp log sin cos abs sqrt"
SOURCES = {
    "meta.a": "from contextvars import ContextVar\n_x: ContextVar[int] = ContextVar('x')\n",
    "meta.b": f"if TYPE_CHECKING:\n    import meta.c\nNAMES = {NAMES!r}.split()\n",
    "meta.c": f"import meta.b\nTABLE = {dict.fromkeys(NAMES.split(), 1)}\nFEW = ['relu', 'tanh']\n",
    "meta.e": f"SOME = {{{', '.join(f'op.{name}' for name in NAMES.split())}}}\n",
    "meta.op.f": f"TABLE = {NAMES.split()}\n",
    "meta.d": f"import meta.c\nOTHERS = {[*NAMES.split(), 'one', 'two', 'three']}\n",
}


def test_what_is_counted() -> None:
    assert ledger.context_variables(SOURCES) == ["meta.a._x"]
    assert ledger.widest_circle(SOURCES) == ["meta.b", "meta.c"]
    assert ledger.operator_lists(SOURCES, set(NAMES.split())) == [
        "meta.b:3",
        "meta.c:2",
        "meta.e:1",
    ]


def test_vague_names() -> None:
    files = {
        "meta.ahead": "MADE = 1\n_each: int = 2\nonce = made\n",
        "meta.x": "class KeptFile: ...\ndef one_hot(): ...\ndef put(): ...\ndef taken(): ...\n",
    }
    assert ledger.vague_names(files, {"taken"}) == [
        *("meta.ahead", "meta.ahead.MADE", "meta.ahead._each", "meta.x.KeptFile", "meta.x.put"),
    ]


def test_sizes(tmp_path: Path) -> None:
    for name, lines in {
        "meta/x.py": 1,
        "meta/op/y.cu": 2,
        "tests/z.py": 3,
        "tests/z.txt": 9,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#\n" * lines)
    assert ledger.sizes(tmp_path) == {
        "meta": {"lines": 3, "files": 2},
        "meta/op": {"lines": 2, "files": 1},
        "tests": {"lines": 3, "files": 1},
    }


def test_budgets() -> None:
    rows = {"meta": {"lines": 5, "files": 2}}
    assert ledger.over(rows, {"meta": {"lines": 5, "files": 1}}) == ["meta: 2 files, at most 1"]
    assert ledger.over(rows, {"gone": {"lines": 1}}) == ["gone: the ledger has no such row"]
    assert "5 of 6" in ledger.table(rows, {"meta": {"lines": 6}})


@pytest.mark.long
def test_the_tree_is_within_its_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    code = ledger.main(["--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0 and found["over"] == []
    assert found["rows"]["meta"]["lines"] > 100_000
