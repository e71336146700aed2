"""Operators that draw random numbers, in tensor expressions. The bits come from Philox.

A kernel takes its key at run time: from a tensor, or as a number drawn when it is launched.
"""

from tvm import te, tirx

from meta import op
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.tvm import tvm as dialect
from meta.dialect.tvm.build import deferred
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, compute
from meta.dialect.tvm.elementwise import cast, computing
from meta.dialect.tvm.launch import Launch
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.target import for_device
from meta.runtime.philox import keep_threshold, philox4x32, split


def _constant(value):
    return tirx.const(value, "uint64")


def _let(value, body):
    variable = tirx.Var("t", value.ty)
    return tirx.Let(variable, value, body(variable))


def _word(i, key):
    """Return random word i of a key: lane i % 4 of block i // 4. Both are uint64."""
    zero, lane = _constant(0), (i & 3).astype("int32")

    def finish(*lanes):
        low = tirx.Select(lane == 0, lanes[0], lanes[1])
        return tirx.Select(lane < 2, low, tirx.Select(lane == 2, lanes[2], lanes[3]))

    counter = (*split(i >> 2, _constant), zero, zero)
    return philox4x32(counter, split(key, _constant), finish, _constant, _let)


def _position(shape, index):
    """Return the row-major position of an index as uint64."""
    position = _constant(0)
    for extent, i in zip(shape, index, strict=True):
        position = position * tirx.Cast("uint64", extent) + i.astype("uint64")
    return position


def _kept(x, mask, p):
    """Return mask ? x / (1 - p) : 0."""
    wide = computing(x.dtype)
    scale, zero = tirx.const(1 / (1 - p), wide), tirx.const(0, x.dtype)

    def element(*i):
        return tirx.Select(mask(*i), cast(cast(x(*i), wide) * scale, x.dtype), zero)

    return te.compute(x.shape, element, name="kept")


def _mask(shape, key, p):
    """Return where elements are kept."""
    threshold = _constant(keep_threshold(p))

    def keep(*i):
        return _word(_position(shape, i), key.astype("uint64")) >= threshold

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
