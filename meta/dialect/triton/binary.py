"""Machine code of a kernel's variants as a file, which is read without Triton."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FOLDER = "triton"
"""The cache that these files are in."""


@dataclass(frozen=True)
class Binary:
    """Machine code of a variant, and what its launch needs to know.

    Attributes
    ----------
    name: of the kernel in the code. warps, ctas: of a block, and of a cluster. shared: bytes of
    shared memory. scratch: bytes of global memory that each block wants for itself.
    """

    code: bytes
    name: str
    warps: int
    ctas: int
    shared: int
    scratch: int


Binaries = tuple[Binary, ...]
_NUMBERS = "bytes", "warps", "ctas", "shared", "scratch"


def packed(binaries: Sequence[Binary]) -> bytes:
    """Return what `unpacked` reads: a line of JSON, and the machine codes behind one another."""
    record = [
        {
            "name": b.name,
            "bytes": len(b.code),
            "warps": b.warps,
            "ctas": b.ctas,
            "shared": b.shared,
            "scratch": b.scratch,
        }
        for b in binaries
    ]
    return json.dumps(record).encode() + b"\n" + b"".join(b.code for b in binaries)


def unpacked(content: bytes) -> Binaries | None:
    """Return what `packed` wrote; None for anything else."""
    head, end, code = content.partition(b"\n")
    try:
        records = json.loads(head)
    except (ValueError, RecursionError):
        return None
    if not end or not isinstance(records, list) or not all(map(_is_record, records)):
        return None
    if not records or sum(r["bytes"] for r in records) != len(code):
        return None
    found, start = [], 0
    for r in records:
        piece = code[start : start + r["bytes"]]
        found.append(Binary(piece, r["name"], r["warps"], r["ctas"], r["shared"], r["scratch"]))
        start += r["bytes"]
    return tuple(found)


def _is_record(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and set(record) == {"name", *_NUMBERS}
        and isinstance(record["name"], str)
        and all(type(record[n]) is int and record[n] >= 0 for n in _NUMBERS)
    )
