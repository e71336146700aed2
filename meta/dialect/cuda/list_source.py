"""Source of kernels that run over lists of tensors: the loops of ``list.cu``, around what an
operator does to an element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from meta.dialect.cuda.source import C_TYPES
from meta.dialect.cuda.source import source as complete

THREADS, OTHER_THREADS = 256, (128, 512)
CHUNK, OTHER_CHUNKS = 1 << 12, (1 << 14, 1 << 16)
"""Elements of a thread block: 4 vectors for each thread. With 16 a block takes 100 us, and a
collective of another stream waits for room so long."""
NUMBER_BYTES = 24
HEAD_BYTES = 40


@dataclass(frozen=True)
class Pass:
    """What a launch does to each element.

    loads: the lists whose elements the code reads, as variables of these names. stores: those that
    it assigns to. sums: numbers of the sums over a tensor to which it adds, ``terms[number]``.
    needs: numbers of those, of a launch before, that it reads, as ``sums[number]``.
    """

    code: str
    loads: tuple[str, ...]
    stores: tuple[str, ...] = ()
    sums: tuple[int, ...] = ()
    needs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Definition:
    """An operator's kernels.

    passes: its launches. numbers: the slots of its numbers, in order, which become the members of
    ``k``. derived: further members, expressions of CUDA of the numbers as doubles. sums: how many
    sums there are of a chunk, over all launches. norm: whether the result is the root of the sum
    number 0.
    """

    passes: tuple[Pass, ...]
    numbers: tuple[str, ...]
    derived: Mapping[str, str] = field(default_factory=dict)
    sums: int = 0
    norm: bool = False


def source(
    of: Definition,
    number: int,
    dtypes: dict[str, str],
    wide: str,
    tensors: int,
    *,
    threads: int = THREADS,
    chunk: int = CHUNK,
) -> str:
    """Return the source of a kernel ``update``, that of a pass, and of ``finish``, the norm of sums
    of squares.

    Parameters
    ----------
    dtypes: of each list. wide: the type to compute in. tensors: for how many there is room.
    threads: of a thread block, a power of 2. chunk: the elements that it takes, a multiple of 4.
    """
    one = of.passes[number]
    names = list(dtypes)
    loads = [n for n in one.loads if n in dtypes]
    stores = [n for n in one.stores if n in dtypes]
    kinds = {n: C_TYPES[dtypes[n]] for n in names if n in loads or n in stores}
    sizes: dict[str, object] = {"THREADS": threads, "CHUNK": chunk, "LISTS": len(names)}
    sizes |= {
        "TENSORS": tensors,
        "SUMS": max(1, of.sums),
        "NUMBERS": ", ".join(of.numbers) or "none",
    }
    sizes |= {
        "FOR_NUMBERS(X)": _each((n,) for n in of.numbers),
        "FOR_DERIVED(X)": _each(of.derived.items()),
        "FOR_LISTS(X)": _each(
            (n, kind, names.index(n), int(n in loads)) for n, kind in kinds.items()
        ),
        "FOR_LOADS(X)": _each((n, kinds[n]) for n in loads),
        "FOR_STORES(X)": _each((n, kinds[n]) for n in stores),
        "FOR_SUMS(X)": _each((i,) for i in one.sums),
        "FOR_NEEDS(X)": _each((i,) for i in one.needs),
        "UPDATE": " ".join(one.code.split()),
    }
    return complete("list", {"COMPUTE": wide}, sizes)


def _each(rows: Iterable[tuple[object, ...]]) -> str:
    """Return the macro X applied to each of some arguments."""
    return " ".join(f"X({', '.join(map(str, row))})" for row in rows)
