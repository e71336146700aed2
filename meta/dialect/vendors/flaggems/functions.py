"""Functions of ``triton.jit`` that vendors' kernels call, by FlagGems' names."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "_get_finfo_val", "_get_iinfo_val", "argsort", "div_rn", "div_rz", "fmod", "get_dtype_max",
    "get_dtype_min", "maximum_with_index_tie_break_right", "minimum_with_index_tie_break_right",
    "num_programs", "program_id", "reduce_all", "reduce_any", "trunc", "uint_to_uniform_float",
    "uniform",
]  # fmt: skip


@triton.constexpr_function
def _extreme(dtype, largest, finite):
    """The largest or smallest value of a dtype, of floating point infinite unless ``finite``."""
    if dtype.is_floating():
        bound = {16: 65504.0, 32: 3.4028234663852886e38, 64: 1.7976931348623157e308}[
            dtype.primitive_bitwidth
        ]
        if dtype.is_bf16():
            bound = 3.3895313892515355e38
        value = bound if finite else float("inf")
        return value if largest else -value
    bits = dtype.int_bitwidth - dtype.is_int_signed()
    if largest:
        return 2**bits - 1
    return -(2**bits) if dtype.is_int_signed() else 0


@triton.jit
def get_dtype_max(dtype: tl.constexpr):
    return _extreme(dtype, True, False)


@triton.jit
def get_dtype_min(dtype: tl.constexpr):
    return _extreme(dtype, False, False)


@triton.jit
def _get_iinfo_val(dtype: tl.constexpr, return_max: tl.constexpr):
    return _extreme(dtype, return_max, True)


@triton.jit
def _get_finfo_val(dtype: tl.constexpr, return_max: tl.constexpr):
    return _extreme(dtype, return_max, True)


@triton.jit
def program_id(axis: tl.constexpr):
    return tl.program_id(axis).to(tl.int64)


@triton.jit
def num_programs(axis: tl.constexpr):
    return tl.num_programs(axis).to(tl.int64)


@triton.jit
def reduce_any(a, b):
    return a or b


@triton.jit
def reduce_all(a, b):
    return a and b


@triton.jit
def minimum_with_index_tie_break_right(a_value, a_index, b_value, b_index):
    # NaN is unequal to itself, and the least of all; of equals the higher index is taken.
    a_nan, b_nan = a_value != a_value, b_value != b_value
    less = (a_value < b_value) | (a_nan & (b_nan == 0))
    same = (a_value == b_value) | (a_nan & b_nan)
    first = less | (same & (a_index > b_index))
    return tl.where(first, a_value, b_value), tl.where(first, a_index, b_index)


@triton.jit
def maximum_with_index_tie_break_right(a_value, a_index, b_value, b_index):
    a_nan, b_nan = a_value != a_value, b_value != b_value
    more = (a_value > b_value) | (a_nan & (b_nan == 0))
    same = (a_value == b_value) | (a_nan & b_nan)
    first = more | (same & (a_index > b_index))
    return tl.where(first, a_value, b_value), tl.where(first, a_index, b_index)


@triton.jit
def trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@triton.jit
def div_rn(x, y):
    return tl.div_rn(x, y)


@triton.jit
def div_rz(x, y):
    return trunc(x / y)


@triton.jit
def fmod(x, y):
    return x - y * trunc(x / y)


@triton.jit
def uint_to_uniform_float(x):
    return tl.uint_to_uniform_float(x)


@triton.jit
def uniform(seed, philox_offset, offset):
    # One block of four numbers for each offset, of the counter (philox_offset + offset).
    low = (philox_offset & 0xFFFFFFFF).to(tl.uint32) + offset
    high = ((philox_offset >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = low * 0
    a, b, c, d = tl.philox(seed, low, zero + high, zero, zero)
    return (
        tl.uint_to_uniform_float(a),
        tl.uint_to_uniform_float(b),
        tl.uint_to_uniform_float(c),
        tl.uint_to_uniform_float(d),
    )


@triton.constexpr_function
def _log2(n):
    return int(n).bit_length() - 1


@triton.jit
def argsort(x, ids, dim: tl.constexpr, descending: tl.constexpr):
    # A bitonic network on a vector. Beside the values goes where they were, so that the order of
    # equals is theirs; NaN is the largest.
    tl.static_assert(len(x.shape) == 1, "argsort of a vector")
    stages: tl.constexpr = _log2(x.shape[0])
    lane = tl.arange(0, x.shape[0])
    origin = lane
    for stage in tl.static_range(1, stages + 1):
        for back in tl.static_range(1, stage + 1):
            partner = lane ^ (1 << (stage - back))
            value, source = tl.gather(x, partner, 0), tl.gather(origin, partner, 0)
            x_nan, value_nan = x != x, value != value
            if descending:
                before = (x > value) | (x_nan & (value_nan == 0))
            else:
                before = (x < value) | (value_nan & (x_nan == 0))
            same = (x == value) | (x_nan & value_nan)
            before = before | (same & (origin < source))
            lower = (lane & (1 << (stage - back))) == 0
            forward = ((lane >> stage) & 1) == 0
            if stage == stages:
                forward = lane >= 0
            stays = before == (lower == forward)
            x, origin = tl.where(stays, x, value), tl.where(stays, origin, source)
    return x, tl.gather(ids, origin, 0)
