"""Random numbers on the CPU: bits of the compiled kernels and of ATen, by NumPy; threads."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.errors import MetaWarning
from meta.dialect.torch import llvm_random
from meta.dialect.torch.random import dropout_mask

WORD = 0xFFFFFFFF
KEYS = 0, 0x0123456789ABCDEF, 2**63 - 1, -1
BEGINS = 0, 2**32 - 9, 2**62
SIZES = 0, 1, 3, 63, 64, 65, 1000


def philox(begin, blocks, key):
    """Return the words of blocks, [blocks, 4], as uint64."""
    at = np.arange(blocks, dtype=np.uint64) + np.uint64(begin)
    c = [at & np.uint64(WORD), at >> np.uint64(32), np.zeros_like(at), np.zeros_like(at)]
    k = [key & WORD, key >> 32 & WORD]
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        low, half = np.uint64(WORD), np.uint64(32)
        first, second = q >> half ^ c[1] ^ np.uint64(k[0]), p >> half ^ c[3] ^ np.uint64(k[1])
        c = [first, q & low, second, p & low]
        k = [k[0] + 0x9E3779B9 & WORD, k[1] + 0xBB67AE85 & WORD]
    return np.stack(c, 1)


def top53(words):
    return (words[:, 0::2] >> np.uint64(5) << np.uint64(26)) | words[:, 1::2] >> np.uint64(6)


def uniform(words, wide, low, high):
    unit = top53(words) / 2.0**53 if wide is np.float64 else (words >> np.uint64(8)) / 2.0**24
    y = unit.astype(wide) * wide(high - low) + wide(low)
    return np.where(y >= wide(high), wide(low), y).ravel()


def normal(words, wide, mean, std):
    """Return normal numbers, each step rounded; coefficients are those of the series."""
    double = wide is np.float64
    bits = 53 if double else 32
    whole = top53(words).astype(np.int64) if double else words.astype(np.int64)
    radius, turn = whole[:, 0::2], whole[:, 1::2]
    mantissa, exponent = np.frexp((radius + 1).astype(wide))  # [1/2, 1)
    small = mantissa < wide(math.sqrt(0.5))
    mantissa = np.where(small, mantissa * wide(2), mantissa)
    exponent = exponent - small.astype(exponent.dtype) - bits
    s = (mantissa - wide(1)) / (mantissa + wide(1))
    log = exponent.astype(wide) * wide(math.log(2)) + s * polynomial(
        s * s, [2 / (2 * k + 1) for k in range(11 if double else 5)]
    )
    quarter = (turn + (1 << bits - 3)) >> bits - 2
    angle = (turn - (quarter << bits - 2)).astype(wide) * wide(2 * math.pi / 2**bits)
    z, n = angle * angle, 10 if double else 5
    sin = [(-1) ** k / math.factorial(2 * k + 1) for k in range(1, n - 1)]
    cos = [(-1) ** k / math.factorial(2 * k) for k in range(1, n)]
    pair = (z * polynomial(z, cos) + wide(1), angle * (z * polynomial(z, sin)) + angle)
    turned = [pair, (-pair[1], pair[0]), (-pair[0], -pair[1]), (pair[1], -pair[0])]
    radius = np.sqrt(log * wide(-2))
    drawn = [radius * np.choose(quarter % 4, [t[i] for t in turned]) for i in (0, 1)]
    return (np.stack(drawn, -1) * wide(std) + wide(mean)).ravel()


def polynomial(x, ascending):
    y = x * x.dtype.type(ascending[-1]) + x.dtype.type(ascending[-2])
    for c in ascending[-3::-1]:
        y = y * x + x.dtype.type(c)
    return y


@pytest.fixture(params=["compiled", "ATen"])
def drawn_by(request, monkeypatch):
    if request.param == "ATen":
        monkeypatch.setattr(llvm_random, "kernels", dict)
    else:
        assert llvm_random.kernels(), "the kernels are not compiled"
    return request.param


def draw(random, key, size, *args):
    return random(meta.array(torch.tensor([key])), (size,), *args).torch().numpy()


@pytest.mark.parametrize("wide", [np.float32, np.float64])
@pytest.mark.parametrize("key", KEYS)
def test_bits_are_those_of_numpy(drawn_by, key, wide) -> None:
    name, each = wide.__name__, 2 if wide is np.float64 else 4
    for size in SIZES:
        words = philox(0, -(-size // each), key)
        for low, high in ((0.0, 1.0), (-1.3, -0.1), (0.25, 0.25)):
            found = draw(op.random_uniform, key, size, low, high, name)
            assert np.array_equal(found, uniform(words, wide, low, high)[:size])
        for mean, std in ((0.0, 1.0), (0.7, 0.02)):
            found = draw(op.random_normal, key, size, mean, std, name)
            assert np.array_equal(found, normal(words, wide, mean, std)[:size])


@pytest.mark.parametrize("begin", BEGINS)
def test_counters_have_64_bits(begin: int) -> None:
    key, out = KEYS[1], torch.empty(1001)
    llvm_random.fill("normal_float32", out, key, 4, (1.0, 0.0), begin)
    assert np.array_equal(out.numpy(), normal(philox(begin, 251, key), np.float32, 0, 1)[:1001])
    mask = dropout_mask(torch.tensor([key]), 4 * begin + 3, (999,), 0.3)
    words = philox(begin, 251, key).ravel()[3:1002]
    assert np.array_equal(mask.numpy(), words >= round(0.3 * 2**32))


@pytest.mark.parametrize(
    ("low", "last"), [(-3, 9), (0, 0), (-(2**63), 2**63 - 1), (5, 2**62 + 77), (0, 2**32 - 1)]
)
def test_integers_are_those_of_python(drawn_by, low: int, last: int) -> None:
    for size in (0, 1, 17, 100):
        words = philox(0, size, KEYS[1]).tolist()
        whole = [sum(w << 32 * i for i, w in enumerate(block)) for block in words]
        expected = [low + (x * (last - low + 1) >> 128) for x in whole]
        assert draw(op.random_integers, KEYS[1], size, low, last).tolist() == expected
    if last < 128:
        found = draw(op.random_integers, KEYS[1], size, low, last, "int8")
        assert found.dtype == np.int8 and found.tolist() == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_float32_rounded(drawn_by, dtype: str) -> None:
    key = meta.array(torch.tensor([7]))
    size, half = (300_001,), getattr(torch, dtype)
    single = op.random_normal(key, size, 0.1, 2.0).torch().to(half)
    assert torch.equal(op.random_normal(key, size, 0.1, 2.0, dtype).torch(), single)
    single = op.random_uniform(key, size, 0.5, 0.7).torch().to(half)
    end = torch.tensor(0.7, dtype=half)
    expected = torch.where(single >= end, torch.tensor(0.5, dtype=half), single)
    assert torch.equal(op.random_uniform(key, size, 0.5, 0.7, dtype).torch(), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_have_their_distribution(dtype: str) -> None:
    """The largest distance of distribution functions (Kolmogorov and Smirnov), and moments."""
    count = 1_000_000
    meta.random.seed(3)
    u = meta.random.uniform(count, dtype=dtype).torch().double().sort()[0]
    z = meta.random.normal(count, dtype=dtype).torch().double()
    ranks = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    for sorted_, name in ((u, "uniform"), (torch.special.ndtr(z.sort()[0]), "normal")):
        assert (sorted_ - ranks).abs().max() < 1.95 / math.sqrt(count), name  # of 0.1 %
    for power, moment, deviation in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - moment) < 5 * math.sqrt(deviation / count)
    pairs = z.view(-1, 2)
    assert abs((pairs[:, 0] * pairs[:, 1]).mean()) < 5 / math.sqrt(count / 2)


def test_threads_share_large_arrays_only(monkeypatch) -> None:
    wanted = []
    own = llvm_random.ThreadPoolExecutor

    def pool(count, **options):
        wanted.append(count)
        return own(count, **options)

    monkeypatch.setattr(llvm_random, "ThreadPoolExecutor", pool)
    before, results = torch.get_num_threads(), []
    try:
        for threads, grain in ((1, 1000), (3, 1000), (3, 2**20)):
            monkeypatch.setattr(llvm_random, "GRAIN", grain)
            torch.set_num_threads(threads)
            results.append(draw(op.random_normal, 5, 10_007, 0.0, 1.0, "float64"))
    finally:
        torch.set_num_threads(before)
    assert wanted == [3]
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_a_draw_does_not_import_tvm() -> None:
    code = "import sys, meta; meta.random.normal(3); print('tvm' in sys.modules)"
    for _ in range(2):  # the first compiles the kernels where there are none in the cache
        run = [sys.executable, "-c", code]
        printed = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert printed == "False\n"


def test_what_cannot_be_compiled_is_drawn_by_aten_with_a_warning(monkeypatch) -> None:
    def refuse(target):
        raise OSError("no files in memory")

    expected = draw(op.random_normal, 5, 1000, 0.0, 1.0)
    monkeypatch.setattr(llvm_random, "libraries", refuse)
    llvm_random.kernels.cache_clear()
    try:
        with pytest.warns(MetaWarning, match="drawn by ATen.*no files in memory"):
            found = draw(op.random_normal, 5, 1000, 0.0, 1.0)
    finally:
        llvm_random.kernels.cache_clear()
    assert np.array_equal(found, expected)
