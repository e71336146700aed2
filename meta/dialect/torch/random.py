"""Random numbers and dropout on ATen."""

from math import prod

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import kernels
from meta.runtime import random
from meta.runtime.philox import keep_threshold, philox4x32, split
from meta.runtime.threefry import (
    ROUNDS,
    after,
    counter,
    counter_of_ones,
    rounds,
    split_state,
    subkeys,
    with_room,
)


def _words(count, key, device):
    """Return the first words of a key, as int64; word i is lane i % 4 of block i // 4."""
    block = torch.arange((count + 3) // 4, device=device)
    zero = torch.zeros_like(block)
    counter = (*split(block), zero, zero)
    words = philox4x32(counter, split(key), lambda *lanes: torch.stack(lanes, 1))
    return words.flatten()[:count]


def _mask(key, shape, p, device):
    return (_words(prod(shape), key, device) >= keep_threshold(p)).reshape(shape)


@dialect.kernel(op.dropout)
def dropout(x, p, in_states):
    key = random.default.key() if in_states is None else in_states.reshape(())
    mask = _mask(key, x.shape, p, x.device)
    y = torch.where(mask, x * (1 / (1 - p)), 0.0)
    return y, mask, x.new_empty(0, dtype=torch.uint8)


kernels(
    {
        op.dropout_dx: lambda dy, mask, p: torch.where(mask, dy * (1 / (1 - p)), 0.0).contiguous(),
        op.dropout_mask: lambda key, shape, p: _mask(key.reshape(()), shape, p, key.device),
        op.random_key: lambda device: torch.tensor([random.default.key()], device=device),
    }
)


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
