"""Products with quantised weights, on the CPU.

Of few rows of x, all time is that of reading the weight, whose numbers are unpacked in registers:
loops are built by hand, of vectors of `LANES` columns. A block of rows of the weight and a few rows
of x have a vector of partial sums each. What zeros take away is known before: the product of zeros
and of the sums of x in each group, which is where partial sums begin.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from meta import op
from meta.dialect.core import LIBRARY
from meta.dialect.tvm import quantized_pairs
from meta.dialect.tvm.broadcast import cast, computing, rounded
from meta.dialect.tvm.compute import OUT_ELEMWISE_FUSABLE, compute
from meta.dialect.tvm.index import flat_index, hand_built, ints, unflat_index
from meta.dialect.tvm.linalg import product
from meta.dialect.tvm.stages import PARALLEL_WORK
from meta.op.quantized import BLOCK, MIDDLE

LANES = 16
"""Columns of a vector: those that lie in one half of the bytes of a block of 4 bits."""
FEW_ROWS = 16
"""Rows of x up to which the weight is not written down: its numbers are unpacked for each four."""
ROWS_AT_ONCE = 4
IN_CACHE = 16 << 10
"""Bytes of x that stay in the first cache while the weight goes by."""


def _rows(x: Any) -> int:
    return int(x.size) // max(int(x.shape[-1]), 1)


def _not_on_cuda(call: Any) -> str | None:
    return "it is written for the CPU" if call.device.kind == "cuda" else None


def _of_few_rows(call: Any) -> int | None:
    """Raise the level of few rows: ATen has the weight written down first."""
    x, scales = call.args.x, call.args.scales
    if not x.is_static or not _fits(x.shape[-1], scales.shape[-1], x.dtype):
        return None
    return LIBRARY + 1 if 0 < _rows(x) <= FEW_ROWS else None


def _fits(columns: int, groups: int, dtype: str) -> bool:
    """Whether the loops built by hand compute a product: of groups of whole vectors."""
    return dtype != "float64" and groups > 0 and columns > 0 and columns // groups % LANES == 0


@compute(op.quantized_matmul, OUT_ELEMWISE_FUSABLE, when=_not_on_cuda, level_of=_of_few_rows)
def quantized_matmul(x, weight, scales, zeros):
    *front, k = ints(x.shape)
    n, groups = ints(scales.shape)
    rows, dtype = prod(front), str(x.dtype)
    wide = computing(dtype)

    def flat(i, c):
        return x(*unflat_index(i, front), c)

    matrix = te.compute((rows, k), flat, name="x")
    if rows <= FEW_ROWS and quantized_pairs.fits(dtype, str(weight.dtype), k, groups):
        found = quantized_pairs.Pairs(rows, n, k, groups).product(matrix, weight, scales, zeros)
    elif rows <= FEW_ROWS and _fits(k, groups, dtype):
        few = _FewRows(rows, n, k, groups, str(weight.dtype))
        found = few.product(matrix, weight, scales, zeros)
    else:
        found = product(rounded(matrix, wide), _dequantized(weight, scales, zeros, k, wide), 0, 1)

    def shaped(*index):
        return cast(found(flat_index(index[:-1], front), index[-1]), dtype)

    return te.compute((*front, n), shaped, name="y")


def _dequantized(weight, scales, zeros, k, dtype):
    """Return the weight as a stage."""
    group = max(k // max(int(scales.shape[1]), 1), 1)
    middle = tirx.const(MIDDLE[str(weight.dtype)], dtype)

    def element(j, c):
        if str(weight.dtype) == "uint8":
            byte = weight(j, c // BLOCK * LANES + c % LANES)
            number = tirx.Select(c % BLOCK < LANES, byte & 15, byte >> 4)
        else:
            number = weight(j, c)
        zero = middle if zeros is None else cast(zeros(j, c // group), dtype)
        return (cast(number, dtype) - zero) * cast(scales(j, c // group), dtype)

    return te.compute((int(weight.shape[0]), k), element, name="weight")


def _vector():
    """Return a vector of floats: TVM's stack has room for small arrays, each of which LLVM keeps in
    a register.
    """
    return T.buffer_proxy(T.alloc_buffer((LANES,), "float32"))


@dataclass
class _FewRows:
    """The product of few rows of x and a quantised weight (n, k)."""

    rows: int
    n: int
    k: int
    groups: int
    stored: str

    def product(self, x, weight, scales, zeros):
        """Return the product, float32 (rows, n)."""
        if str(x.dtype) != "float32":  # once, and not for each row of the weight
            (x,) = hand_built([(self.rows, self.k)], [x], self._widen, ["float32"], "wide")
        inputs = [x, weight, scales]
        if zeros is not None or MIDDLE[self.stored]:
            inputs.append(self._shift(x, zeros is None))
        if zeros is not None:
            inputs.append(zeros)
        (found,) = hand_built([(self.rows, self.n)], inputs, self._loops, ["float32"], "product")
        return found

    def _widen(self, x, wide):
        vectors = T.serial(0, self.k // LANES)
        with T.serial(0, self.rows) as i, vectors as step, T.vectorized(0, LANES) as lane:
            at = step * LANES + lane
            wide[i, at] = cast(x[i, at], "float32")

    def _shift(self, x, symmetric):
        """Return minus the sums of x in each group, by lanes, (rows, groups, LANES); times what
        stands for 0 where there are no zeros.
        """
        group = self.k // self.groups
        u = te.reduce_axis((0, group // LANES), name="u")
        factor = tirx.const(-float(MIDDLE[self.stored]) if symmetric else -1.0, "float32")

        def summed(i, g, lane):
            return te.sum(x(i, g * group + u * LANES + lane) * factor, axis=u)

        return te.compute((self.rows, self.groups, LANES), summed, name="shift")

    def _loops(self, x, weight, scales, *rest):
        *known, result = rest
        at_once = min(self.rows, ROWS_AT_ONCE)
        deep, high = self._tile(at_once)
        loop = T.parallel if self.rows * self.n * self.k >= PARALLEL_WORK else T.serial
        with loop(0, self.n // high) as block:
            first = block * high
            whole = self.rows // at_once
            given = x, weight, scales, (*known, None, None)[:2]
            if whole > 1:
                with T.serial(0, whole) as some:
                    self._tile_of(given, result, first, high, deep, some * at_once, at_once)
            else:
                self._tile_of(given, result, first, high, deep, 0, at_once)
            left = self.rows - whole * at_once
            if left:
                self._tile_of(given, result, first, high, deep, whole * at_once, left)

    def _tile(self, at_once):
        """Return how many vectors of columns, and rows of the weight, have sums of their own.

        One sum would wait for itself. Where x stays in the first cache, rows of the weight go one
        by one, as memory gives them fastest; else several share what is read of x.
        """
        vectors = self.k // self.groups // LANES
        if self.rows > 1 and 4 * self.rows * self.k > IN_CACHE:
            return 1, next(h for h in (ROWS_AT_ONCE, 2, 1) if self.n % h == 0)
        most = 4 if self.stored != "uint8" and at_once == 1 else 2
        return next(d for d in (most, 2, 1) if vectors % d == 0), 1

    def _tile_of(self, given, result, first, high, deep, row, rows):
        """Compute ``high`` columns of the result for some rows of x, from ``first`` and ``row``."""
        x, weight, scales, (shift, zeros) = given
        tile = [(r, i) for r in range(high) for i in range(rows)]
        total = {place: _vector() for place in tile}
        sums = {(*place, d): _vector() for place in tile for d in range(deep)}
        group = self.k // self.groups

        def of_group(g, is_first):
            for (r, i, d), vector in sums.items():
                with T.vectorized(0, LANES) as lane:
                    begin = tirx.const(0.0, "float32")
                    if shift is not None and d == 0:
                        begin = shift[row + i, g, lane]
                        begin = (
                            begin if zeros is None else begin * cast(zeros[first + r, g], "float32")
                        )
                    vector[lane] = begin
            # Of a whole block of 4 bits it is known which half of the bytes a vector is.
            each = max(deep, 2) if group % BLOCK == 0 else deep
            with T.serial(0, group // LANES // each) as step:
                for r in range(high):
                    for v in range(each):
                        column = g * group + (step * each + v) * LANES
                        half = v % 2 if each > 1 else column // LANES % 2
                        for i in range(rows):
                            with T.vectorized(0, LANES) as lane:
                                number = self._number(weight, first + r, column + lane, half)
                                own = sums[r, i, v % deep]
                                own[lane] = own[lane] + x[row + i, column + lane] * number
            for r, i in tile:
                own, whole = sums[r, i, 0], total[r, i]
                for d in range(1, deep):
                    with T.vectorized(0, LANES) as lane:
                        own[lane] = own[lane] + sums[r, i, d][lane]
                with T.vectorized(0, LANES) as lane:
                    term = own[lane] * cast(scales[first + r, g], "float32")
                    whole[lane] = term if is_first else whole[lane] + term

        of_group(0, True)
        if self.groups > 1:
            with T.serial(0, self.groups - 1) as g:
                of_group(g + 1, False)
        for r, i in tile:
            whole, width = total[r, i], LANES
            while width > 1:
                width //= 2
                with T.vectorized(0, width) as lane:
                    whole[lane] = whole[lane] + whole[width + lane]
            result[row + i, first + r] = whole[0]

    def _number(self, weight, row, column, half):
        """Return a stored number as a float32; ``half``: of a byte, 0 or 1."""
        if self.stored != "uint8":
            return weight[row, column].astype("float32")
        byte = weight[row, column // BLOCK * LANES + column % LANES].astype("int32")
        if isinstance(half, int):
            return (byte >> 4 if half else byte & 15).astype("float32")
        return ((byte >> (half * 4)) & 15).astype("float32")
