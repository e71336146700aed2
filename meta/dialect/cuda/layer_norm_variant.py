"""The variants of the kernels of layer normalisation: how many threads share a row."""

from __future__ import annotations

from dataclasses import dataclass

from meta.dialect.cuda.source import source

THREADS = 256
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of an element."""
GROUPS = 32, 64, 128, THREADS
"""How many threads may share a row."""
REGISTERS = 200
"""For what a thread of the backward pass holds of rows; up to 255 there are."""
FORWARD_EACH = 32
"""Elements of a row that a thread of the forward pass holds, at most."""
MOST = THREADS * FORWARD_EACH
"""The widest row."""
PER_PROCESSOR = 1
"""Thread blocks of the backward pass for each processor: it keeps their sums."""
POSITIONS = 32
"""Columns that a thread block of the last launch adds up."""
FINISHING = 512
"""Its threads."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a source is made for: dtypes of data, of scale and bias, and of an addend; rows of
    ``width`` elements, accesses of ``vector``, ``group`` threads of a row. ``addend``: of what is
    added to x before the forward pass, to the result of the backward pass. ``summed``: whether that
    result is summed over all rows. ``centers``: whether the mean is taken off. ``ahead``: whether
    the next row is read before one is worked on.
    """

    x: str
    parameters: str
    width: int
    vector: int
    group: int
    addend: str | None = None
    summed: bool = False
    centers: bool = True
    ahead: bool = True

    @property
    def sums(self) -> int:
        """How many sums over all rows the backward pass makes."""
        return 1 + self.centers + self.summed

    @property
    def padded(self) -> int:
        """Elements of a row with those that complete the last step of its threads."""
        step = self.group * self.vector
        return -(-self.width // step) * step

    def source(self, kernel: str) -> str:
        """Return the source of a kernel: "forward", "backward" or "finish"."""
        types = {"DATA": self.x, "PARAMETER": self.parameters, "ADDEND": self.addend or self.x}
        sizes: dict[str, object] = {"WIDTH": self.width, "VECTOR": self.vector}
        sizes |= {"GROUP": self.group, "THREADS": THREADS, "SUMS": self.sums}
        sizes |= {"ADDS": int(self.addend is not None), "AHEAD": int(self.ahead)}
        sizes |= {"SUMMED": int(self.summed), "CENTERS": int(self.centers)}
        sizes |= {"POSITIONS": POSITIONS, "FINISHING": FINISHING, "PER_PROCESSOR": PER_PROCESSOR}
        return source(f"layer_norm_{kernel}", types, sizes)


def variant(
    backward: bool, x: str, parameters: str, width: int, vector: int, rows: int, processors: int,
    addend: str | None = None, summed: bool = False, centers: bool = True,
) -> Variant:  # fmt: skip
    """Return the variant of a pass for an array of ``rows`` on a GPU of so many processors: as
    few threads for a row as can hold it, with the next one, and more where there are few rows.
    """
    for ahead in (True, False):
        given = x, parameters, width, vector
        made = [Variant(*given, g, addend, summed, centers, ahead) for g in GROUPS]
        fit = [v for v in made if _fits(backward, v)]
        if fit:
            break
    else:
        fit = made[-1:]
    busy = (v for v in fit if rows * v.group >= processors * THREADS)
    narrow = [v for v in fit if v.group * vector < 2 * width]
    return next(busy, narrow[-1] if narrow else fit[0])


def _fits(backward: bool, v: Variant) -> bool:
    each = v.padded // v.group
    if not backward:
        return each <= FORWARD_EACH
    read = 2 * SIZES[v.x] + (SIZES[v.addend] if v.addend else 0)
    return each * (3 + v.sums + (read / 4 if v.ahead else 0)) <= REGISTERS
