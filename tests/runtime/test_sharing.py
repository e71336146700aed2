"""Arrays that share memory with torch and numpy, and numpy's array protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError


def same(found: meta.ndarray, expected: Any, dtype: str | None = None) -> None:
    """Assert equal values and, if given, the dtype."""
    np.testing.assert_array_equal(found.numpy(), np.asarray(expected))
    assert found.shape == np.asarray(expected).shape
    if dtype is not None:
        assert found.dtype == dtype


class TestSharing:
    def test_torch(self) -> None:
        tensor = torch.zeros(3)
        x = meta.from_dlpack(tensor)
        tensor[0] = 1
        same(x, [1, 0, 0])
        x.update([4, 5, 6])
        assert tensor.tolist() == [4, 5, 6]
        back = torch.from_dlpack(x)
        back[1] = 9
        assert tensor.tolist() == [4, 9, 6] and x.torch().data_ptr() == tensor.data_ptr()

    def test_numpy(self) -> None:
        values = np.zeros(3)
        x = meta.from_dlpack(values)
        values[0] = 1
        same(x, [1, 0, 0], "float64")
        x.update([4, 5, 6])
        assert values.tolist() == [4, 5, 6]
        np.asarray(x, copy=False)[2] = 7
        assert values.tolist() == [4, 5, 7] and np.from_dlpack(x).tolist() == [4, 5, 7]

    def test_strided_and_requiring_grad(self) -> None:
        tensor = torch.zeros(2, 3)
        x = meta.from_dlpack(tensor.T)
        assert x.strides == (1, 3)
        x.update(np.arange(6).reshape(3, 2))
        assert tensor.tolist() == [[0, 2, 4], [1, 3, 5]]
        leaf = torch.zeros(2, requires_grad=True)
        meta.from_dlpack(leaf).update([1, 2])
        assert leaf.tolist() == [1, 2]
        y = meta.array([1.0])
        y.requires_grad = True
        assert torch.from_dlpack(y).tolist() == [1.0]

    def test_refusals(self) -> None:
        read_only = np.zeros(2)
        read_only.flags.writeable = False
        for wrong in (
            [1],
            None,
            read_only,
            np.ones(2, complex),
            np.ones(2, ">f4"),
            np.zeros(2, "O"),
        ):
            with pytest.raises(ArgumentError):
                meta.from_dlpack(wrong)

    def test_arguments_of_operators_are_not_copied(self) -> None:
        tensor = torch.ones(4)
        assert meta.reshape(tensor, (2, 2)).torch().data_ptr() == tensor.data_ptr()

    def test_array_protocol(self) -> None:
        x = meta.array([1.0, 2.0])
        copied = np.asarray(x)
        copied[0] = 9
        same(x, [1, 2])
        assert np.asarray(x, dtype="f8").dtype == "f8" and np.array(x).dtype == "f4"
        seen = np.asarray(x, copy=False)
        seen[0] = 5
        same(x, [5, 2])
        half = x.to(dtype="bfloat16")
        half.__array__(copy=False)[0] = 7
        same(half, [7, 2], "bfloat16")
        assert half.__array__("f4").dtype == "f4"
        with pytest.raises(ArgumentError, match="without a copy"):
            x.__array__("f8", copy=False)
        numbers = x.numpy()
        numbers[:] = 0
        same(x, [5, 2])

    def test_numpy_functions_see_values(self) -> None:
        assert np.sum(meta.array([1.0, 2.0]).numpy()) == 3 and np.sin(meta.array([0.0])) == [0.0]
