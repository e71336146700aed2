"""What a kernel of the dialect is, as plain data: all that decides its machine code.

Extents are none of it: a kernel serves all of them that are multiples of `LANES`.
"""

from __future__ import annotations

from dataclasses import dataclass

from meta.dialect.core import Config, Unsupported

DTYPES = ("float16", "bfloat16")
ALIGNMENT = 16
"""Bytes at which rows begin: the tensor memory accelerator copies from nowhere else."""
LANES = 8
"""Elements of half precision in so many bytes."""


@dataclass(frozen=True, slots=True)
class Form:
    """What becomes of a product, for any activation.

    ``operands``: what is read besides the factors, each with how: "row", a vector with a number for
    each column of the result, "column", one with a number for each row, or "tile", a matrix like
    the result. The first tile is "c". ``kept``: whether a second result is written beside the
    first. ``paired``: whether one result is made of two columns, a half of all columns apart.
    """

    operands: tuple[tuple[str, str], ...] = ()
    kept: bool = False
    paired: bool = False


_B, _C = ("b", "row"), ("c", "c")
FORMS = {
    "plain": Form(),
    "act": Form(),
    "bias_act": Form((_B,)),
    "act_saved": Form(kept=True),
    "bias_act_saved": Form((_B,), kept=True),
    "add": Form((_C,)),
    "bias_add": Form((_B, _C)),
    "times": Form((_C,)),
    "bias_times": Form((_B, _C)),
    "times_saved": Form((_C,), kept=True),
    "act_dx": Form((_C,)),
    "gated_dx": Form((_C, ("s", "tile"), ("g", "tile")), kept=True),
    "gated_result_dx": Form((_C, ("s", "tile")), kept=True),
    "gated": Form(paired=True),
    "gated_second": Form(paired=True),
    "rows": Form((("r", "column"),)),
    "columns": Form((_B,)),
    "rows_columns": Form((("r", "column"), _B)),
}
"""Epilogues by name; `source/epilogues.py` has their formulas."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the result is divided among thread blocks: ``rows`` x ``columns`` of it for each, for two
    groups of warps together or, in turn (``pingpong``), for each; ``down`` x ``across`` blocks are
    a cluster, which shares what it reads.
    """

    rows: int
    columns: int
    down: int = 1
    across: int = 1
    pingpong: bool = False

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.down * self.across

    @property
    def config(self) -> Config:
        """The configuration that names it."""
        return (
            ("cluster", f"{self.down}x{self.across}"),
            ("pingpong", int(self.pingpong)),
            ("tile", f"{self.rows}x{self.columns}"),
        )


TILINGS = {
    9: (
        Tiling(128, 192, 2, 1, True),
        Tiling(128, 128, 2, 1, True),
        Tiling(128, 128, 1, 2, True),
        Tiling(256, 128, 2, 1),
        Tiling(256, 192, 2, 1),
        Tiling(128, 256, 2, 1),
        Tiling(128, 256, 1, 2),
        Tiling(128, 160, 2, 1, True),
    ),
    10: (
        Tiling(256, 256, 2, 1),
        Tiling(256, 128, 2, 1),
        Tiling(128, 128, 1, 1),
        Tiling(128, 64, 1, 1),
        Tiling(256, 192, 2, 1),
        Tiling(128, 256, 1, 1),
    ),
}
"""Those worth measuring, by the major compute capability, the most promising for large products
first."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: out = epilogue(x1 @ x2).

    Attributes
    ----------
    arch: what it is compiled for, "sm_90a". dtype: of the factors, of tiles and of the results.
    t1, t2: whether x1 (m, k) and x2 (k, n) are stored transposed. form: the epilogue, a key of
    `FORMS`, with its ``activation``. vectors: the dtypes of the vectors it reads, in order.
    tiling: how the result is divided. grouped: whether rows are multiplied by a matrix each of
    several, group by group.
    """

    arch: str
    dtype: str
    t1: bool
    t2: bool
    form: str
    activation: str
    vectors: tuple[str, ...]
    tiling: Tiling
    grouped: bool = False

    @property
    def capability(self) -> int:
        """The major compute capability."""
        return int(self.arch.removeprefix("sm_").rstrip("a")) // 10

    @property
    def key(self) -> str:
        """A text that decides what the kernel does, given the versions of what compiles it."""
        return repr(self)


def arch_of(capability: tuple[int, int]) -> str:
    """Return what kernels are compiled for; Unsupported unless quack has kernels for it."""
    if capability not in ((9, 0), (10, 0), (10, 3)):
        text = ".".join(map(str, capability))
        raise Unsupported(f"made for compute capability 9.0, 10.0 and 10.3, not {text}")
    return f"sm_{capability[0]}{capability[1]}a"


def tilings(capability: int, form: str, columns: int, rows: int) -> list[Tiling]:
    """Return how a result may be divided, the most promising for its size first."""
    fits = [t for t in TILINGS[capability] if _fits(t, form, capability)]
    return sorted(fits, key=lambda t: t.rows * t.columns * t.cluster > 2 * rows * columns)


def _fits(tiling: Tiling, form: str, capability: int) -> bool:
    """Whether there is a kernel: pairs of columns are written by 32, and where an epilogue reads
    and writes much, shared memory has room for less of the factors.
    """
    of = FORMS[form]
    if of.paired:
        return tiling.columns % 32 == 0
    tiles = sum(kind in ("c", "tile") for _, kind in of.operands) + of.kept
    # On Blackwell two blocks of a cluster each read a half.
    read = (tiling.rows + tiling.columns) // (tiling.down if capability > 9 else 1)
    return tiles < 3 or read <= (320 if capability > 9 else 384)


def named(config: Config, choices: list[Tiling]) -> Tiling:
    """Return the tiling that a configuration names; Unsupported if there is none."""
    for one in choices:
        if one.config == config:
            return one
    raise Unsupported(f"no kernel is divided as {dict(config)} says")
