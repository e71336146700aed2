"""`python -m meta generate`, beside the function."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from meta import language
from meta.cli.main import main
from tests.language.folders import of_bytes


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(of_bytes(tmp_path, "llama2"))


def test_the_text_and_times(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["generate", folder, "ab", "--max-new-tokens", "12", "--device", "cpu"]
    assert main(given) == 0
    wanted = language.generate(language.load(folder), "ab", max_new_tokens=12)
    out, err = capsys.readouterr()
    assert out == f"{wanted.text}\n"
    assert re.fullmatch(
        r"cpu: loaded in \S+ s, first token in \S+ s, then \S+ tokens/s, at most \S+ steps/s "
        r"by the memory's bandwidth \(\S+ GB each(, not measured here)?\)\n",
        err,
    )
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == wanted.tokens.tolist() and found["text"] == wanted.text
    assert found["reason"] == "length" and found["tokens_per_s"] > 0
    bound = language.decoding_bound(language.load(folder), 2 + 6)
    assert found["bytes_per_step"] == bound.bytes
    assert found["bound_steps_per_s"] == pytest.approx(1 / bound.seconds)


def test_draws_and_stops(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["generate", folder, "ab", "--max-new-tokens", "30", "--temperature", "1.5"]
    given += ["--top-k", "50", "--top-p", "0.9", "--seed", "3", "--json", "--device", "cpu"]
    main(given)
    whole = json.loads(capsys.readouterr().out)["text"]
    main([*given, "--stop", whole[5:7]])
    found = json.loads(capsys.readouterr().out)
    assert found["reason"] == "stop" and found["text"] == whole[: whole.index(whole[5:7])]


@pytest.mark.parametrize("draft", ["ngram", None])
def test_a_draft(folder: str, capsys: pytest.CaptureFixture[str], draft: str | None) -> None:
    given = ["generate", folder, "abab", "--max-new-tokens", "30", "--device", "cpu"]
    given += ["--repetition-penalty", "1.1", "--min-p", "0.01"]
    main([*given, "--json"])
    wanted = json.loads(capsys.readouterr().out)
    more = ["--draft", draft or folder, "--draft-tokens", "2"]
    main([*given, *more, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == wanted["tokens"]
    assert found["tokens_per_step"] == 3 if draft is None else found["tokens_per_step"] >= 1
    main([*given, *more])
    out, err = capsys.readouterr()
    assert out == wanted["text"] + "\n" and " a step, at most " in err


def test_beams(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["generate", folder, "ab", "--max-new-tokens", "9", "--beams", "3", "--device", "cpu"]
    main([*given, "--length-penalty", "0.5", "--json"])
    found = json.loads(capsys.readouterr().out)
    options: dict[str, Any] = {"beams": 3, "max_new_tokens": 9, "length_penalty": 0.5}
    wanted = language.generate(language.load(folder), "ab", **options)
    assert (found["text"], found["score"]) == (wanted.text, wanted.score)
    assert found["others"] == [[other.score, other.text] for other in wanted.others]
    main([*given, "--length-penalty", "0.5"])
    out, err = capsys.readouterr()
    assert out == f"{wanted.text}\n" and re.search(r", \d tokens in \S+ s\n$", err)


def test_a_folder_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(tmp_path), "a"]) == 2
    assert "this file of settings cannot be read" in capsys.readouterr().err
