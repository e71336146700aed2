"""Stores of machine code: each kernel is compiled once for all threads, remembered in memory, and
kept on disk for other processes and saved programs.

Compilers that leave the interpreter to others compile what a program needs on threads of their own
(`KernelStore.begin`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from pathlib import Path
from typing import Generic, TypeVar, cast

from meta.base import disk_cache
from meta.base.caches import distrust
from meta.base.threads import SingleFlightCache, compile_threads
from meta.dialect.core.openv import Artifact

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class KernelStore(Generic[K, V]):
    """Machine code by what it is compiled of.

    Parameters
    ----------
    cache: the cache on disk, of `meta.base.caches.CACHES`. compile: what makes machine code. key:
    the text that decides it, versions included. pack, unpack: to bytes and from them; what cannot
    be unpacked is None, and compiled anew. Without them it is bytes. limit: how many are remembered
    in memory. suffix: how names of files end.
    """

    def __init__(
        self,
        cache: str,
        compile: Callable[[K], V],
        key: Callable[[K], str],
        pack: Callable[[V], bytes] | None = None,
        unpack: Callable[[K, bytes], V | None] | None = None,
        *,
        limit: int = 256,
        suffix: str = "",
    ) -> None:
        self.cache, self.compile, self.key, self.suffix = cache, compile, key, suffix
        self.pack = pack or cast("Callable[[V], bytes]", lambda content: content)
        self.unpack = unpack or cast("Callable[[K, bytes], V | None]", lambda _, content: content)
        self.memory: SingleFlightCache[K, V] = SingleFlightCache(self.load, limit)

    def __call__(self, of: K) -> V:
        """Return machine code, compiled now if it is nowhere; raises what compiling raises."""
        return self.memory(of)

    def load(self, of: K) -> V:
        """Return machine code from disk, or compile and keep it; not from memory."""
        content = disk_cache.get(self.cache, self.key(of), self.suffix)
        found = None if content is None else self.unpack(of, content)
        if found is None:
            found = self.compile(of)
            disk_cache.store(self.cache, self.key(of), self.pack(found), self.suffix)
        return found

    def begin(self, those: Iterable[K]) -> None:
        """Let threads compile what nobody has compiled, and do not wait."""
        self.memory.begin(those)

    def all_of(self, those: Collection[K]) -> list[V]:
        """Return machine code of several, compiled together."""
        if compile_threads() > 1:
            self.begin(those)
        return [self(one) for one in those]

    def file(self, of: K) -> Path | None:
        """Return the file of machine code that was compiled, written again if it is gone; None if
        nothing is kept.
        """
        found = disk_cache.path_of(self.cache, self.key(of), self.suffix)
        if found is None:
            disk_cache.store(self.cache, self.key(of), self.pack(self(of)), self.suffix)
            found = disk_cache.path_of(self.cache, self.key(of), self.suffix)
        return found

    def forget(self) -> None:
        """Forget what is in memory."""
        self.memory.forget()


def require_trusted(file: Path) -> None:
    """Raise ValueError for a file that others may write to: it is not run."""
    problem = distrust(file.stat()) if file.is_file() else ""
    if problem:
        raise ValueError(f"{file} is not run: {problem}")


def read_artifact(artifact: Artifact, *fields: str) -> bytes:
    """Return the machine code of an artifact whose record has these fields.

    ValueError for other fields, and for a file that is damaged or that others may write to.
    """
    if set(artifact.record) != set(fields):
        raise ValueError(f"{sorted(artifact.record)} are not the fields of a kernel's record")
    require_trusted(artifact.file)
    content = disk_cache.read(artifact.file)
    if content is None:
        raise ValueError(f"{artifact.file} does not hold machine code in good order")
    return content
