"""Random numbers and dropout: on the CPU by kernels of `llvm_random`, else on ATen, bit by bit the
same.
"""

from math import prod
from typing import Any

import numpy as np
import torch

from meta import op
from meta.dialect.torch import llvm_random
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import kernels
from meta.runtime import random, variates
from meta.runtime.philox import (
    IN_64_BITS,
    ROUNDS,
    after,
    counter,
    counter_of_ones,
    dropout_threshold,
    multiple,
    philox4x32,
    rounds,
    split_state,
    subkeys,
    with_room,
)

PIECE = 2**14
"""Elements that are computed at a time on a CPU: what is between stays in its cache, and is of so
few elements that ATen starts no threads, whose waiting costs more than the work.
"""


class _Tensors:
    """Real tensors, as `meta.runtime.variates` wants them."""

    def __init__(self, dtype):
        self.dtype = torch.float64 if dtype == torch.float64 else torch.float32
        double = self.dtype == torch.float64
        self.mantissa, self.word = (52, torch.int64) if double else (23, torch.int32)

    def real(self, number):
        return number.to(self.dtype)

    def bits(self, x):
        return x.view(self.word)

    def of_bits(self, bits):
        return bits.view(self.dtype)

    def sqrt(self, x):
        """On a CPU that of NumPy: ATen's is not rounded to nearest."""
        return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else torch.sqrt(x)

    def choose(self, bit, then, other):
        return torch.where(bit != 0, then, other)


def _fill(out, key, each, kernel, parameters, make, begin=0):
    """Fill ``out``, ``each`` elements per block, from the block ``begin`` on; with several keys,
    each part of it for one.

    On the CPU by a kernel of `llvm_random`, as far as it is compiled; of another dtype than its own
    by pieces. Else ``make`` returns the elements of four words, each a matrix with a row for a key,
    in their order.
    """
    keys = torch.tensor([key], device=out.device) if isinstance(key, int) else key.reshape(-1)
    rows = out.view(len(keys), -1) if out.numel() else out.view(len(keys), 0)
    on_cpu = out.device.type == "cpu"
    if on_cpu and llvm_random.kernels():
        for flat, number in zip(rows, keys.tolist(), strict=True):
            _fill_natively(flat, number, each, kernel, parameters, begin)
        return
    blocks = -(-rows.shape[1] // each)
    step = PIECE // each if on_cpu else max(blocks, 1)
    for first in range(0, blocks, step):
        count = min(step, blocks - first)
        part = rows[:, first * each : (first + count) * each]
        words = _words(begin + first, count, keys, out.device)
        part.copy_(torch.stack(make(words), -1).flatten(1)[:, : part.shape[1]])


def _fill_natively(flat, key, each, kernel, parameters, begin):
    own: Any = llvm_random.KERNELS[kernel][2]
    if flat.dtype == own:
        llvm_random.fill(kernel, flat, key, each, parameters, begin)
        return
    step = PIECE // each * each
    for first in range(0, len(flat), step):
        part = flat[first : first + step]
        drawn = torch.empty(-(-len(part) // each) * each, dtype=own)
        llvm_random.fill(kernel, drawn, key, each, parameters, begin + first // each)
        part.copy_(drawn[: len(part)])


def _words(first, count, keys, device):
    """Return the four random words of blocks from ``first`` on, for each key, as int64 matrices."""
    block = torch.arange(first, first + count, device=device).expand(len(keys), count)
    zero = torch.zeros_like(block)
    split = IN_64_BITS.split
    return philox4x32((*split(block), zero, zero), split(keys[:, None]), lambda *words: words)


def dropout_mask(key, first, shape, p):
    """Return what is kept of the elements from ``first`` on of a larger array, as a mask."""
    skip, least = first % 4, dropout_threshold(p)
    mask = torch.empty(skip + prod(shape), dtype=torch.bool, device=key.device)
    _fill(mask, key, 4, "mask", (least,), lambda words: [w >= least for w in words], first // 4)
    return mask[skip:].view(shape)


@dialect.kernel(op.dropout_train)
def dropout_train(x, p, in_states):
    if in_states is None:
        in_states = torch.full((1,), random.default.key(), device=x.device)
    mask = dropout_mask(in_states, 0, x.shape, p)
    y = torch.where(mask, x * (1 / (1 - p)), 0.0)
    return y, mask, x.new_empty(0, dtype=torch.uint8)


kernels(
    {
        op.dropout_dx: lambda dy, mask, p: torch.where(mask, dy * (1 / (1 - p)), 0.0).contiguous(),
        op.dropout_mask: lambda key, shape, p: dropout_mask(key, 0, shape, p),
        op.random_key: lambda device: torch.full((1,), random.default.key(), device=device),
    }
)


def _fill_real(out, key, kind, draw, parameters, finish):
    """Fill a tensor by ``finish(x)`` of numbers ``x``, which ``draw`` returns of four words."""
    reals = _Tensors(out.dtype)
    name = f"{kind}_float{64 if reals.mantissa == 52 else 32}"
    each = 2 if reals.mantissa == 52 else 4
    _fill(out, key, each, name, [float(p) for p in parameters],
          lambda words: [finish(x) for x in draw(words, reals)])  # fmt: skip


@dialect.kernel(op.random_uniform)
def random_uniform(key, low, high, out):
    length = high - low
    _fill_real(out, key, "uniform", variates.uniform, (length, low, high),
               lambda u: u * length + low)  # fmt: skip
    if out.dtype not in (torch.float32, torch.float64) or not llvm_random.kernels():
        out.masked_fill_(out >= high, low)


@dialect.kernel(op.random_normal)
def random_normal(key, mean, std, out):
    _fill_real(out, key, "normal", variates.normal, (std, mean), lambda z: z * std + mean)


@dialect.kernel(op.random_integers)
def random_integers(key, low, last, out):
    count = last - low + 1
    first = (low + 2**63) % 2**64 - 2**63
    digits = (count,) if count < 2**32 else (count & 2**32 - 1, count >> 32)
    name = "integers_below_2_32" if count < 2**32 else "integers"
    _fill(out, key, 1, name, (first, *digits), lambda words: [multiple(words, *digits) + low])


class Int64:
    """The arithmetic of words as int64 tensors."""

    def add(self, a, b):
        return a + b

    def constant(self, value):
        return value - (value >> 63 << 64)  # the int with these 64 bits

    def select(self, condition, then, other):
        return torch.where(condition, then, other)

    def above(self, a, b):
        return (a < 0) | (a > b)

    def is_zero(self, a):
        return a == 0


WORDS = Int64()


def _state(key):
    return list(key.view(torch.int64).unbind())


def _key(state, like):
    words = [torch.as_tensor(w, dtype=torch.int64, device=like.device) for w in state]
    return torch.stack(words).view(torch.uint64)


def _hash(counter, key):
    return rounds(counter, subkeys(key, WORDS), 0, ROUNDS, WORDS)


@dialect.kernel(op.threefry_generate, strided=False)
def threefry_generate(key, shape):
    extents = (shape,) if isinstance(shape, int) else shape
    count = prod(extents)
    old = _state(key)
    state = with_room(old, _hash(counter_of_ones(WORDS), old[:4]), count, WORDS)
    block = torch.arange((count + 3) // 4, device=key.device)
    lanes = _hash(counter(state, block, count, WORDS), state[:4])
    drawn = torch.stack(lanes, 1).flatten()[:count].clone()
    return _key(after(state, count, WORDS), key), drawn.view(torch.uint64).reshape(extents)


@dialect.kernel(op.threefry_split, strided=False)
def threefry_split(key):
    state = _state(key)
    both = split_state(state, _hash(state[4:8], state[:4]), WORDS)
    return tuple(_key(side, key) for side in both)


@dialect.kernel(op.bits_to_uniform)
def bits_to_uniform(bits, dtype, out):
    words = bits.view(torch.int64)
    if dtype == "float32":
        out.copy_((words >> 9) & 0x7FFFFF).mul_(2.0**-23)
    else:
        out.copy_((words >> 12) & (2**52 - 1)).mul_(2.0**-52)
