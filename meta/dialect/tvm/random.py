"""Random numbers and dropout in TE.

A kernel takes its key at run time: from a tensor, or as a number drawn when it is launched.
"""

from math import prod

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from meta import op
from meta.dialect.core import Unsupported
from meta.dialect.tvm import tvm as dialect
from meta.dialect.tvm.broadcast import cast, computing, let
from meta.dialect.tvm.build import deferred
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, OPAQUE, compute
from meta.dialect.tvm.index import flat_index, hand_built, zeros
from meta.dialect.tvm.launch import LaunchPlan
from meta.dialect.tvm.lower import prim_func
from meta.runtime.philox import (
    ROUNDS,
    STATE_WORDS,
    Words,
    after,
    counter,
    counter_of_ones,
    dropout_threshold,
    philox4x32,
    rounds,
    split_state,
    subkeys,
    with_room,
)


class _Uint64:
    """The arithmetic of words as uint64 expressions."""

    def add(self, a, b):
        """Add the halves: TVM promises LLVM that no sum overflows."""
        word = self.constant(0xFFFFFFFF)
        low = (a & word) + (b & word)
        return ((a >> 32) + (b >> 32) + (low >> 32)) << 32 | (low & word)

    def constant(self, value):
        return tirx.const(value, "uint64")

    def select(self, condition, then, other):
        return tirx.Select(condition, then, other)

    def above(self, a, b):
        return a > self.constant(b)

    def is_zero(self, a):
        return a == self.constant(0)


WORDS = _Uint64()


class _Uint32(Words):
    """Words as uint32 expressions: a GPU multiplies two of them to 64 bits in one instruction. Sums
    are taken of 64 bits, as TVM promises LLVM that none overflows.
    """

    def low(self, value):
        return value.astype("uint32")

    def high(self, value):
        return tirx.shift_right(value, tirx.const(32, "uint64")).astype("uint32")

    def product(self, word, number):
        # The mask, which compilers drop, keeps TVM from moving the product into the 32 bits.
        wide = word.astype("uint64") & tirx.const(0xFFFFFFFF, "uint64")
        return wide * tirx.const(number, "uint64")

    def sum(self, word, number):
        return (word.astype("uint64") + tirx.const(number, "uint64")).astype("uint32")

    def let(self, value, body):
        return let(value, body)


UINT32 = _Uint32()


def _word(position, small, key):
    """Return random word number ``position`` of a key, as uint32: lane i % 4 of block i // 4.

    Both are quotients of the index itself: TVM takes what is the same for several neighbours out of
    them, so that the compiler sees that their block is one, and computes it once. ``small``: it has
    31 bits, and the block no high word.
    """
    block, lane = tirx.floordiv(position, 4), tirx.floormod(position, 4)
    zero = tirx.const(0, "uint32")
    words = (block.astype("uint32"), zero) if small else UINT32.split(block.astype("uint64"))

    def finish(*lanes):
        first = tirx.Select(lane == 0, lanes[0], lanes[1])
        return tirx.Select(lane < 2, first, tirx.Select(lane == 2, lanes[2], lanes[3]))

    return philox4x32((*words, zero, zero), UINT32.split(key), finish, UINT32)


def _dropout_kernel(x, mask, p):
    """Return mask ? x / (1 - p) : 0."""
    wide = computing(x.dtype)
    scale, zero = tirx.const(1 / (1 - p), wide), tirx.const(0, x.dtype)

    def element(*i):
        return tirx.Select(mask(*i), cast(cast(x(*i), wide) * scale, x.dtype), zero)

    return te.compute(x.shape, element, name="kept")


def mask_stage(shape, key, p):
    """Return a stage of where elements of a shape are kept, by a key that is a number."""
    threshold, top = dropout_threshold(p), 1 << 31
    size = prod(int(extent) for extent in shape)

    def keep(*i):
        if size == 0 or threshold == 1 << 32:  # no element, of which TVM asks all the same, or none
            return tirx.const(False, "bool")
        position = tirx.const(0, "int32") + flat_index(i, shape)
        word = _word(position, size < 2**31, key.astype("uint64"))
        # Signed, by the highest bit: of unsigned numbers TVM makes a division by the constant.
        signed = tirx.reinterpret("int32", word ^ tirx.const(top, "uint32"))
        return signed >= tirx.const(threshold - top, "int32")

    return te.compute(shape, keep, name="mask")


@dialect.op(op.dropout_train)
def dropout_train(call):
    if any(not t.is_static for t in call.tensors()):
        raise Unsupported("symbolic shapes are compiled by the VM only")
    x = te.placeholder(call.args.x.shape, call.args.x.dtype, "x")
    states = call.args.in_states
    if states is None:
        source = key = te.var("key", "int64")
    else:
        source = te.placeholder(states.shape, states.dtype, "in_states")
        key = source(*[0] * states.ndim)
    mask = mask_stage(x.shape, key, call.args.p)
    nothing = te.compute((0,), lambda _: tirx.const(0, "uint8"), name="reserve_space")
    outputs = [_dropout_kernel(x, mask, call.args.p), mask, nothing]
    function = prim_func([x, source], outputs)
    return deferred(function, call.device, LaunchPlan(key_after=1 if states is None else None))


@compute(op.dropout_dx, ELEMWISE)
def dropout_dx(dy, mask, p):
    return _dropout_kernel(dy, mask, p)


@compute(op.dropout_mask, BROADCAST)
def dropout_mask(key, shape, p):
    return mask_stage(shape, key(*[0] * len(key.shape)), p)


@dialect.op(op.random_key)
def random_key(call):
    key = te.var("key", "int64")
    output = te.compute((1,), lambda _: key, name="random_key")
    function = prim_func([key], [output])
    return deferred(function, call.device, LaunchPlan(key_after=0))


def _state(key):
    return [key(tirx.const(i, "int32")) for i in range(STATE_WORDS)]


def _pick(i, choices):
    """Return the choice number ``i``."""
    *rest, result = choices
    for k, choice in reversed(list(enumerate(rest))):
        result = tirx.Select(i == k, choice, result)
    return result


def _stage(state, name):
    """Return a stage of the ten words of a state."""
    return te.compute((STATE_WORDS,), lambda i: _pick(i, state), name=name)


def _hash(counter, key, blocks, name):
    """Return a stage [blocks, 4] of the hash of ``counter(block)``.

    The rounds are statements on four cells: as one expression they would double in size with each.
    """
    counters = te.compute((blocks, 4), lambda b, j: _pick(j, counter(b)), name=f"{name}_counter")
    keys = te.compute((4,), lambda j: _pick(j, key), name=f"{name}_key")

    def loops(given, words, result):
        with T.parallel(0, blocks) as b:
            cells = T.buffer_proxy(T.alloc_buffer((4,), "uint64", scope="local"))
            rotated = T.buffer_proxy(T.alloc_buffer((4,), "uint64", scope="local"))
            schedule = subkeys([words[j] for j in range(4)], WORDS)
            for j in range(4):
                cells[j] = given[b, j]
            for number in range(ROUNDS):
                after_round = rounds([cells[j] for j in range(4)], schedule, number, 1, WORDS)
                for j, word in enumerate(after_round):
                    rotated[j] = word
                cells, rotated = rotated, cells
            for j in range(4):
                result[b, j] = cells[j]

    return hand_built([(blocks, 4)], [counters, keys], loops, ["uint64"], name)[0]


def _words(stage):
    return [stage(tirx.const(0, "int32"), tirx.const(k, "int32")) for k in range(4)]


def _not_on_cuda(call):
    if call.device.kind == "cuda":
        return "TVM gives the rounds' uint64 constants to a CUDA kernel, whose launcher takes none"
    return None


@compute(op.threefry_generate, OPAQUE, when=_not_on_cuda)
def threefry_generate(key, out):
    shape = out[1].static_shape
    count = prod(shape)
    old = _state(key)
    hashed = _words(_hash(lambda _: counter_of_ones(WORDS), old[:4], 1, "renewed"))
    room = with_room(old, hashed, count, WORDS)
    words = _state(_stage(room, "state"))
    following = _stage(after(words, count, WORDS), "following")

    def of_block(b):
        return counter(words, tirx.Cast("uint64", b), count, WORDS)

    lanes = _hash(of_block, words[:4], (count + 3) // 4, "lane")

    def number(*i):
        position = flat_index(i, shape)
        return lanes(tirx.indexdiv(position, 4), tirx.indexmod(position, 4))

    if count == 0:
        return [following, zeros(shape, "uint64")]
    if not shape:
        return [following, te.compute((), lambda: _words(lanes)[0], name="numbers")]
    return [following, te.compute(shape, number, name="numbers")]


@compute(op.threefry_split, OPAQUE)
def threefry_split(key):
    old = _state(key)
    hashed = _words(_hash(lambda _: old[4:8], old[:4], 1, "hash"))
    both = split_state(old, hashed, WORDS)
    return [_stage(side, f"side{k}") for k, side in enumerate(both)]


@compute(op.bits_to_uniform, ELEMWISE)
def bits_to_uniform(bits, dtype):
    first, count = (9, 23) if dtype == "float32" else (12, 52)

    def element(*index):
        # Signed: processors turn these into floats, and no constant is above 2**63.
        word = tirx.Cast("int64", tirx.shift_right(bits(*index), tirx.const(first, "uint64")))
        kept = tirx.bitwise_and(word, tirx.const((1 << count) - 1, "int64"))
        # A quotient: TVM writes float64 constants of CUDA code with 15 digits behind the point.
        return tirx.Cast(dtype, kept) / tirx.const(2.0**count, dtype)

    return te.compute(bits.shape, element, name="uniform")
