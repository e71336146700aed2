"""The Array API's test suite: the command, on a small suite in its form, and what it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import array_api_tests
from tools.array_api_tests import FAILED, PASSED, SKIPPED, Outcome, main, reasons, report

OPTIONS = """
def pytest_addoption(parser):
    parser.addoption("--max-examples")
    parser.addoption("--disable-deadline", action="store_true")
    parser.addoption("--hypothesis-derandomize", action="store_true")
"""
TESTS = """
import os, pytest

@pytest.mark.parametrize("name", ["sin", "cos"])
def test_names(name):
    assert os.environ["ARRAY_API_TESTS_MODULE"] == "meta.array_api"
    assert name == "sin", "no cosine"

class TestMore:
    def test_one(self):
        raise ValueError("no one")

@pytest.mark.skip
def test_two():
    pass
"""
TABLE = """
| reason | tests |
| --- | --- |
| There is none. | `test_a.py::test_names[cos`, `test_b.py` |
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "array-api" / "spec").mkdir(parents=True)
    (tmp_path / "array_api_tests").mkdir()
    (tmp_path / "array_api_tests" / "__init__.py").write_text("")
    (tmp_path / "array_api_tests" / "test_a.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(OPTIONS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    page = tmp_path / "page.md"
    page.write_text(TABLE)
    monkeypatch.setattr(array_api_tests, "PAGE", page)
    return tmp_path


def test_outcomes_and_exit_status(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(suite), "--json"]) == 1
    found = [Outcome(**r) for r in json.loads(capsys.readouterr().out)]
    assert [(r.name, r.result, r.reason) for r in found] == [
        ("test_a.py::test_names[sin]", PASSED, ""),
        ("test_a.py::test_names[cos]", FAILED, "There is none."),
        ("test_a.py::TestMore::test_one", FAILED, ""),
        ("test_a.py::test_two", SKIPPED, ""),
    ]
    assert "no cosine" in found[1].error and "no one" in found[2].error
    text = report(found, names=True)
    assert text.startswith("1 of 4 tests pass, 1 are skipped, 2 fail, 1 of these without a reason")
    assert "    1  There is none.\n         test_a.py::test_names[cos]" in text
    assert "    1  NO REASON, test_a.py: ValueError: no one" in text
    assert main([str(suite), "--filter", "test_names"]) == 0


def test_what_is_no_suite(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(suite / "array_api_tests")]) == 2
    (suite / "conftest.py").write_text("")
    assert main([str(suite)]) == 2
    assert "the suite did not run" in capsys.readouterr().err


def test_the_page_has_reasons() -> None:
    found = reasons(array_api_tests.PAGE.read_text("utf-8"))
    assert found and all(name.startswith("test_") for name in found)
