"""Random numbers from the splittable generator, in tensor expressions."""

from math import prod

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from meta import op
from meta.dialect.tvm.compute import ELEMWISE, OPAQUE, compute
from meta.dialect.tvm.transform import flat_index
from meta.runtime.threefry import (
    ROUNDS,
    STATE_WORDS,
    after,
    counter,
    counter_of_ones,
    rounds,
    split_state,
    subkeys,
    with_room,
)


class Uint64:
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


WORDS = Uint64()


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

    def loops(ins, outs):
        with IRBuilder() as builder:
            (given, words), result = map(T.buffer_proxy, ins), T.buffer_proxy(outs[0])
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
            return builder.get()

    return te.extern([(blocks, 4)], [counters, keys], loops, dtype="uint64", name=name)


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
        return [following, te.compute(shape, lambda *_: tirx.const(0, "uint64"), name="numbers")]
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
