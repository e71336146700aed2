"""`python -m meta generate`, beside the function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meta import language
from meta.cli.main import main
from tests.language.folders import written
from tests.language.tokenizers_of_bytes import byte_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> str:
    written(tmp_path, "llama2", vocab_size=256)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path)


def test_the_text_and_times(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["generate", folder, "ab", "--max-new-tokens", "12", "--device", "cpu"]
    assert main(given) == 0
    wanted = language.generate(language.load(folder), "ab", max_new_tokens=12)
    out, err = capsys.readouterr()
    assert out == f"{wanted.text}\n"
    assert err.startswith("cpu: loaded in ") and err.endswith(" tokens/s\n")
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == wanted.tokens.tolist() and found["text"] == wanted.text
    assert found["reason"] == "length" and found["tokens_per_s"] > 0


def test_draws_and_stops(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["generate", folder, "ab", "--max-new-tokens", "30", "--temperature", "1.5"]
    given += ["--top-k", "50", "--top-p", "0.9", "--seed", "3", "--json", "--device", "cpu"]
    main(given)
    whole = json.loads(capsys.readouterr().out)["text"]
    main([*given, "--stop", whole[5:7]])
    found = json.loads(capsys.readouterr().out)
    assert found["reason"] == "stop" and found["text"] == whole[: whole.index(whole[5:7])]


def test_a_folder_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(tmp_path), "a"]) == 2
    assert "this file of settings cannot be read" in capsys.readouterr().err
