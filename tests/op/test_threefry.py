"""The splittable generator: the published test vector, Relay's layout, and errors."""

import numpy as np
import pytest

import meta
from meta.base.errors import TypeInferError
from tests.op.random import threefry


def start(seed: int):
    return meta.array(np.array([seed, 0, 0, 0, 0, 0, 0, 0, 2**63, 0], np.uint64))


def test_the_rounds_are_those_of_threefry() -> None:
    """Random123's vector for zeros, which has one subkey more, checks what the kernels agree with.

    https://github.com/DEShawResearch/random123, tests/kat_vectors, threefry4x64 20.
    """
    assert threefry([0] * 4, [0] * 4, last_subkey=True) == [
        0x09218EBDE6C85537,
        0x55941F5266D86105,
        0x4BD25E16282434DC,
        0xEE29EC846BD2E40B,
    ]


def test_states_and_halves_give_other_numbers() -> None:
    key, first = meta.threefry_generate(start(1), (8,))
    _, second = meta.threefry_generate(key, (8,))
    left, right = meta.threefry_split(key)
    drawn = [first, second, *(meta.threefry_generate(k, (8,))[1] for k in (left, right))]
    assert key.numpy()[7] == 8 and left.numpy()[8] == right.numpy()[8] == 2**62
    assert right.numpy()[4] == 2**63
    # The left half is the same path but for its length, so it continues as the whole would have.
    assert len({x.numpy().tobytes() for x in drawn}) == 3
    assert second.numpy().tolist() == drawn[2].numpy().tolist()


@pytest.mark.parametrize("key", [np.zeros(9, np.uint64), np.zeros(10, np.int64)])
def test_only_a_state_is_a_key(key) -> None:
    with pytest.raises(TypeInferError, match="no state of the generator"):
        meta.threefry_split(meta.array(key))
    with pytest.raises(TypeInferError, match="no state of the generator"):
        meta.threefry_generate(meta.array(key), 4)


def test_a_shape_has_no_negative_extents() -> None:
    with pytest.raises(TypeInferError, match="no negative extents"):
        meta.threefry_generate(start(1), (2, -1))
