"""``python -m meta ops``: a row for every operator, what is missing, and the page in the docs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import meta
from meta.base.registry import OPERATORS
from meta.cli.card import by_family, card
from meta.cli.main import main
from meta.cli.operators import COMMAND, page
from meta.op.core import Op, Tensor, op

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


@pytest.fixture
def bare() -> Iterator[Op]:
    """An operator of which nothing is registered."""

    @op
    def bare_operator(x: Tensor) -> Tensor:
        return x

    yield bare_operator
    OPERATORS.remove("bare_operator")


def rows(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[dict]:
    assert main(["ops", "--json", *arguments]) == status
    return json.loads(capsys.readouterr().out)


def test_every_operator_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    found = {row["name"]: row for row in rows(capsys)}
    assert sorted(found) == sorted(OPERATORS)
    assert found["softmax"]["gradient"]["keeps"] == ["y"]
    assert found["softmax"]["summary"].startswith("exp(x) /")


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--family", "activation"]) == 0
    shown = capsys.readouterr().out
    softmax = next(line for line in shown.splitlines() if line.startswith("  softmax "))
    assert "never" in softmax and "tvm 10 comm_reduce, torch 5" in softmax
    assert softmax.endswith("keeps y")
    assert "conv2d" not in shown


def test_filters(bare: Op, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["name"] for row in rows(capsys, "--family", "test_ops_command")] == [bare.name]
    implemented = [row["name"] for row in rows(capsys, "--dialect", "tvm")]
    assert "softmax" in implemented
    assert "shape" not in implemented and bare.name not in implemented


def test_what_is_missing_is_listed(bare: Op, capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--family", "test_ops_command")
    assert rows(capsys, "--missing", *here, status=1)[0]["missing"] == [
        "doc",
        "gradient",
        "cast_rule",
        "kernel",
    ]
    assert rows(capsys, *here, "--missing", "torch", status=1)[0]["missing"] == ["torch"]
    assert rows(capsys, *here, "--missing", "cast_rule", status=1)[0]["missing"] == ["cast_rule"]
    assert main(["ops", *here, "--missing"]) == 1
    assert capsys.readouterr().out == "bare_operator  lacks doc, gradient, cast_rule, kernel\n"


def test_nothing_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    for family, ops in by_family().items():
        if ops[0].site.file.startswith(str(Path(meta.__file__).parent)):
            assert main(["ops", "--family", family, "--missing"]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["--family", "normm"], "'norm'"),
        (["--dialect", "tvn"], "'tvm'"),
        (["--missing", "gradeint"], "'gradient'"),
    ],
)
def test_unknown_names(
    arguments: list[str], nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", *arguments]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and nearest in streams.err


def test_the_name_of_op_is_required() -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["op"])


def test_the_page_in_the_docs_is_current(bare: Op) -> None:
    written = page([card(op) for ops in by_family().values() for op in ops])
    assert bare.name not in written
    assert str(PAGE.parents[1]) not in written
    assert PAGE.read_text("utf-8") == written, f"docs/operators.md is out of date; run: {COMMAND}"
