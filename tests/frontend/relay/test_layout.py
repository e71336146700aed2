"""Reading layouts and changing a tensor from one to another."""

import numpy as np
import pytest

import meta
from meta.frontend.core import Unconvertible
from meta.frontend.relay.layout import change_layout, read_layout, to_plain


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def changed(x: np.ndarray, source: str, target: str) -> np.ndarray:
    return change_layout(meta.array(x), source, target).numpy()


def test_read() -> None:
    layout = read_layout("OIHW4i16o2i")
    assert layout.primal == "OIHW"
    assert layout.axes[4:] == (("I", 4), ("O", 16), ("I", 2))
    assert layout.parts("I") == (4, 2)
    assert layout.places("I") == (1, 4, 6)
    assert not layout.is_plain and read_layout("NHWC").is_plain


@pytest.mark.parametrize("text", ["", "NCHWc", "NN", "NHW4c", "NC-HW", "NCHW0c", "nchw", "4"])
def test_no_layout(text: str) -> None:
    with pytest.raises(Unconvertible, match="is no layout"):
        read_layout(text)


def test_permutation() -> None:
    x = numbers(2, 3, 4, 5)
    np.testing.assert_array_equal(changed(x, "NCHW", "NHWC"), x.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(changed(x, "NCHW", "NCHW"), x)


def test_split_and_merge() -> None:
    x = numbers(2, 8, 3, 4)
    blocked = changed(x, "NCHW", "NCHW4c")
    np.testing.assert_array_equal(blocked, x.reshape(2, 2, 4, 3, 4).transpose(0, 1, 3, 4, 2))
    np.testing.assert_array_equal(changed(blocked, "NCHW4c", "NHWC"), x.transpose(0, 2, 3, 1))
    twice = changed(blocked, "NCHW4c", "NCHW2c")
    np.testing.assert_array_equal(twice, changed(x, "NCHW", "NCHW2c"))


def test_parts_nest_in_their_order() -> None:
    x = numbers(16, 8)
    want = np.empty((1, 1, 4, 16, 2), np.float32)
    for o in range(16):
        for i in range(8):
            want[0, 0, i // 2, o, i % 2] = x[o, i]
    np.testing.assert_array_equal(changed(x, "OI", "OI4i16o2i"), want)
    np.testing.assert_array_equal(changed(want, "OI4i16o2i", "OI"), x)


def test_filled_up_with_zeros() -> None:
    x = numbers(1, 3, 2, 2)
    blocked = changed(x, "NCHW", "NCHW4c")
    assert blocked.shape == (1, 1, 2, 2, 4)
    np.testing.assert_array_equal(blocked[..., :3], x.transpose(0, 2, 3, 1)[:, None])
    assert not blocked[..., 3].any()


def test_plain() -> None:
    x = numbers(2, 8, 3, 4)
    blocked = change_layout(meta.array(x), "NCHW", "NCHW4c")
    np.testing.assert_array_equal(to_plain(blocked, "NCHW4c").numpy(), x)


def test_refused() -> None:
    x = meta.array(numbers(2, 3))
    with pytest.raises(Unconvertible, match="has no layout"):
        change_layout(x, "NCHW", "NHWC")
    with pytest.raises(Unconvertible, match="different axes"):
        change_layout(x, "NC", "NW")
