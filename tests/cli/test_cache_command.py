"""`python -m meta cache`: shows what is on disk, and removes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meta.base import caches, config, disk_cache
from meta.cli.main import main


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path):
    with config.override(META_CACHE_DIR=str(tmp_path), META_CACHE=True, META_CACHE_SIZE=7):
        disk_cache.store("cubin", "a", bytes(3 << 20))
        disk_cache.store("cudnn", "b", bytes(2 << 20))
        yield


def record(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["cache", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_shows_what_there_is(capsys, tmp_path):
    found = record(capsys)
    assert (found["bound_mib"], found["mib"], found["kept"]) == (7, 5.0, True)
    by_name = {cache["name"]: cache for cache in found["caches"]}
    assert set(by_name) == set(caches.CACHES)
    assert (by_name["cubin"]["entries"], by_name["cubin"]["mib"]) == (1, 3.0)
    assert by_name["cubin"]["folder"] == str(tmp_path / "cubin")
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert "at most 7 MiB" in shown and str(tmp_path / "cudnn") in shown
    with config.override(META_CACHE_SIZE=0, META_CACHE=False):
        assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert "without a bound" in shown and "switched off" in shown


def test_clears_what_is_named_or_all(capsys):
    assert record(capsys, "--clear", "cubin")["mib"] == 2.0
    assert record(capsys, "--clear")["mib"] == 0.0


def test_a_name_that_is_none(capsys):
    assert main(["cache", "--clear", "cubim"]) == 2
    assert "cubin" in capsys.readouterr().err
