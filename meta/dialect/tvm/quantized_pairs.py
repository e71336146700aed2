"""Products of bfloat16 rows with weights of 4 bits, by x86's products of pairs (AVX512_BF16).

``128 + q`` is a bfloat16 whose last bits are those of q, from 0 to 15: a shift, a mask and an or of
a word of eight numbers make two factors in each of its halves, and one instruction multiplies 32 of
them by x and adds up in float32. So 128 numbers of a row take fifteen instructions, and float32
takes thirty. What 128 adds is taken away as zeros are: partial sums begin at minus its product with
the sums of x. x is written down once, in the order in which words have its columns.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_features

from meta.base.device import CPU
from meta.dialect.tvm import llvm_code
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.index import hand_built
from meta.dialect.tvm.stages import PARALLEL_WORK
from meta.dialect.tvm.target import for_device
from meta.op.quantized import BLOCK, MIDDLE

LANES = 16
COLUMNS = 8 * LANES
"""Of a vector of words."""
ROWS_AT_ONCE = 4
_UNIT = 128
_MASK, _BITS = 0x000F000F, 0x43004300
"""The lowest four bits of both halves of a word, and the bits of two bfloat16 that are 128."""


def _definition(symbol: str, dtype: str, lanes: int) -> str:
    """The first number plus the products of the halves of the others, which are bfloat16 each."""
    assert lanes == LANES
    one, many = f"<{LANES} x float>", f"<{2 * LANES} x bfloat>"
    instruction = "llvm.x86.avx512bf16.dpbf16ps.512"
    return f"""
declare {one} @{instruction}({one}, {many}, {many})
define {one} @{symbol}({one} %sum, {one} %x, {one} %w) nounwind memory(none) {{
  %a = bitcast {one} %w to {many}
  %b = bitcast {one} %x to {many}
  %y = call {one} @{instruction}({one} %sum, {many} %a, {many} %b)
  ret {one} %y
}}"""


_DOT = llvm_code.function("dot_of_pairs", 3, _definition)


@cache
def _has_pairs(target: Target) -> bool:
    return "avx512bf16" in llvm_get_cpu_features(target)


def fits(dtype: str, stored: str, columns: int, groups: int) -> bool:
    """Whether the machine has such products, and a call is one of whole vectors of words."""
    if (dtype, stored) != ("bfloat16", "uint8") or columns % COLUMNS or not groups:
        return False
    group = columns // groups
    whole = group % COLUMNS == 0 or group in (COLUMNS // 2, BLOCK)
    return whole and _has_pairs(for_device(CPU))


def _column(block: Any, shift: Any, lane: Any, half: Any) -> Any:
    """Return the column of the number ``shift`` of one half of a word: of four words, 16 bytes,
    each byte has a column in its low bits, and the one 16 further in its high bits.
    """
    byte = (4 * lane + 2 * half + shift // 2) % LANES
    return block * COLUMNS + lane // 4 * BLOCK + shift % 2 * LANES + byte


def _nearby(array: Any, several: Any, together: int) -> Any:
    """Return the scales or zeros of some rows, written down in float32: that memory is waited for
    once, and not at each row, whose numbers are read in less time.
    """
    groups = int(array.shape[1])
    found = T.buffer_proxy(T.alloc_buffer((together, groups), "float32"))
    with T.serial(0, together) as r, T.serial(0, groups) as g:
        found[r, g] = cast(array[several * together + r, g], "float32")
    return found


@dataclass
class Pairs:
    """The product of few rows of x, bfloat16, and a weight of 4 bits, (n, k)."""

    rows: int
    n: int
    k: int
    groups: int

    def product(self, x: Any, weight: Any, scales: Any, zeros: Any) -> Any:
        """Return the product, float32 (rows, n)."""
        inputs = [self._pairs(x), self._sums(x, zeros is None), weight, scales]
        if zeros is not None:
            inputs.append(zeros)
        (found,) = hand_built([(self.rows, self.n)], inputs, self._loops, ["float32"], "product")
        return found

    def _pairs(self, x: Any) -> Any:
        """Return x in the order of words, two numbers in each float32."""

        def bits(i: Any, column: Any) -> Any:
            return tirx.reinterpret("uint32", cast(x(i, column), "float32"))

        def pair(i: Any, block: Any, shift: Any, lane: Any) -> Any:
            first, second = (bits(i, _column(block, shift, lane, half)) for half in (0, 1))
            both = (first >> 16) | (second & tirx.const(0xFFFF0000, "uint32"))
            return tirx.reinterpret("float32", both)

        return te.compute((self.rows, self.k // COLUMNS, 4, LANES), pair, name="pairs")

    def _sums(self, x: Any, symmetric: bool) -> Any:
        """Return minus the sums of what a lane has of x; times what stands for 0, if that is
        known.
        """
        number = te.reduce_axis((0, 8), name="number")
        factor = tirx.const(-float(_UNIT + MIDDLE["uint8"]) if symmetric else -1.0, "float32")

        def summed(i: Any, block: Any, lane: Any) -> Any:
            column = _column(block, number % 4, lane, number // 4)
            return te.sum(cast(x(i, column), "float32") * factor, axis=number)

        return te.compute((self.rows, self.k // COLUMNS, LANES), summed, name="sums")

    def _of_groups(self, array: Any, row: Any, block: Any, lane: Any) -> Any:
        """Return the scale or zero of each lane: of a group of all lanes, or of 8 or 4 of them."""
        group = self.k // self.groups
        if group >= COLUMNS:
            return array[row, block // (group // COLUMNS)]
        count = COLUMNS // group
        found = cast(array[row, block * count + count - 1], "float32")
        for i in reversed(range(count - 1)):
            own = cast(array[row, block * count + i], "float32")
            found = tirx.Select(lane < (i + 1) * (LANES // count), own, found)
        return found

    def _loops(self, pairs: Any, sums: Any, weight: Any, scales: Any, *rest: Any) -> None:
        *zeros, result = rest
        loop = T.parallel if self.rows * self.n * self.k >= PARALLEL_WORK else T.serial
        together = next(r for r in (16, 8, 4, 2, 1) if self.n % r == 0)
        with loop(0, self.n // together) as several:
            words = T.decl_buffer((self.n, self.k // 8), "uint32", data=weight.data)
            near, begin = [scales, *zeros], several * together
            if self.k // self.groups >= COLUMNS:
                near = [_nearby(array, several, together) for array in near]
            given = pairs, sums, T.buffer_proxy(words), near[0], near[1] if zeros else None
            with T.serial(0, together) as r:
                for first in range(0, self.rows, ROWS_AT_ONCE):
                    rows = range(first, min(first + ROWS_AT_ONCE, self.rows))
                    self._of_rows(given, result, begin, r, rows)

    def _of_rows(self, given: Any, result: Any, first: Any, r: Any, rows: range) -> None:
        """Compute a column of the result, ``first + r``, for some rows of x."""
        pairs, sums, words, scales, zeros = given
        row = first + r
        own_row = r if self.k // self.groups >= COLUMNS else row
        total, own = (
            {i: T.buffer_proxy(T.alloc_buffer((LANES,), "float32")) for i in rows} for _ in "12"
        )
        for i in rows:
            with T.vectorized(0, LANES) as lane:
                total[i][lane] = tirx.const(0.0, "float32")
        with T.serial(0, self.k // COLUMNS) as block:
            for i in rows:
                with T.vectorized(0, LANES) as lane:
                    begin = sums[i, block, lane]
                    if zeros is not None:
                        zero = self._of_groups(zeros, own_row, block, lane)
                        begin = begin * (zero + tirx.const(float(_UNIT), "float32"))
                    own[i][lane] = begin
            for shift in range(4):
                for i in rows:
                    with T.vectorized(0, LANES) as lane:
                        word = words[row, block * LANES + lane] >> (4 * shift)
                        bits = (word & tirx.const(_MASK, "uint32")) | tirx.const(_BITS, "uint32")
                        factors = tirx.reinterpret("float32", bits)
                        values = own[i][lane], pairs[i, block, shift, lane], factors
                        own[i][lane] = llvm_code.call(_DOT, *values)
            for i in rows:
                with T.vectorized(0, LANES) as lane:
                    scale = self._of_groups(scales, own_row, block, lane)
                    total[i][lane] = total[i][lane] + own[i][lane] * scale
        for i in rows:
            width = LANES
            while width > 1:
                width //= 2
                with T.vectorized(0, width) as lane:
                    total[i][lane] = total[i][lane] + total[i][width + lane]
            result[i, row] = total[i][0]
