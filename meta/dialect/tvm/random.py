"""Operators that draw random numbers, in tensor expressions. The bits come from Philox.

A kernel takes its key at run time: from a tensor, or as a number drawn when it is launched.
"""

import math

from tvm import te, tirx

from meta import op
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.tvm import tvm as dialect
from meta.dialect.tvm.broadcast import cast, computing
from meta.dialect.tvm.build import deferred
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, compute
from meta.dialect.tvm.launch import Launch
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.target import for_device
from meta.dialect.tvm.transform import flat_index
from meta.runtime.philox import keep_threshold, philox4x32, split


def _constant(value):
    return tirx.const(value, "uint64")


def _let(value, body):
    variable = tirx.Var("t", value.ty)
    return tirx.Let(variable, value, body(variable))


def _word(position, small, key):
    """Return random word number ``position`` of a key: lane i % 4 of block i // 4, as uint64.

    Both are taken of the index itself, not of a uint64: of four neighbours the compiler then sees
    that the block is one, and computes it once. ``small``: it has 31 bits, and the block no high
    word.
    """
    two = tirx.const(2, position.ty.dtype)
    block, lane = tirx.shift_right(position, two), tirx.bitwise_and(position, two + 1)
    zero = _constant(0)
    low = block.astype("uint32") if small else block
    words = split(low.astype("uint64"), _constant)
    counter = (words[0], zero if small else words[1], zero, zero)

    def finish(*lanes):
        first = tirx.Select(lane == 0, lanes[0], lanes[1])
        return tirx.Select(lane < 2, first, tirx.Select(lane == 2, lanes[2], lanes[3]))

    return philox4x32(counter, split(key, _constant), finish, _constant, _let)


def _kept(x, mask, p):
    """Return mask ? x / (1 - p) : 0."""
    wide = computing(x.dtype)
    scale, zero = tirx.const(1 / (1 - p), wide), tirx.const(0, x.dtype)

    def element(*i):
        return tirx.Select(mask(*i), cast(cast(x(*i), wide) * scale, x.dtype), zero)

    return te.compute(x.shape, element, name="kept")


def _mask(shape, key, p):
    """Return where elements are kept."""
    # Signed: of a comparison of uint64 TVM makes a division by the constant.
    threshold = tirx.const(keep_threshold(p), "int64")
    small = math.prod(int(extent) for extent in shape) < 2**31

    def keep(*i):
        position = tirx.const(0, "int32") + flat_index(i, shape)
        return _word(position, small, key.astype("uint64")).astype("int64") >= threshold

    return te.compute(shape, keep, name="mask")


@dialect.op(op._contrib_dropout)
def _contrib_dropout(call):
    if any(not t.is_static for t in call.tensors()):
        raise Unsupported("symbolic shapes are compiled by the VM only")
    x = te.placeholder(call.args.x.shape, call.args.x.dtype, "x")
    states = call.args.in_states
    if states is None:
        source = key = te.var("key", "int64")
    else:
        source = te.placeholder(states.shape, states.dtype, "in_states")
        key = source(*[0] * states.ndim)
    mask = _mask(x.shape, key, call.args.p)
    nothing = te.compute((0,), lambda _: tirx.const(0, "uint8"), name="reserve_space")
    outputs = [_kept(x, mask, call.args.p), mask, nothing]
    function = prim_func([x, source], outputs, in_place=False)
    launch = Launch(key_after=1 if states is None else None)
    return OpEnv(deferred(function, for_device(call.device), launch), allocates=False)


@compute(op._contrib_dropout_dx, ELEMWISE)
def _contrib_dropout_dx(dy, mask, p):
    return _kept(dy, mask, p)


@compute(op.dropout_mask, BROADCAST)
def dropout_mask(key, shape, p):
    return _mask(shape, key(*[0] * len(key.shape)), p)


@dialect.op(op.random_key)
def random_key(call):
    key = te.var("key", "int64")
    output = te.compute((1,), lambda _: key, name="random_key")
    function = prim_func([key], [output], in_place=False)
    return OpEnv(deferred(function, for_device(call.device), Launch(key_after=0)), allocates=False)
