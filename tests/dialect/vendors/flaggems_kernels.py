"""Kernels that call what vendors' kernels call, and a function of elements."""

from __future__ import annotations

import triton
import triton.language as tl

from meta.dialect.vendors.flaggems.functions import (
    argsort,
    get_dtype_max,
    get_dtype_min,
    maximum_with_index_tie_break_right,
    program_id,
    reduce_any,
    trunc,
    uniform,
)


@triton.jit
def scaled(x, y, factor):
    return x + y * factor


@triton.jit
def split(x, y):
    return x + y, x > y


@triton.jit
def negated(x):
    return -x


@triton.jit
def fill(x, value: tl.constexpr):
    return tl.zeros_like(x) + value


@triton.jit
def sorts(x, values, indices, DESCENDING: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    value, index = argsort(tl.load(x + at), at, 0, descending=DESCENDING)
    tl.store(values + at, value)
    tl.store(indices + at, index)


@triton.jit
def extremes(out):
    tl.store(out, get_dtype_max(out.dtype.element_ty))
    tl.store(out + 1, get_dtype_min(out.dtype.element_ty))


@triton.jit
def uniforms(out, seed, offset, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b, c, d = uniform(seed, offset, at)
    tl.store(out + at, a)
    tl.store(out + N + at, b)
    tl.store(out + 2 * N + at, c)
    tl.store(out + 3 * N + at, d)


@triton.jit
def reductions(x, values, indices, cut, N: tl.constexpr):
    at = tl.arange(0, N)
    row = x + program_id(0) * N
    value, index = tl.reduce((tl.load(row + at), at), 0, maximum_with_index_tie_break_right)
    tl.store(values + program_id(0), value)
    tl.store(indices + program_id(0), index)
    tl.store(cut + program_id(0) * N + at, trunc(tl.load(row + at)))
    anything = tl.reduce((tl.load(row + at) > 2), 0, reduce_any)
    tl.store(indices + tl.num_programs(0) + program_id(0), anything.to(tl.int64))


@triton.jit
def logic(x, y, out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < n
    a = tl.load(x + at, mask=inside, other=0)
    b = tl.load(y + at, mask=inside, other=0)
    both = inside and (a > 0 and b > 0)
    neither = not (a > 0 or b > 0)
    if EVEN and not n == 3:  # noqa: SIM201
        neither = neither or at % 2 == 0
    tl.store(out + at, both.to(tl.int32) + 2 * neither.to(tl.int32), mask=inside)


@triton.jit
def added(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
