"""``python -m meta op``: the card of every operator, and names that do not exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meta
from meta.base.registry import OPERATORS
from meta.base.source import definition_span
from meta.cli.card import MISSING, card, card_text, is_constant_folded
from meta.cli.main import main
from meta.op.core import Op, Tensor, op
from tests.together import together

ALL = sorted(OPERATORS)


@together(ALL)
def test_card_of_every_operator(name: str) -> None:
    record = card(OPERATORS[name])
    # What JSON cannot hold (infinity among it) must not be in the record.
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    shown = card_text(record)
    assert shown.startswith(f"{name}(")
    for slot in record["slots"]:
        assert slot["name"] in shown
    for site in (*(k["site"] for k in record["kernels"]), *record["converters"].values()):
        file, line = site.rsplit(":", 1)
        assert Path(file).is_file() and int(line) > 0


def test_card_of_softmax(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["op", "softmax", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["family"] == "activation"
    assert record["slots"][1]["name"] == "axis" and record["slots"][1]["default"] == -1
    assert record["type"]["site"] == str(definition_span(meta.softmax.type_function))
    assert record["gradient"]["keeps"] == ["y"]
    assert "relay nn.softmax" in record["converters"]
    assert record["cast_rule"]["rule"] == "never"
    by_dialect = {kernel["dialect"]: kernel for kernel in record["kernels"]}
    assert by_dialect["tvm"]["fusion"] == "comm_reduce"
    assert by_dialect["torch"]["fusion"] is None
    assert [k["here"]["cpu"] for k in record["kernels"]].count("chosen") == 1
    assert ["x", "RO"] in record["signatures"]["forward"]
    assert ["dx", "WO"] in record["signatures"]["backward"]


def test_preference_changes_the_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["op", "softmax", "--json", "--prefer", "torch"]) == 0
    first = json.loads(capsys.readouterr().out)["kernels"][0]
    assert (first["dialect"], first["here"]["cpu"]) == ("torch", "chosen")

    assert main(["op", "softmax", "--exclude", "tvm"]) == 0
    assert "passed over: excluded by exclude()" in capsys.readouterr().out


def test_value_known_from_types_needs_no_kernel() -> None:
    assert is_constant_folded(OPERATORS["shape"]) and not is_constant_folded(OPERATORS["add"])
    assert "none needed" in card_text(card(OPERATORS["shape"]))


@pytest.fixture
def bare() -> Op:
    """An operator of which nothing is registered."""

    @op
    def bare_operator(x: Tensor, limit: float = float("inf")) -> Tensor:
        """Return x."""
        return x

    yield bare_operator
    OPERATORS.remove("bare_operator")


def test_what_nobody_registered_is_missing(bare: Op) -> None:
    record = card(bare)
    assert record["gradient"] is None and record["kernels"] == []
    assert record["slots"][1]["default"] == "inf"
    assert record["family"] == "test_op_command"
    assert card_text(record).count(MISSING) == 3


def test_unknown_operator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["op", "sofmax"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "'softmax'" in streams.err and "Traceback" not in streams.err


def test_unknown_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["op", "softmax", "--only", "tvn"]) == 2
    assert "'tvm'" in capsys.readouterr().err


def test_traceback_when_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("META_DEBUG", "1")
    with pytest.raises(meta.errors.UnknownName):
        main(["op", "sofmax"])
