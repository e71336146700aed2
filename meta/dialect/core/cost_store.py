"""What was measured of kernels, kept on disk between processes.

There is one file for a race, in a folder for each *environment* (`environment`), written when it is
complete, with the manners of `meta.base.caches`. What is truncated, damaged, of another key, or
made by another version of a dialect's source counts as not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from meta.base import caches, config
from meta.base.caches import cache_folder, distrust, open_private
from meta.base.device import Device
from meta.base.errors import MetaError
from meta.base.remember import remember
from meta.dialect.core.catalog import DIALECTS
from meta.dialect.core.costs import Cost, Key, Race, cost_of_record, digest
from meta.dialect.core.preference import forget
from meta.runtime import chip

CACHE = "costs"
FORMAT = 1
"""Changes when files or what they mean change; others are not read."""
LARGEST = 1 << 20
"""Bytes of a file beyond which it is none of ours."""
REMEMBERED = 8192
"""Races that a process remembers, those that it found and those that it did not."""
_found: dict[Any, Race | None] = {}
"""What was looked for, by this process, by where and for which environment."""


def find(key: Key) -> Race | None:
    """Return the race of a key, None if there is none in good order."""
    if not _is_present(key.device) or not (_found or cache_folder(CACHE).is_dir()):
        return None  # as nearly always, found out in a few microseconds
    here = _here(key)
    if here in _found:
        return _found[here]
    return remember(_found, here, _read(key), REMEMBERED)


def _is_present(device: Device) -> bool:
    """Whether a device is there: a program may be compiled for one that is not."""
    return device.kind != "cuda" or device.ordinal < torch.cuda.device_count()


def _here(key: Key) -> Any:
    return key, caches.caches_place(), environment(key.device)


def _read(key: Key) -> Race | None:
    folder = _folder(key.device)
    if folder is None:
        return None
    place = folder / key.file
    try:
        information = place.stat()
        if distrust(information) or information.st_size > LARGEST:
            return None
        content = place.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    race = read_race(content, key, place)
    if race is not None:
        caches.used(place)
    return race


def read_race(content: str, key: Key | None, place: Path | None) -> Race | None:
    """Return a race as `race_text` wrote it; None unless it is complete, of that key (None: of
    any), and of dialects as they are now.
    """
    try:
        record = json.loads(content)
        stamp = record.pop("digest")
        if stamp != digest(json.dumps(record, sort_keys=True)) or record["format"] != FORMAT:
            return None
        stated = record["key"]
        if key is None:
            device = Device(record["device"])
            names = ("operator", "call", "how", "tf32")
            key = Key(**{**{n: stated[n] for n in names}, "device": device})
        if stated != key.record():
            return None
        costs = tuple(map(cost_of_record, record["costs"]))
        when, bucket = float(record["when"]), bool(record["bucket"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MetaError):
        return None
    if any(c.source != source_of(c.dialect) for c in costs):
        return None
    return Race(key, costs, when, place, bucket)


def race_text(race: Race) -> str:
    """Return a race as the content of a file."""
    record = {
        "format": FORMAT,
        "key": race.key.record(),
        "device": str(race.key.device),
        "when": race.when,
        "bucket": race.bucket,
        "costs": [c.record() for c in race.costs],
    }
    plain = json.dumps(record, sort_keys=True)
    return json.dumps({**json.loads(plain), "digest": digest(plain)}, indent=1, sort_keys=True)


def keep(key: Key, costs: Sequence[Cost], *, bucket: Key | None = None, anew: bool = False) -> Race:
    """Keep the result of a race, and return what is kept: where another process was faster, what
    it measured, so that all of them choose alike; ``anew`` replaces it.

    bucket: the key of all calls with about these extents, for which it counts, too, if nothing else
    does yet. A disk that is full or read-only keeps nothing, and there is one warning.
    """
    stamped = tuple(replace(c, source=source_of(c.dialect)) for c in costs)
    kept = _kept(Race(key, stamped, time.time()), anew)
    if bucket is not None:
        _kept(Race(bucket, stamped, kept.when, bucket=True), False)
    return kept


def _kept(race: Race, anew: bool) -> Race:
    if not anew:
        before = _read(race.key)
        if before is not None:
            _found[_here(race.key)] = before
            return before
    folder = _folder(race.key.device, make=True)
    if folder is not None:
        race = replace(race, place=folder / race.key.file)
        content = race_text(race).encode()
        try:
            _place(folder / race.key.file, content, anew)
            caches.write_whole(folder / GENERATION, uuid.uuid4().hex.encode())
        except OSError as error:
            caches.not_kept(str(error))
            race = replace(race, place=None)
        else:
            caches.written(len(content))
            race = race if anew else _read(race.key) or race
    remember(_found, _here(race.key), race, REMEMBERED)
    forget()  # decisions were made without it
    return race


def _place(path: Path, content: bytes, anew: bool) -> None:
    """Write a file whole. One in good order that is there already stays, unless ``anew``."""
    if anew or (
        path.exists() and read_race(path.read_text("utf-8", "replace"), None, path) is None
    ):
        caches.write_whole(path, content)
        return
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=caches.UNFINISHED)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        with suppress(FileExistsError):
            os.link(part, path)
    finally:
        os.unlink(part)


GENERATION, DESCRIPTION = "generation", "environment.json"


def generation(device: Device) -> str:
    """Return what changes whenever something is kept that choices for a device depend on."""
    folder = _folder(device)
    with suppress(OSError):
        if folder is not None and not distrust((folder / GENERATION).stat()):
            return (folder / GENERATION).read_text("ascii", "replace")[:64]
    return ""


def races(device: Device) -> Iterator[Race]:
    """Iterate over what is kept for a device, in the order of operators."""
    folder = _folder(device)
    if folder is None:
        return
    found = []
    for path in folder.glob("*.json"):
        with suppress(OSError, UnicodeDecodeError):
            race = read_race(path.read_text("utf-8"), None, path)
            if race is not None and race.key.file == path.name:
                found.append(race)
    yield from sorted(found, key=lambda r: (r.key.operator, r.key.call, r.key.how, r.bucket))


def forget_found() -> None:
    """Look at the files again: another process may have written some."""
    _found.clear()
    forget()


def _folder(device: Device, make: bool = False) -> Path | None:
    """Return the folder of a device's environment, None if there is none, or it cannot be used."""
    if not config.get("META_CACHE") or not _is_present(device):
        return None
    place = cache_folder(CACHE)
    if not make and not place.is_dir():
        return None
    problem = open_private(place)
    if problem:
        caches.not_kept(problem)
        return None
    found = environment(device)
    folder = place / digest(found)
    if not make:
        return folder if folder.is_dir() and not distrust(folder.stat()) else None
    problem = open_private(folder)
    if problem:
        caches.not_kept(problem)
        return None
    with suppress(OSError):
        if not (folder / DESCRIPTION).exists():
            caches.write_whole(folder / DESCRIPTION, found.encode())
    return folder


def environment(device: Device) -> str:
    """Return, as JSON, all that times depend on besides the call and the dialects' source."""
    threads = torch.get_num_threads() if device.kind == "cpu" else 0
    return _environment(device, threads)


@lru_cache(maxsize=32)
def _environment(device: Device, threads: int) -> str:
    versions = {
        d.name: d.environment(device)
        for d in DIALECTS.values()
        if d.restorer and device.kind in d.devices and d.unavailable is None
    }
    found: dict[str, Any] = {"format": FORMAT, "torch": torch.__version__, "dialects": versions}
    if device.kind == "cuda":
        one = chip.of(device.ordinal)
        found |= {
            "device": one.name,
            "capability": list(one.capability),
            "processors": one.processors,
            "driver": _driver(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    else:
        found |= {"device": _processor(), "machine": platform.machine(), "threads": threads}
    return json.dumps(found, sort_keys=True)


def _driver() -> str:
    """Return the version of NVIDIA's driver, as Linux tells it."""
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text("utf-8", "replace").splitlines()[0]
    return ""


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {os.cpu_count()} processors"
    return f"{platform.processor()}, {os.cpu_count()} processors"


@lru_cache(maxsize=64)
def source_of(dialect: str) -> str:
    """Return a hash of a dialect's source: of its package, or the file that makes it; "" for an
    unknown one.
    """
    if dialect not in DIALECTS:
        return ""
    here = Path(DIALECTS[dialect].site.file)
    files = [here]
    if here.name == "__init__.py":
        files = sorted(p for p in here.parent.rglob("*") if p.suffix in SOURCES)
    content = hashlib.sha256()
    for path in files:
        content.update(str(path.relative_to(here.parent)).encode())
        with suppress(OSError):
            content.update(path.read_bytes())
    return content.hexdigest()[:16]


SOURCES = (".py", ".cu", ".cuh", ".json", ".yaml")
