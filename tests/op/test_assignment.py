"""``x[index] = value`` writes what numpy writes, or says why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import (
    ArgumentError,
    GradientError,
    IndexOutOfRange,
    NumberOutOfRange,
    TraceError,
    TypeInferError,
)
from tests.op.test_indexing import ARRAYS, BASIC, MASKS, X


def pair(dtype: Any = np.float64) -> tuple[Any, np.ndarray[Any, Any]]:
    values = (X % 7).astype(dtype)
    return meta.array(values), values


@pytest.mark.parametrize("index", BASIC + ARRAYS + MASKS, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8", "bool", "complex64"])
def test_assignment_is_numpys(index: Any, dtype: str) -> None:
    shape = X[index].shape
    full = np.arange(np.prod(shape), dtype=np.float64).reshape(shape) % 5
    values: list[Any] = [True, full.astype(dtype), full.astype(dtype)[None]]
    if shape:
        values += [full[-1:].astype(dtype), meta.array(full[..., -1:].astype(dtype))]
    for value in values:
        x, want = pair(dtype)
        x[index] = value
        # By positions, as numpy takes no value with axes of extent 1 in front for some indices.
        places = np.arange(X.size).reshape(X.shape)[index]
        held = value.numpy() if isinstance(value, meta.ndarray) else np.array(value)
        held = held.reshape(held.shape[max(0, held.ndim - len(shape)) :])
        want.reshape(-1)[places] = np.broadcast_to(held, shape)
        assert x.dtype == dtype
        np.testing.assert_array_equal(x.numpy(), want)


@pytest.mark.parametrize(
    "index", [meta.array([-1, 0]), torch.tensor([1, 0]), meta.array(X) > 9], ids=str
)
def test_index_arrays_of_every_kind(index: Any) -> None:
    x, want = pair()
    x[index] = -1.0
    want[np.asarray(index)] = -1.0
    np.testing.assert_array_equal(x.numpy(), want)


def test_zero_axes_and_one_answer() -> None:
    x = meta.array(1.0)
    for index, value in (((), 2.0), (..., 3), (None, [4])):
        x[index] = value
        assert x.item() == np.ravel(value)[0]
    x[meta.array(False)] = 9.0
    assert x.item() == 4
    x[np.array(True)] = 5.0
    assert x.item() == 5
    empty = meta.zeros((0, 3))
    empty[:] = 1.0
    empty[[]] = 1.0
    assert empty.shape == (0, 3)


def test_memory_is_shared() -> None:
    x = meta.array(np.arange(6.0).reshape(2, 3))
    flat, tensor, alias = meta.reshape(x, (6,)), x.torch(), x.detach()
    x[1, ::-1] = [7, 8, 9]
    assert flat.tolist()[3:] == tensor[1].tolist() == alias.tolist()[1] == [9, 8, 7]
    part = meta.from_dlpack(tensor.T)  # strided
    part[0, [1, 0]] = [-1, -2]
    assert x.tolist() == [[-2, 1, 2], [-1, 8, 7]]


def test_a_value_that_is_its_own_target() -> None:
    x = meta.array([1, 2, 3, 4])
    x[::-1] = x
    assert x.tolist() == [4, 3, 2, 1]
    t = torch.arange(4)
    whole = meta.from_dlpack(t)
    whole[1:] = t[:-1]
    assert whole.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float16", "uint64", "complex128"])
def test_dtypes_of_storage(dtype: str) -> None:
    x = meta.astype(meta.array([0, 0, 0, 0]), dtype)
    x[1:3] = 1
    x[[0, 3]] = meta.astype(meta.array([2, 4]), dtype)
    assert meta.astype(x, "int64").tolist() == [2, 1, 1, 4] if dtype != "complex128" else True
    assert meta.equal(meta.astype(x, "complex128"), meta.array([2, 1, 1, 4], "complex128")).all()


@pytest.mark.parametrize(
    "dtype, value, error",
    [
        ("int64", 1.0, TypeInferError),
        ("int64", [1.0, 2], TypeInferError),
        ("int64", np.array([1.0, 2.0]), TypeInferError),
        ("float32", 1j, TypeInferError),
        ("float32", np.array([1j, 1]), TypeInferError),
        ("bool", 1, TypeInferError),
        ("bool", meta.array([1, 0]), TypeInferError),
        ("uint8", 256, NumberOutOfRange),
        ("uint8", [-1, 2], NumberOutOfRange),
        ("uint8", np.array([1, 300]), NumberOutOfRange),
        ("int8", meta.array([1, 300]), NumberOutOfRange),
        ("float32", [1, 2, 3], TypeInferError),
        ("float32", [[1, 2], [3, 4]], TypeInferError),
        ("float32", "ab", ArgumentError),
        ("float32", None, ArgumentError),
    ],
    ids=str,
)
def test_values_that_do_not_fit(dtype: str, value: Any, error: type[Exception]) -> None:
    x = meta.zeros((2,), dtype)
    with pytest.raises(error):
        x[:] = value
    assert not meta.any(x).item()


def test_values_of_simpler_kinds_are_cast() -> None:
    x = meta.zeros((2,), "float32")
    x[:] = np.array([1.5, 2.5])
    assert x.tolist() == [1.5, 2.5]
    x[0] = np.float64(0.1)
    x[1] = 2**24 + 1
    assert x.tolist() == [np.float32(0.1), 2**24]
    big = meta.zeros((1,), "int64")
    big[0] = 2**62 + 1
    assert big.item() == 2**62 + 1
    with meta.strict_dtypes(), pytest.raises(TypeInferError, match="strict"):
        x[:] = np.array([1.5, 2.5])


@pytest.mark.parametrize("index", [2, (0, 3), [0, 2], (0, 0, 0, 0), np.array([True])], ids=str)
def test_out_of_range(index: Any) -> None:
    with pytest.raises(IndexOutOfRange):
        meta.array(X)[index] = 1.0


def test_expanded_memory_is_refused() -> None:
    x = meta.from_dlpack(torch.zeros(1).expand(3))
    with pytest.raises(ArgumentError, match="share memory"):
        x[0] = 1.0
    with torch.inference_mode():
        y = meta.array([1.0, 2.0])
    with pytest.raises(ArgumentError, match="inference_mode"):
        y[0] = 3.0


class TestGradients:
    def test_a_leaf_is_written_without_recording_only(self) -> None:
        w = meta.array([1.0, 2.0])
        w.requires_grad = True
        with pytest.raises(GradientError, match="no_grad"):
            w[0] = 3.0
        with meta.no_grad():
            w[0] = 3.0
        assert w.tolist() == [3, 2] and w.requires_grad

    def test_what_was_computed_is_never_written(self) -> None:
        w = meta.array([1.0, 2.0])
        w.requires_grad = True
        for y in (w * 2.0, w.reshape(2, 1)):
            with pytest.raises(GradientError, match=r"x\.at"):
                y[0] = 3.0
            with meta.no_grad(), pytest.raises(GradientError, match="computed"):
                y[0] = 3.0
        assert w.tolist() == [1, 2]

    def test_a_value_with_a_gradient(self) -> None:
        w, x = meta.array([1.0, 2.0]), meta.zeros((2,))
        w.requires_grad = True
        for value in (w, w * 2.0):
            with pytest.raises(GradientError, match="detach"):
                x[:] = value
        x[:] = w.detach()
        with meta.no_grad():
            x[:] = w * 2.0
        assert x.tolist() == [2, 4]

    def test_what_the_tape_has_kept(self) -> None:
        w, x = meta.array([1.0, 2.0]), meta.array([3.0, 4.0])
        w.requires_grad = True
        for write in (lambda: x.__setitem__(0, 5.0), lambda: x.reshape(2, 1).__setitem__(0, 5.0)):
            y = (w * x).sum()
            write()
            with pytest.raises(GradientError, match="written in place"):
                y.backward()


def test_traced_code_is_told_the_cure() -> None:
    def write(x: Any) -> Any:
        x[0] = 1.0
        return x

    with pytest.raises(TraceError, match=r"x\.at\[index\]\.set"):
        meta.model.trace(write)(meta.array([1.0]))
    outside = meta.array([1.0])

    def write_outside(x: Any) -> Any:
        outside[0] = 2.0
        return x

    with pytest.raises(TraceError, match=r"x\.at\[index\]\.set"):
        meta.model.trace(write_outside)(meta.array([1.0]))


def test_mixed_precision_reads_and_writes_by_masks() -> None:
    x = meta.array([1.0, -1.0])
    with meta.amp.autocast_scope("bfloat16"):
        assert x[x < 0].tolist() == [-1]
        x[x < 0] = 0.0
    assert x.tolist() == [1, 0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint64"])
@pytest.mark.parametrize("value", [1e6, float("inf"), float("-inf"), float("nan"), 7, -(2**7), 0.1])
def test_a_number_is_rounded_or_refused_in_any_way_of_writing(dtype: str, value: float) -> None:
    def written(index: Any) -> Any:
        x = meta.zeros((2,), dtype)
        try:
            x[index] = value
        except TypeInferError as error:
            return type(error)
        return x.numpy().tolist()[0]

    mask = meta.array([True, False])
    found = [written(i) for i in (0, [0], slice(0, 1), slice(0, None, -1), mask, mask.numpy())]
    np.testing.assert_array_equal(found, found[1:2] * len(found))


def test_what_torch_would_read_in_another_way() -> None:
    x = meta.array(X)
    x[True and 1, np.int64(0)] = 5.0
    assert (x.numpy()[1, 0] == 5).all()
    with pytest.raises(TypeInferError):
        x[True] = 0.0
    with pytest.raises(IndexOutOfRange):
        x[meta.array([True])] = 0.0
    x[meta.array([False, True])] = 1.0
    assert (x.numpy()[1] == 1).all() and x.numpy()[0, 1, 1] == 5
