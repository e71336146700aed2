"""The caches on disk together: what they take, what goes first, and what is left alone."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from meta.base import caches, config, disk_cache
from meta.base.errors import UnknownName

KIB = 1 << 10
TIMES = {"a": 4.0, "b": 1.0, "c": 3.0, "d": 2.0}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "_bytes_since_check", None)
    with config.override(META_CACHE_DIR=str(tmp_path), META_CACHE=True):
        yield tmp_path


def entry(folder: Path, path: str, size: int = KIB, used: float = 1.0) -> Path:
    file = folder / path
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_bytes(bytes(size))
    os.utime(file, (used, used))
    return file


def name(letter: str, ending: str = "") -> str:
    return letter * 64 + ending


def program(folder: Path, letter: str, kernel: Path, used: float) -> Path:
    made = folder / "programs" / (letter * 2) / name(letter)
    (made / "kernels").mkdir(mode=0o700, parents=True)
    os.link(kernel, made / "kernels" / kernel.name)
    (made / "manifest.json").write_bytes(bytes(KIB))
    os.utime(made, (used, used))
    return made


def test_what_was_used_last_stays(folder):
    files = {c: entry(folder, f"cubin/{name(c)}", used=t) for c, t in TIMES.items()}
    files["e"] = entry(folder, f"cudnn/{name('e')}", used=2.5)
    caches.trim(3 * KIB)
    assert {c for c, file in files.items() if file.exists()} == {"a", "c", "e"}
    caches.trim(3 * KIB)
    assert caches.total_bytes() == 3 * KIB


def test_a_file_of_two_entries_is_freed_with_the_second(folder):
    kernel = entry(folder, f"kernels/{name('a', '.so')}", 10 * KIB, used=1)
    one = program(folder, "b", kernel, used=2)
    two = entry(folder, f"cubin/{name('c')}", used=3)
    assert caches.total_bytes() == 12 * KIB
    sizes = {u.cache.name: (u.entries, u.size) for u in caches.usage()}
    assert sizes["programs"] == (1, 11 * KIB) and sizes["kernels"] == (1, 10 * KIB)
    caches.trim(11 * KIB)
    # Nothing was gained by the kernel's first name.
    assert not kernel.exists() and not one.exists() and two.exists()


def test_only_what_is_ours_is_removed(folder):
    theirs = [
        entry(folder, path)
        for path in (
            *("programs/game/save.dat", f"programs/{name('a')}", "kernels/notes.json"),
            *(f"cubin/{'A' * 64}", "cudnn/thesis", "cubin/aa/" + name("a"), name("b")),
        )
    ]
    outside = entry(folder, "elsewhere")
    (folder / "cubin" / name("c")).symlink_to(outside)
    ours = entry(folder, f"kernels/{name('a')}")
    left = entry(folder, f"kernels/{caches.TEMPORARY_PREFIX}1/kernels.so")  # its writer was killed
    part = entry(folder, f"programs/aa/.{name('a')}.xyz.part/code.json")
    caches.clear()
    assert all(file.exists() for file in (*theirs, outside))
    assert not ours.exists() and not left.exists() and not part.exists()
    assert not (folder / "cubin" / name("c")).is_symlink()


def test_what_is_being_written_is_not_trimmed(folder):
    new = entry(folder, f"cubin/{caches.TEMPORARY_PREFIX}1", 2 * KIB, used=time.time())
    old = entry(
        folder,
        f"cubin/{caches.TEMPORARY_PREFIX}2",
        2 * KIB,
        used=time.time() - 2 * caches.STALE_SECONDS,
    )
    part = entry(folder, f"programs/aa/.{name('a')}.xyz.part", 2 * KIB, used=time.time())
    caches.trim(0)
    assert new.exists() and part.exists() and not old.exists()
    caches.clear()
    assert not new.exists() and not part.exists()


def test_nothing_is_read_where_others_may_write(folder):
    file = entry(folder, f"cubin/{name('a')}")
    file.parent.chmod(0o777)
    caches.clear()
    assert file.exists() and caches.total_bytes() == 0


def test_clear_takes_names(folder):
    cubin, plan = (entry(folder, f"{c}/{name('a')}") for c in ("cubin", "cudnn"))
    with pytest.raises(UnknownName, match="cubim"):
        caches.clear(["cudnn", "cubim"])
    assert plan.exists()
    caches.clear(["cudnn"])
    assert cubin.exists() and not plan.exists()


@pytest.mark.parametrize("mebibytes, left", [(0, 5), (-1, 5), (1, 2)])
def test_who_writes_keeps_the_bound(mebibytes, left, folder):
    with config.override(META_CACHE_SIZE=mebibytes):
        for i in range(5):  # each is more than a share of the bound
            disk_cache.store("cubin", str(i), bytes(400 * KIB))
            for used, file in enumerate(sorted(folder.glob("*/*"), key=os.path.getmtime)):
                os.utime(file, (used, used))
        assert disk_cache.get("cubin", "4") is not None
    assert caches.usage()[2].entries == left


def test_finding_is_using(folder):
    for i in range(3):
        disk_cache.store("cubin", str(i), b"1234")
    for file in (folder / "cubin").iterdir():
        os.utime(file, (1, 1))
    assert disk_cache.get("cubin", "1") == b"1234"
    size = caches.total_bytes() // 3
    caches.trim(size)
    assert disk_cache.get("cubin", "1") == b"1234" and caches.total_bytes() == size


def test_small_entries_are_not_counted_each_time(monkeypatch, folder):
    trims = []
    monkeypatch.setattr(caches, "trim", trims.append)
    with config.override(META_CACHE_SIZE=1):
        for _ in range(20):
            caches.count_written(10 * KIB)
    # The first entry of the process, then when it has written a share.
    assert trims == [1 << 20] * 3


@pytest.mark.heavy
def test_several_writers_at_once(folder):
    errors = []

    def work(thread: int) -> None:
        try:
            for i in range(40):
                disk_cache.store("cubin", f"{thread} {i}", bytes(20 * KIB))
                disk_cache.get("cubin", f"{(thread + 1) % 4} {i}")
                caches.trim(100 * KIB)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    caches.trim(100 * KIB)
    assert not errors and caches.total_bytes() <= 100 * KIB
