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
from meta.base.bounded_cache import bounded_insert
from meta.base.caches import cache_folder, distrust, open_private
from meta.base.device import Device
from meta.base.errors import FormatError, MetaError
from meta.cost.record import Breadth, Cost, Key, Race, cost_of_record, digest
from meta.dialect.core.catalog import DIALECTS
from meta.dialect.core.preference import forget
from meta.runtime import gpu_properties

CACHE = "costs"
FORMAT = 2
"""Changes when files or what they mean change; others are not read."""
LARGEST = 1 << 20
"""Bytes of a file beyond which it is none of ours."""
REMEMBERED = 8192
"""Races that a process remembers, those that it found and those that it did not."""
_races: dict[Any, Race | None] = {}
"""What was looked for, by this process, by where and for which environment."""


def find(key: Key) -> Race | None:
    """Return the race of a key, None if there is none in good order."""
    if not _is_present(key.device) or not (_races or cache_folder(CACHE).is_dir()):
        return None  # as nearly always, found out in a few microseconds
    here = _here(key)
    if here in _races:
        return _races[here]
    return bounded_insert(_races, here, _read(key), REMEMBERED)


def _is_present(device: Device) -> bool:
    """Whether a device is there: a program may be compiled for one that is not."""
    return device.kind != "cuda" or device.ordinal < torch.cuda.device_count()


def _here(key: Key) -> Any:
    return key, caches.caches_folder(), environment(key.device)


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
        caches.touch(place)
    return race


def read_race(content: str, key: Key | None, place: Path | None) -> Race | None:
    """Return a race as `race_text` wrote it; None unless it is complete, of that key (None: of
    any), and of dialects as they are now.
    """
    race = _parsed(content, place)
    if race is None or (key is not None and race.key.record() != key.record()):
        return None
    if any(c.source != source_of(c.dialect) for c in race.costs):
        return None
    return race if key is None else replace(race, key=key)


def _parsed(content: str, place: Path | None = None) -> Race | None:
    """Return the race that a text describes, of whatever environment; None for any other text."""
    try:
        record = json.loads(content)
        stamp = record.pop("digest")
        if stamp != digest(json.dumps(record, sort_keys=True)) or record["format"] != FORMAT:
            return None
        stated = record["key"]
        names = ("operator", "call", "how", "tf32")
        key = Key(**{**{n: stated[n] for n in names}, "device": Device(record["device"])})
        costs = tuple(map(cost_of_record, record["costs"]))
        bucket, breadth = bool(record["bucket"]), Breadth(record["breadth"])
        return Race(key, costs, float(record["when"]), place, bucket, breadth)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MetaError):
        return None


def race_text(race: Race) -> str:
    """Return a race as the content of a file."""
    record = {
        "format": FORMAT,
        "key": race.key.record(),
        "device": str(race.key.device),
        "when": race.when,
        "bucket": race.bucket,
        "breadth": int(race.breadth),
        "costs": [c.record() for c in race.costs],
    }
    plain = json.dumps(record, sort_keys=True)
    return json.dumps({**json.loads(plain), "digest": digest(plain)}, indent=1, sort_keys=True)


def save(
    key: Key,
    costs: Sequence[Cost],
    *,
    bucket: Key | None = None,
    anew: bool = False,
    breadth: Breadth = Breadth.ALL,
) -> Race:
    """Keep the result of a race, and return what is kept: where another process was faster, what
    it measured, so that all of them choose alike; ``anew`` replaces it, and so does a race in which
    more configurations took part.

    bucket: the key of all calls with about these extents, for which it counts, too, if nothing else
    does yet. breadth: as in `Race`. A disk that is full or read-only keeps nothing, and there is
    one warning.
    """
    stamped = tuple(replace(c, source=source_of(c.dialect)) for c in costs)
    kept = _save(Race(key, stamped, time.time(), breadth=breadth), anew)
    if bucket is not None:
        _save(Race(bucket, stamped, kept.when, bucket=True, breadth=breadth), False)
    return kept


def _save(race: Race, anew: bool) -> Race:
    if not anew:
        before = _read(race.key)
        if before is not None and before.breadth >= race.breadth:
            _races[_here(race.key)] = before
            return before
        anew = before is not None
    folder = _folder(race.key.device, make=True)
    if folder is not None:
        race = replace(race, place=folder / race.key.file)
        content = race_text(race).encode()
        try:
            _write(folder / race.key.file, content, anew)
            caches.write_atomically(folder / GENERATION, uuid.uuid4().hex.encode())
        except OSError as error:
            caches.warn_unwritable(str(error))
            race = replace(race, place=None)
        else:
            caches.count_written(len(content))
            race = race if anew else _read(race.key) or race
    bounded_insert(_races, _here(race.key), race, REMEMBERED)
    forget()  # decisions were made without it
    return race


def _write(path: Path, content: bytes, anew: bool) -> None:
    """Write a file whole. One in good order that is there already stays, unless ``anew``."""
    if anew or (
        path.exists() and read_race(path.read_text("utf-8", "replace"), None, path) is None
    ):
        caches.write_atomically(path, content)
        return
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=caches.TEMPORARY_PREFIX)
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


def exported() -> dict[str, Any]:
    """Return all that is kept, of every environment, as values that JSON has."""
    place = cache_folder(CACHE)
    found = []
    for folder in sorted(place.iterdir()) if place.is_dir() and not distrust(place.stat()) else ():
        with suppress(OSError, UnicodeDecodeError):
            stated = (folder / DESCRIPTION).read_text("utf-8")
            texts = [p.read_text("utf-8") for p in sorted(folder.glob("*.json"))]
            kept = [t for t in texts if _parsed(t) is not None]
            if digest(stated) == folder.name and kept:
                found.append({"environment": stated, "races": kept})
    return {"format": FORMAT, "environments": found}


def imported(record: Any) -> int:
    """Keep what `exported` returned, where nothing is kept yet, or a race of fewer configurations;
    return how many races that were.

    They count where the environment is the one in which they were measured. FormatError for
    anything else, before anything is written.
    """
    try:
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']}")
        parts = [
            (str(one["environment"]), [(t, _parsed(t)) for t in one["races"]])
            for one in record["environments"]
        ]
        if any(race is None for _, races in parts for _, race in races):
            raise ValueError("a race is damaged")
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            "these are no costs that `python -m meta costs --export` wrote", found=str(error)
        ) from None
    count = 0
    for stated, races in parts:
        folder = _environment_folder(stated)
        for content, race in races:
            if folder is not None and race is not None:
                place = folder / race.key.file
                kept = _parsed(place.read_text("utf-8", "replace")) if place.is_file() else None
                if kept is None or kept.breadth < race.breadth:
                    _write(place, content.encode(), anew=True)
                    count += 1
        if folder is not None:
            caches.write_atomically(folder / GENERATION, uuid.uuid4().hex.encode())
    clear_memory()
    return count


def clear_memory() -> None:
    """Look at the files again: another process may have written some."""
    _races.clear()
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
        caches.warn_unwritable(problem)
        return None
    found = environment(device)
    if make:
        return _environment_folder(found)
    folder = place / digest(found)
    return folder if folder.is_dir() and not distrust(folder.stat()) else None


def _environment_folder(environment: str) -> Path | None:
    """Return the folder of an environment, made if need be; None if it cannot be used."""
    folder = cache_folder(CACHE) / digest(environment)
    problem = open_private(folder.parent) or open_private(folder)
    if problem:
        caches.warn_unwritable(problem)
        return None
    with suppress(OSError):
        if not (folder / DESCRIPTION).exists():
            caches.write_atomically(folder / DESCRIPTION, environment.encode())
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
        one = gpu_properties.query(device.ordinal)
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


def source_of(dialect: str) -> str:
    """Return a hash of a dialect's source: of its package, or the file that makes it, and of what
    was registered as text; "" for an unknown one.
    """
    if dialect not in DIALECTS:
        return ""
    return _source_hash(DIALECTS[dialect].site.file, DIALECTS[dialect].registered_text)


@lru_cache(maxsize=64)
def _source_hash(file: str, text: str) -> str:
    here = Path(file)
    files = [here]
    if here.name == "__init__.py":
        files = sorted(p for p in here.parent.rglob("*") if p.suffix in SOURCES)
    content = hashlib.sha256(text.encode())
    for path in files:
        content.update(str(path.relative_to(here.parent)).encode())
        with suppress(OSError):
            content.update(path.read_bytes())
    return content.hexdigest()[:16]


SOURCES = (".py", ".cu", ".cuh", ".json", ".yaml")
