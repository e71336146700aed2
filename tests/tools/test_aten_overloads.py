"""`tools.aten_overloads` compares converters with torch."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import meta
from meta.frontend.aten.registry import aten
from tools.aten_overloads import main


def test_an_overload_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--exact", "add", "--samples", "3", "--dtype", "float32", "--json"]) == 0
    record = next(r for r in json.loads(capsys.readouterr().out) if r["name"] == "add.Tensor")
    assert record["ran"] >= 3 and not record["failures"] and record["entries"] == ["add"]


def test_a_wrong_converter_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(aten["add.Tensor"], function=lambda x, y, *, alpha: meta.subtract(x, y))
    monkeypatch.setitem(aten._entries, "add.Tensor", wrong)
    assert main(["--exact", "add", "--samples", "3", "--dtype", "float32"]) == 1
    assert "FAILED add.Tensor" in capsys.readouterr().out


def test_bad_usage_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--exact", "no_such_entry"])
    assert "no such entry" in capsys.readouterr().err
