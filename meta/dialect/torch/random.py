"""Random numbers and dropout on ATen."""

import math
from math import prod

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import kernels
from meta.runtime import random
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
"""Blocks that are computed at a time on a CPU, so that what is between stays in its cache."""


def _lanes(first, count, key, device):
    """Return the four random words of blocks from ``first`` on, as int64 vectors.

    key: an int or a 0-d tensor.
    """
    block = torch.arange(first, first + count, device=device)
    zero = torch.zeros_like(block)
    split = IN_64_BITS.split
    return philox4x32((*split(block), zero, zero), split(key), lambda *words: words)


def _fill(out, key, each, make, begin=0):
    """Fill ``out``, ``each`` elements per block: ``make(*lanes)`` is of shape [blocks, each].

    begin: the number of the first block.
    """
    flat = out.view(-1)
    blocks = -(-len(flat) // each)
    step = PIECE if out.device.type == "cpu" else max(blocks, 1)
    for first in range(0, blocks, step):
        count = min(step, blocks - first)
        part = flat[first * each : (first + count) * each]
        lanes = _lanes(begin + first, count, key, out.device)
        part.copy_(make(*lanes).flatten()[: len(part)])


def dropout_mask(key, first, shape, p, device):
    """Return what is kept of the elements from ``first`` on of a larger array, as a mask."""
    skip = first % 4
    mask = torch.empty(skip + prod(shape), dtype=torch.bool, device=device)
    _fill(mask, key, 4, lambda *lanes: torch.stack(lanes, 1) >= dropout_threshold(p), first // 4)
    return mask[skip:].view(shape)


@dialect.kernel(op.dropout_train)
def dropout_train(x, p, in_states):
    key = random.default.key() if in_states is None else in_states.reshape(())
    mask = dropout_mask(key, 0, x.shape, p, x.device)
    y = torch.where(mask, x * (1 / (1 - p)), 0.0)
    return y, mask, x.new_empty(0, dtype=torch.uint8)


kernels(
    {
        op.dropout_dx: lambda dy, mask, p: torch.where(mask, dy * (1 / (1 - p)), 0.0).contiguous(),
        op.dropout_mask: lambda key, shape, p: dropout_mask(
            key.reshape(()), 0, shape, p, key.device
        ),
        op.random_key: lambda device: torch.tensor([random.default.key()], device=device),
    }
)


def _bits53(a, b):
    """Return the 53 upper bits of two words, as integers."""
    return a >> 5 << 26 | b >> 6


def _unit(*lanes):
    """Return numbers uniform on [0, 1) in float32."""
    return (torch.stack(lanes, 1) >> 8).to(torch.float32) * 2.0**-24


def _unit_double(a, b, c, d):
    return torch.stack((_bits53(a, b), _bits53(c, d)), 1).to(torch.float64) * 2.0**-53


def _box_muller(radius, angle):
    """Return normal numbers of numbers uniform on (0, 1] and [0, 1)."""
    radius, angle = torch.sqrt(-2 * torch.log(radius)), angle * (2 * math.pi)
    return torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), -1).flatten(1)


def _bell(a, b, c, d):
    """Return normal numbers in float32."""
    first, second = (torch.stack(pair, 1) for pair in ((a + 1, c + 1), (b, d)))
    return _box_muller(*(words.to(torch.float32) * 2.0**-32 for words in (first, second)))


def _bell_double(a, b, c, d):
    words = (_bits53(a, b) + 1, _bits53(c, d))
    return _box_muller(*(w.to(torch.float64)[:, None] * 2.0**-53 for w in words))


@dialect.kernel(op.random_uniform)
def random_uniform(key, low, high, out):
    each, make = (2, _unit_double) if out.dtype == torch.float64 else (4, _unit)
    _fill(out, key.reshape(()), each, lambda *lanes: make(*lanes) * (high - low) + low)
    out.masked_fill_(out >= high, low)


@dialect.kernel(op.random_normal)
def random_normal(key, mean, std, out):
    each, make = (2, _bell_double) if out.dtype == torch.float64 else (4, _bell)
    _fill(out, key.reshape(()), each, lambda *lanes: make(*lanes) * std + mean)


@dialect.kernel(op.random_integers)
def random_integers(key, low, last, out):
    _fill(out, key.reshape(()), 1, lambda *lanes: multiple(lanes, last - low + 1) + low)


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
