"""What is kept on disk is found again; damaged or foreign files are as good as none."""

from __future__ import annotations

from pathlib import Path

import pytest

from meta.base import config, disk_cache


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    return tmp_path / "things"


def test_what_is_kept_is_found(folder: Path) -> None:
    assert disk_cache.get("things", "a") is None
    disk_cache.store("things", "a", b"one")
    disk_cache.store("things", "a", b"two")
    assert disk_cache.get("things", "a") == b"two" and disk_cache.get("things", "b") is None
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: b"\0" + c[1:], lambda c: b""])
def test_a_damaged_file_is_none(folder: Path, damage) -> None:
    disk_cache.store("things", "a", b"content")
    (file,) = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert disk_cache.get("things", "a") is None


def test_a_file_that_others_may_write_is_none(folder: Path) -> None:
    disk_cache.store("things", "a", b"content")
    (file,) = folder.iterdir()
    file.chmod(0o622)
    assert disk_cache.get("things", "a") is None


def test_nothing_is_kept_without_a_cache(folder: Path) -> None:
    with config.override(META_CACHE=False):
        disk_cache.store("things", "a", b"content")
        assert not folder.exists()
    disk_cache.store("things", "a", b"content")
    with config.override(META_CACHE=False):
        assert disk_cache.get("things", "a") is None
