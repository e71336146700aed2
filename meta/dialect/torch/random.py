"""Operators that draw random numbers, on ATen. The bits come from Philox, as on every dialect."""

from math import prod

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.runtime import random
from meta.runtime.philox import keep_threshold, philox4x32, split


def _words(count, key, device):
    """Return the first words of a key, as int64; word i is lane i % 4 of block i // 4."""
    block = torch.arange((count + 3) // 4, device=device)
    zero = torch.zeros_like(block)
    counter = (*split(block), zero, zero)
    words = philox4x32(counter, split(key), lambda *lanes: torch.stack(lanes, 1))
    return words.flatten()[:count]


def _mask(key, shape, p, device):
    return (_words(prod(shape), key, device) >= keep_threshold(p)).reshape(shape)


@dialect.kernel(op._contrib_dropout)
def _contrib_dropout(x, p, in_states):
    key = random.default.key() if in_states is None else in_states.reshape(())
    mask = _mask(key, x.shape, p, x.device)
    y = torch.where(mask, x * (1 / (1 - p)), 0.0)
    return y, mask, x.new_empty(0, dtype=torch.uint8)


@dialect.kernel(op._contrib_dropout_dx)
def _contrib_dropout_dx(dy, mask, p):
    return torch.where(mask, dy * (1 / (1 - p)), 0.0).contiguous()


@dialect.kernel(op.dropout_mask)
def dropout_mask(key, shape, p):
    return _mask(key.reshape(()), shape, p, key.device)


@dialect.kernel(op.random_key)
def random_key(device):
    return torch.tensor([random.default.key()], device=device)
