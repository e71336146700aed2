"""Arrays that share memory with torch and numpy, and numpy's array protocol."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.dtype import DTYPES
from meta.base.errors import ArgumentError, GradientError
from tests.runtime.conftest import same


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
        with pytest.raises(GradientError, match=r"meta\.asarray"):
            meta.from_dlpack(leaf)
        meta.from_dlpack(leaf.detach()).update([1, 2])
        assert leaf.tolist() == [1, 2]
        y = meta.array([1.0])
        y.requires_grad = True
        for consumer in (torch.from_dlpack, np.from_dlpack):
            with pytest.raises(GradientError, match="detach"):
                consumer(y)
        assert torch.from_dlpack(y.detach()).tolist() == [1.0]

    def test_refusals(self) -> None:
        read_only = np.zeros(2)
        read_only.flags.writeable = False
        for wrong in (
            [1],
            None,
            read_only,
            np.ones(2, ">f4"),
            np.zeros(2, "O"),
        ):
            with pytest.raises(ArgumentError):
                meta.from_dlpack(wrong)

    def test_memory_that_torch_cannot_describe(self) -> None:
        """torch ends the process, or reads other values; so nothing of it reaches torch."""

        class Other:
            """An exporter that is no array of numpy."""

            def __init__(self, values: Any) -> None:
                self.values = values

            def __dlpack__(self, **options: Any) -> Any:
                return self.values.__dlpack__(**options)

            def __dlpack_device__(self) -> Any:
                return self.values.__dlpack_device__()

        class Old(Other):
            """One of the protocol's first version."""

            def __dlpack__(self, stream: Any = None) -> Any:
                return self.values.__dlpack__()

        backwards = np.arange(4.0)[::-1]
        for wrong in (backwards, np.zeros((2, 3))[:, ::-1], Other(backwards), Old(backwards)):
            with pytest.raises(ArgumentError, match="memory of this form cannot be shared"):
                meta.from_dlpack(wrong)
        read_only = np.zeros(2)
        read_only.flags.writeable = False
        with pytest.raises(ArgumentError, match=r"read-?only"):
            meta.from_dlpack(Other(read_only))
        same(meta.from_dlpack(Other(np.arange(6.0)[::2])), [0, 2, 4])
        same(meta.from_dlpack(Old(np.array(3.0))), 3.0)
        same(meta.from_dlpack(np.zeros((0, 3))), np.zeros((0, 3)))
        same(meta.from_dlpack(np.lib.stride_tricks.as_strided(np.ones(1), (3,), (0,))), [1, 1, 1])

    def test_memory_of_any_form_is_copied(self) -> None:
        fields = np.zeros(3, [("a", "i1"), ("b", "<f4")])
        fields["b"] = [1, 2, 3]
        unaligned = np.frombuffer(bytes(1) + np.float32([1, 2, 3]).tobytes(), np.uint8)[1:]
        for values in (
            np.float32([3, 2, 1])[::-1],
            np.float32([1, 2, 3]).astype(">f4"),
            fields["b"],
            unaligned.view("f4"),
            np.broadcast_to(np.float32([1, 2, 3]), (3,)),
        ):
            same(meta.array(values), [1, 2, 3], "float32")
            same(meta.op.negative(values), [-1, -2, -3], "float32")

    def test_negated_and_conjugated_views(self) -> None:
        """torch keeps a sign beside some tensors, which kernels do not see."""
        x = torch.tensor([1.0, -2.0])
        imaginary = torch.conj(torch.complex(x, x)).imag
        for view in (torch._neg_view(x), imaginary):
            assert view.is_neg()
            same(meta.array(view), [-1, 2])
            same(meta.array(view, "float64"), [-1, 2])
            same(meta.op.relu(view), [0, 2])
            y = meta.array([0.0, 0.0])
            y.update(view)
            same(y, [-1, 2])
            with pytest.raises(ArgumentError, match="opposite sign"):
                meta.from_dlpack(view)
            model = meta.model.Linear(2, 1, bias=False)
            model.load_state_dict({"weight": view.reshape(1, 2)})
            same(model.weight, [[-1, 2]])

    def test_arguments_of_operators_are_not_copied(self) -> None:
        tensor = torch.ones(4)
        assert meta.reshape(tensor, (2, 2)).torch().data_ptr() == tensor.data_ptr()

    def test_array_protocol(self) -> None:
        x = meta.array([1.0, 2.0])
        copied = np.array(x)
        copied[0] = 9
        same(x, [1, 2])
        assert np.asarray(x, dtype="f8").dtype == "f8" and np.array(x).dtype == "f4"
        for seen in (np.asarray(x), np.asarray(x, copy=False)):
            seen[0] = 0
            same(x, [0, 2])
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

    def test_dlpack_copies_and_devices(self) -> None:
        x = meta.array([1.0, 2.0])
        copied = np.from_dlpack(x, copy=True)
        np.asarray(copied)[...] = 7
        same(x, [1, 2])
        for device in ((1, 0), None):
            shared = torch.utils.dlpack.from_dlpack(x.__dlpack__(dl_device=device))
            assert shared.data_ptr() == x.torch().data_ptr()
        assert x.__dlpack_device__() == (1, 0)
        for dtype in ("bool", "uint8", "uint64", "bfloat16", "complex64", "float64"):
            y = meta.astype(x, dtype)
            assert meta.from_dlpack(torch.from_dlpack(y)).key is y.key
        for y in (meta.array(1.0), meta.zeros((0, 3)), meta.from_dlpack(torch.zeros(2, 3).T)):
            back = meta.from_dlpack(y)
            assert (back.shape, back.strides) == (y.shape, y.strides)


class TestBuffer:
    @pytest.mark.parametrize("dtype", [d for d in DTYPES if "float8" not in d and d != "bfloat16"])
    def test_memory(self, dtype: str) -> None:
        x = meta.astype(meta.array([[0, 1, 1], [1, 0, 1]], "int32"), dtype)
        seen = x.__buffer__(0)
        assert (seen.shape, seen.nbytes, seen.readonly) == ((2, 3), x.nbytes, False)
        np.testing.assert_array_equal(np.asarray(seen), x.numpy())
        np.asarray(seen)[0, 0] = 1
        np.testing.assert_array_equal(x.numpy(), [[1, 1, 1], [1, 0, 1]])

    def test_forms(self) -> None:
        assert meta.array(2.5).__buffer__(0).tolist() == 2.5
        assert meta.zeros((0, 2)).__buffer__(0).shape == (0, 2)
        assert meta.from_dlpack(torch.arange(6).view(2, 3).T).__buffer__(0).strides == (8, 24)

    def test_refusals(self) -> None:
        x = meta.array([1.0])
        for dtype in ("bfloat16", "float8_e5m2"):
            with pytest.raises(ArgumentError, match="buffer protocol"):
                meta.astype(x, dtype).__buffer__(0)
        x.requires_grad = True
        with pytest.raises(GradientError, match="detach"):
            x.__buffer__(0)

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="Python asks __buffer__ from 3.12 on")
    def test_python_asks(self) -> None:
        assert bytes(memoryview(meta.array([1, 2], "uint8"))) == b"\x01\x02"
        assert bytes(meta.array([1, 2], "uint8")) == b"\x01\x02"
