"""A small number of damaged Relay files; `python -m tools.fuzz_relay` runs as many as wanted."""

from __future__ import annotations

import json
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from meta.testing.workers import answer_all
from tools import fuzz_relay


@pytest.mark.parametrize("part", range(4))
def test_cases(part: int) -> None:
    files, baseline = fuzz_relay.corpus(fuzz_relay.CORPUS), fuzz_relay.peak()
    for index in range(part * 100, part * 100 + 100):
        name, data = fuzz_relay.case(files, 2026, index)
        why, _ = fuzz_relay.check(data, baseline)
        assert why is None, f"case {index} of seed 2026, from {name}: {why}"


def test_the_corpus_is_read() -> None:
    for name, data in fuzz_relay.corpus(fuzz_relay.CORPUS):
        assert fuzz_relay.check(data, fuzz_relay.peak()) == (None, True), name


def test_a_case_can_be_made_again() -> None:
    files = fuzz_relay.corpus(fuzz_relay.CORPUS)
    made = [fuzz_relay.case(files, 5, i) for i in range(50)]
    assert made == [fuzz_relay.case(files, 5, i) for i in range(50)]
    assert len({data for _, data in made}) > 45


def test_what_a_failure_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: bytes) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(fuzz_relay, "read_any", broken)
    assert fuzz_relay.check(b"", fuzz_relay.peak()) == ("KeyError: 'x'", False)
    monkeypatch.setattr(fuzz_relay, "read_any", len)
    assert fuzz_relay.check(b"", -1e9)[0] is not None  # the memory
    monkeypatch.setattr(fuzz_relay, "SECONDS", -1.0)
    assert fuzz_relay.check(b"", fuzz_relay.peak()) == ("0.0 s", True)


def test_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz_relay", "--cases", "20", "--seed", "3", "--json"])
    assert fuzz_relay.main() == 0
    report = json.loads(capsys.readouterr().out)
    assert report["cases"] == 20 and report["failures"] == []


def test_one_case(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saved = tmp_path / "case"
    monkeypatch.setattr(sys, "argv", ["fuzz_relay", "--case", "7", "--save", str(saved)])
    assert fuzz_relay.main() == 0
    files = fuzz_relay.corpus(fuzz_relay.CORPUS)
    assert saved.read_bytes() == fuzz_relay.case(files, 0, 7)[1]
    assert "bytes" in capsys.readouterr().out


def ends(connection: Connection, folder: Path, seed: int) -> None:
    """A worker that passes a case and ends within the next."""

    def answer(index: int) -> tuple[tuple[None, bool], bool]:
        if index == 1:
            os._exit(7)
        return (None, True), True

    answer_all(connection, answer)


@pytest.mark.long
def test_a_case_that_ends_its_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzz_relay, "_serve", ends)
    failures, was_read = fuzz_relay.run(fuzz_relay.CORPUS, 0, 3)
    file, _ = fuzz_relay.case(fuzz_relay.corpus(fuzz_relay.CORPUS), 0, 1)
    assert [(f.index, f.file) for f in failures] == [(1, file)] and was_read == 2
    assert "ended with status 7" in capsys.readouterr().err
