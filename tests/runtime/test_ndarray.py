"""The array's whole surface: making one, its attributes, writing to it, text.

Operators are in `test_operators.py`, shared memory in `test_sharing.py`, the random generator in
`test_random.py`.
"""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import meta
from meta.base.device import Device, available
from meta.base.dtype import DTYPES, TO_NUMPY, has_gradient
from meta.base.errors import ArgumentError, DeviceError, GradientError
from meta.runtime.ndarray import as_array
from tests.runtime.conftest import same


class TestConstruction:
    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            (1.5, "float32"),
            (3, "int64"),
            (True, "bool"),
            ([1, 2], "int64"),
            ([1, 2.5], "float32"),
            ([[True], [False]], "bool"),
            ((1, (2)), "int64"),
            ([], "float32"),
            ([[], []], "float32"),
            (range(3), "int64"),
            (-(2**63), "int64"),
            (np.float16(2), "float16"),
            (np.float64(2), "float64"),
            (np.int8(2), "int8"),
        ],
    )
    def test_numbers_and_lists(self, value: Any, dtype: str) -> None:
        same(meta.array(value), value, dtype)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_numpy_keeps_its_dtype(self, dtype: str) -> None:
        values = np.arange(6).reshape(2, 3).astype(TO_NUMPY[dtype])
        found = meta.array(values)
        same(found, values, dtype)
        assert found.numpy().dtype == values.dtype
        values[:] = 1
        assert found.numpy()[0, 0] == 0, "the data are copied"

    @pytest.mark.parametrize(
        "make",
        [
            lambda v: np.broadcast_to(v[:1], v.shape),
            lambda v: v[::-1, ::-1],
            lambda v: v[:, ::2],
            lambda v: v.T,
            lambda v: np.asfortranarray(v),
            lambda v: v.astype(">f4"),
            lambda v: v[0, 0, ...],
            lambda v: np.zeros(3, [("a", "i1"), ("b", "f4")])["b"],
        ],
        ids=["read_only", "reversed", "strided", "T", "fortran", "big_endian", "0d", "unaligned"],
    )
    @pytest.mark.parametrize("convert", [meta.array, as_array])
    def test_numpy_layouts(self, make: Any, convert: Any) -> None:
        values = make(np.arange(12, dtype="f4").reshape(3, 4))
        same(convert(values), values, "float32")

    def test_bfloat16_layouts(self) -> None:
        values = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)[:, ::-2]
        same(meta.array(values), values, "bfloat16")

    def test_what_has_a_dtype_keeps_it(self) -> None:
        class Column:
            def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
                return np.array([0.1, 0.2])

        same(meta.array(Column()), [0.1, 0.2], "float64")

    def test_torch(self) -> None:
        source = torch.arange(6.0).reshape(2, 3)
        same(meta.array(source.T), source.numpy().T, "float32")
        assert meta.array(source.T).strides == (2, 1), "a new array is compact"
        leaf = torch.ones(2, requires_grad=True)
        found = meta.array(leaf)
        assert found.requires_grad and found.torch().requires_grad
        found.update([5, 6])
        assert leaf.tolist() == [1, 1]

    def test_torch_kept_with_the_opposite_sign(self) -> None:
        imaginary = torch.tensor([1 + 2j]).conj().imag
        assert imaginary.is_neg()
        same(meta.array(imaginary), [-2])
        same(meta.abs(imaginary), [2])
        assert not as_array(imaginary).torch().is_neg()

    def test_arrays(self) -> None:
        x = meta.array([1.0, 2.0])
        y = meta.array(x)
        y.update([3, 4])
        same(x, [1, 2])
        same(meta.array([x, y]), [[1, 2], [3, 4]], "float32")
        same(meta.array([meta.array(1), meta.array(2)]), [1, 2], "int64")

    def test_exporters(self) -> None:
        class Exporter:
            def __init__(self, tensor: torch.Tensor) -> None:
                self.tensor = tensor

            def __dlpack__(self, **options: Any) -> Any:
                return self.tensor.__dlpack__(**options)

            def __dlpack_device__(self) -> Any:
                return self.tensor.__dlpack_device__()

        source = torch.ones(2)
        copied, shared = meta.array(Exporter(source)), meta.from_dlpack(Exporter(source))
        source[0] = 7
        same(copied, [1, 1])
        same(shared, [7, 1])

    def test_dtype_device_name(self) -> None:
        for dtype in ("float16", torch.float16, np.float16, np.dtype("f2")):
            assert meta.array([1], dtype).dtype == "float16"
        for name, kind in {"float": float, "complex": complex, "int": int, "bool": bool}.items():
            for found in (meta.array([1], kind), meta.ones(1).astype(name), meta.ones(1, kind)):
                assert found.dtype == kind == np.dtype(kind)
        found = meta.array(1, device=torch.device("cpu"), name="weight")
        assert found.device == "cpu" and found.name == "weight"
        assert meta.array([1.7, -1.7], "int32").numpy().tolist() == [1, -1]

    @pytest.mark.parametrize(
        "value",
        [
            np.ones(2, np.clongdouble),
            np.ones(2, "S2"),
            torch.ones(2, dtype=torch.float8_e5m2fnuz),
            torch.ones(2, dtype=torch.float8_e4m3fnuz),
            torch.eye(2).to_sparse(),
            "text",
            None,
            {},
            {1, 2},
            pytest.param(object(), id="object"),
            [[1], [1, 2]],
            [torch.ones(1, requires_grad=True)],
            2**63,
            np.array(["a"]),
            np.array(None),
            np.zeros(2, "M8[s]"),
        ],
        ids=repr,
    )
    def test_what_is_no_array(self, value: Any) -> None:
        with pytest.raises(ArgumentError) as caught:
            meta.array(value)
        assert str(caught.value).count("found:") == 1
        assert caught.value.span is not None and caught.value.span.file == __file__

    def test_unknown_dtype(self) -> None:
        for dtype in ("complex32", "flaot32", np.clongdouble, 3, "f4, f4", ","):
            with pytest.raises(ArgumentError, match="unknown dtype"):
                meta.array([1.0], dtype)
        with pytest.raises(ArgumentError, match="did you mean 'float32'"):
            meta.array([1.0], "flaot32")

    def test_no_subclasses(self) -> None:
        with pytest.raises(TypeError, match="cannot be subclassed"):
            type("Sub", (meta.ndarray,), {})


class TestDevices:
    @pytest.mark.parametrize("text", ["tpu", "meta", "cpu:1", "cuda:", "cuda:-1", "", "cuda:99999"])
    def test_unknown(self, text: str) -> None:
        with pytest.raises(DeviceError, match="unknown device"):
            meta.array(1, device=text)

    @pytest.mark.parametrize("text", ["cuda:77", "cuda(77)"])
    def test_absent(self, text: str) -> None:
        absent = "cuda:77 is not present"
        with pytest.raises(DeviceError, match=absent):
            meta.array(1, device=text)
        with pytest.raises(DeviceError, match=absent):
            meta.array(1).to(device=text)
        with pytest.raises(DeviceError, match=absent):
            meta.zeros((2,), device=text)

    def test_spellings(self) -> None:
        assert Device("cuda") == Device("cuda:0") == Device("cuda(0)") == "cuda:0"
        assert Device("cuda:3").ordinal == 3 and Device("cuda:3").kind == "cuda"
        assert Device("cpu:0") == "cpu" and available()[0] == "cpu"

    def test_torch_meta_device(self) -> None:
        with pytest.raises(DeviceError):
            meta.array([1.0]) + torch.ones(1, device="meta")


class TestAttributes:
    def test_shape_and_layout(self) -> None:
        x = meta.array(np.zeros((2, 3, 4)))
        assert (x.shape, x.ndim, x.size, x.dtype) == ((2, 3, 4), 3, 24, "float64")
        assert x.strides == (12, 4, 1) and x.device == "cpu" and x.name == ""
        assert as_array(torch.zeros(2, 3).T).strides == (1, 3)

    def test_requires_grad_is_for_floats(self) -> None:
        x = meta.array([1.0])
        assert not x.requires_grad and x.grad is None
        x.requires_grad = True
        assert x.requires_grad
        for value in (1, True):
            with pytest.raises(GradientError, match="only floating point"):
                meta.array(value).requires_grad = True
        y = meta.array(1)
        y.requires_grad = False

    def test_item_and_conversions(self) -> None:
        assert meta.array([[2.5]]).item() == 2.5 == float(meta.array(2.5))
        assert int(meta.array(2.9)) == 2
        assert bool(meta.array([0.0])) is False and bool(meta.array(3))
        assert [10, 20, 30][meta.array(1)] == 20
        for x in (meta.array(1.0), meta.array(True)):
            with pytest.raises(TypeError, match="only an integer array"):
                operator.index(x)
        for convert in (bool, float, int, operator.index, lambda x: x.item()):
            with pytest.raises(ArgumentError, match="one element"):
                convert(meta.array([1, 2]))

    def test_len_and_iter(self) -> None:
        x = meta.array([[1, 2], [3, 4]])
        assert len(x) == 2 and [row.numpy().tolist() for row in x] == [[1, 2], [3, 4]]
        assert list(meta.array([])) == []
        for use in (len, iter):
            with pytest.raises(TypeError, match="0-d"):
                use(meta.array(1))

    def test_hash_is_identity(self) -> None:
        x = meta.array([1, 2])
        assert {x: 1}[x] == 1 and hash(x) != hash(meta.array([1, 2]))


class TestUpdate:
    def test_aliases_see_it(self) -> None:
        x = meta.array([[1.0, 2.0]])
        view, tensor = meta.reshape(x, (2,)), x.torch()
        for value in ([[3, 4]], np.array([[3, 4]]), torch.tensor([[3, 4]]), meta.array([[3, 4]])):
            x.update([[0, 0]])
            x.update(value)
            same(x, [[3, 4]], "float32")
            same(view, [3, 4])
            assert tensor.tolist() == [[3, 4]]

    @pytest.mark.parametrize("value", [1, [1], [1, 2, 3], [[1, 2]]])
    def test_another_shape(self, value: Any) -> None:
        x = meta.array([1.0, 2.0])
        with pytest.raises(ArgumentError, match="same shape"):
            x.update(value)
        same(x, [1, 2])

    def test_no_number(self) -> None:
        x = meta.array([1.0])
        with pytest.raises(ArgumentError):
            x.update([1j])
        same(x, [1])

    def test_what_was_recorded_is_dropped(self) -> None:
        x = meta.array([2.0])
        x.requires_grad = True
        y = x * 3
        y.update([1.0])
        assert y.node is None


class TestTo:
    def test_nothing_changes(self) -> None:
        x = meta.array([1.0], name="x")
        assert x.to() is x and x.to(dtype="float32", device="cpu") is x

    def test_dtype(self) -> None:
        x = meta.array([1.7, -2.2], name="x")
        x.requires_grad = True
        same(x.to(dtype=int), [1, -2], "int64")
        assert not x.to(dtype="int8").requires_grad
        half = x.to(dtype=torch.float16)
        assert half.requires_grad and half.name == "x"
        (half * 3.0).backward([1.0, 2.0])
        same(x.grad, [3, 6])

    def test_copies_have_memory_of_their_own(self) -> None:
        x = meta.array([1.5, 2.5], name="x")
        x.requires_grad = True
        y = copy.copy(x)
        assert y.requires_grad and y.name == "x"
        y.update([0, 0])
        same(x, [1.5, 2.5])

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_pickled(self, dtype: str) -> None:
        x = meta.astype(meta.array([[0, 1, 1]], "int32"), dtype)
        x.name = "x"
        x.requires_grad = has_gradient(dtype)
        y = pickle.loads(pickle.dumps(x))
        assert y.key is x.key and (y.name, y.requires_grad) == (x.name, x.requires_grad)
        np.testing.assert_array_equal(y.numpy(), x.numpy())

    def test_format(self) -> None:
        x = meta.array(2.0) / 3
        assert f"{x:.2f}" == "0.67" and f"{x}" == str(np.float32(2) / 3)
        assert f"{meta.array([1.0])}" == str(meta.array([1.0]))
        with pytest.raises(ArgumentError, match="0-d"):
            f"{meta.array([1.0]):.2f}"

    def test_errors(self) -> None:
        with pytest.raises(ArgumentError, match="unknown dtype"):
            meta.array(1).to(dtype="complex32")
        with pytest.raises(DeviceError):
            meta.array(1).to(device="gpu")


class TestBackward:
    def test_nothing_recorded(self) -> None:
        with pytest.raises(GradientError, match="not computed from one"):
            meta.array(1.0).backward()

    def test_a_gradient_is_needed(self) -> None:
        x = meta.array([1.0, 2.0])
        x.requires_grad = True
        with pytest.raises(GradientError, match="one element"):
            (x * 2).backward()
        with pytest.raises(GradientError, match="another shape"):
            (x * 2).backward([1, 2, 3])
        (x * 2).backward([1, 2])
        assert x.grad is not None
        same(x.grad, [2, 4], "float32")

    def test_of_a_leaf(self) -> None:
        x = meta.array([1.0, 2.0])
        x.requires_grad = True
        x.backward([1, 1])
        x.backward(np.array([1, 2]))
        assert x.grad is not None
        same(x.grad, [2, 3], "float32")


class TestText:
    def test_exact(self) -> None:
        kind = "<NDArray [1 x 2] @ cpu, dtype=float32>"
        assert repr(meta.array([[1.0, 2.5]])) == f"[[1.  2.5]]\n{kind}"
        assert str(meta.array([[1.0, 2.5]])) == f"[[1.  2.5]]\n{kind}"

    def test_other_shapes(self) -> None:
        assert repr(meta.array(True)) == "True\n<NDArray [] @ cpu, dtype=bool>"
        assert repr(meta.array([])) == "[]\n<NDArray [0] @ cpu, dtype=float32>"
        assert repr(meta.array([1], "bfloat16")) == "[1]\n<NDArray [1] @ cpu, dtype=bfloat16>"


@pytest.mark.parametrize("make", [meta.array, meta.asarray])
def test_arguments_of_torch_that_are_not_there(make: Any) -> None:
    with pytest.raises(ArgumentError, match=r"x\.requires_grad = True"):
        make([1.0], requires_grad=True)
