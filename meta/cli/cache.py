"""``python -m meta cache``: what is kept on disk between processes, how much, and how to be rid of
it.
"""

from __future__ import annotations

import argparse
from typing import Any

from meta.base import caches, config
from meta.cli.table import section, show


def run(options: argparse.Namespace) -> int:
    """Remove what is to be removed, and print what is left."""
    if options.clear is not None:
        caches.clear(options.clear)
    show(options, on_disk(), lambda record: "\n".join(text(record)[1:]))
    return 0


def on_disk() -> dict[str, Any]:
    """Return what each cache takes, all of them together, and the bound, in MiB; None for none.

    Kernels of a program are shared with the cache of kernels, so that the sum may be larger than
    all together.
    """
    return {
        "kept": bool(config.get("META_CACHE")),
        "bound_mib": mebibytes(caches.limit_bytes()) or None,
        "mib": mebibytes(caches.total_bytes()),
        "caches": [
            {
                "name": found.cache.name,
                "what": found.cache.what,
                "folder": str(found.folder),
                "entries": found.entries,
                "mib": mebibytes(found.size),
            }
            for found in caches.usage()
        ],
    }


def mebibytes(size: int) -> float:
    """Return bytes as MiB, to a tenth."""
    return round(size / 2**20, 1)


def text(record: dict[str, Any]) -> list[str]:
    """Return the record as lines for a terminal."""
    limit = record["bound_mib"]
    most = "without a bound" if limit is None else f"of at most {limit:g} MiB (META_CACHE_SIZE)"
    rows = [
        [c["name"], c["what"], f"{c['entries']} files or folders", f"{c['mib']} MiB", c["folder"]]
        for c in record["caches"]
    ]
    state = "" if record["kept"] else "; switched off by META_CACHE"
    rows.append(["together", "", "", f"{record['mib']} MiB", most + state])
    return section("caches on disk", rows)
