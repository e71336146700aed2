"""Functions composed of operators agree with NumPy's and torch's, eager and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import meta
from meta.base.errors import ArgumentError, MetaError
from meta.base.registry import FUNCTIONS
from meta.model import trace

A = np.arange(24, dtype=np.float32).reshape(2, 3, 4) % 7 - 2
V = np.array([3.0, -1.0, 2.5, 3.0, 0.0, -1.0, 3.0], np.float32)
GAPS = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan], [5.0, -np.inf, 2.0]], np.float32)
EMPTY = np.zeros((0, 3), np.float32)
INTS = np.array([[3, 1, 1], [2, 3, 1]])

Row = tuple[str, tuple[Any, ...], dict[str, Any], Callable[..., Any]]
ROWS: list[Row] = [
    ("moveaxis", (A, 0, -1), {}, np.moveaxis),
    ("moveaxis", (A, (0, 1), (-1, 0)), {}, np.moveaxis),
    ("unstack", (A,), {"axis": 1}, lambda x, axis: [x[:, i] for i in range(3)]),
    ("unstack", (EMPTY,), {}, lambda x: []),
    ("positive", (A,), {}, np.positive),
    ("diff", (A,), {}, np.diff),
    ("diff", (A,), {"axis": 0, "n": 2}, np.diff),
    ("diff", (A,), {"prepend": A[..., :1], "append": A[..., :2]}, np.diff),
    ("diff", (A > 0,), {}, np.diff),
    ("diff", (EMPTY,), {}, np.diff),
    ("broadcast_arrays", (A, V[:4], A[0, :1]), {}, np.broadcast_arrays),
    ("meshgrid", (V, V[:3]), {}, np.meshgrid),
    ("meshgrid", (V, V[:3], V[:2]), {"indexing": "ij"}, np.meshgrid),
    ("meshgrid", (V,), {}, np.meshgrid),
    ("meshgrid", (V, np.array(2, "float32"), V[:0]), {}, np.meshgrid),
    ("meshgrid", (V, np.arange(2)), {"indexing": "ij"}, np.meshgrid),
    ("round", (A / 7, 2), {}, np.round),
    ("round", (A * 77, -2), {}, np.round),
    ("round", (V.astype("int64"), 3), {}, np.round),
    ("allclose", (A, A + 1e-7), {}, np.allclose),
    ("allclose", (A, A + 1), {}, np.allclose),
    ("allclose", (GAPS, GAPS), {"equal_nan": True}, np.allclose),
    ("isin", (A, V), {}, np.isin),
    ("isin", (GAPS, GAPS), {"invert": True}, np.isin),
    ("isin", (A, EMPTY), {}, np.isin),
    ("count_nonzero", (A,), {}, np.count_nonzero),
    ("count_nonzero", (GAPS,), {"axis": 1, "keepdims": True}, np.count_nonzero),
    ("count_nonzero", (A > 1,), {"axis": (0, 2)}, np.count_nonzero),
    ("masked_fill", (A, A > 2, -7.0), {}, lambda x, m, v: np.where(m, np.float32(v), x)),
    ("median", (A,), {}, np.median),
    ("median", (A,), {"axis": 1, "keepdims": True}, np.median),
    ("median", (GAPS,), {"axis": 1}, np.median),
    ("median", (V,), {"keepdims": True}, np.median),
    ("nanmedian", (GAPS,), {"axis": 1}, lambda x, axis: np.array([2, np.nan, 2], np.float32)),
    ("quantile", (A, 0.3), {"axis": 0}, np.quantile),
    ("quantile", (np.array([np.inf, np.inf, 1], np.float32), 0.8), {}, lambda x, q: np.inf),
    ("nansum", (GAPS,), {"axis": 0}, np.nansum),
    ("nansum", (INTS,), {}, np.nansum),
    ("nanmean", (GAPS,), {"axis": 0}, np.nanmean),
    ("median", (A, 1), {}, np.median),
    ("nanmedian", (A, 1), {"keepdims": True}, np.nanmedian),
    ("quantile", (A, 0.3, 0), {}, np.quantile),
    ("count_nonzero", (A > 1, (0, 2)), {}, np.count_nonzero),
    ("nansum", (GAPS, 0), {}, np.nansum),
    ("nanmean", (GAPS, 0), {}, np.nanmean),
    ("diff", (A, 2, 1), {}, np.diff),
    ("diff", (A, 1, 0), {}, np.diff),
    ("tensordot", (A, A, 3), {}, np.tensordot),
    ("dot", (A, A[0].T), {}, np.dot),
    ("dot", (A, A[0, 0]), {}, np.dot),
    ("dot", (A[0, 0], A[0, 1]), {}, np.dot),
    ("dot", (A[0], A.swapaxes(1, 2)), {}, np.dot),
    ("dot", (A, A[0, 0, 0]), {}, np.dot),
    ("tensordot", (A, A, ((0, 2), (0, 2))), {}, np.tensordot),
    ("mode", (V,), {}, lambda x: (np.float32(3), np.int64(0))),
    ("mode", (INTS, 1), {}, lambda x, axis: (np.array([1, 1]), np.array([1, 2]))),
    ("mode", (INTS,), {"axis": 1}, lambda x, axis: (np.array([1, 1]), np.array([1, 2]))),
    ("bincount", (INTS[0],), {"length": 5}, lambda x, length: np.bincount(x, minlength=length)),
    ("histogram", (A, 5), {}, np.histogram),
    ("histogram", (A, 4, (-1.0, 3.0)), {}, np.histogram),
    ("histogram", (A, 4, (0.0, 0.0)), {"density": True}, np.histogram),
    ("histogram", (A,), {"weights": A * 2}, np.histogram),
    ("histogram", (np.full(3, 2.0, np.float32), 3), {}, np.histogram),
    ("histogram", (GAPS, [0.0, 2.0, 5.0]), {}, np.histogram),
]


def identify(row: Row) -> str:
    name, args, options, _ = row
    return f"{name}-{'-'.join(str(getattr(a, 'shape', a)) for a in args)}-{options and [*options]}"


def compare(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            compare(f, e)
        return
    values = np.asarray(expected)
    assert found.shape == values.shape
    assert (np.dtype(found.dtype).kind == values.dtype.kind) or values.dtype.kind == "f"
    np.testing.assert_allclose(found.numpy(), values, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of NaN
@pytest.mark.parametrize("row", ROWS, ids=identify)
def test_eager_and_compiled_are_numpys(row: Row) -> None:
    name, args, options, oracle = row
    expected = oracle(*args, **options)
    run = getattr(meta, name)
    tensors = [meta.array(a) for a in args if isinstance(a, np.ndarray)]
    others = [a for a in args if not isinstance(a, np.ndarray)]
    compare(run(*args, **options), expected)
    compare(run(*tensors, *others, **options), expected)
    if isinstance(expected, list) and not expected:
        return  # no result to trace

    @trace
    def program(*given: Any) -> Any:
        found = run(*given, *others, **options)
        return tuple(found) if isinstance(found, list | tuple) else found

    compiled = meta.vm.compile(program, *tensors)
    compare(compiled(*tensors), expected)


@pytest.mark.parametrize("x", [INTS, V, GAPS, EMPTY, np.array([True, False, True])], ids=str)
def test_unique(x: Any) -> None:
    values, indices, inverse, counts = np.unique_all(x)
    found = meta.unique_all(meta.array(x))
    assert found._fields == ("values", "indices", "inverse_indices", "counts")
    for f, e in zip(found, (values, indices, inverse, counts), strict=True):
        np.testing.assert_array_equal(f.numpy(), e)
    np.testing.assert_array_equal(meta.unique_values(x).numpy(), values)
    np.testing.assert_array_equal(meta.unique_counts(x).counts.numpy(), counts)
    np.testing.assert_array_equal(meta.unique_inverse(x).inverse_indices.numpy(), inverse)


@pytest.mark.parametrize("shape", [(3, None), (2, 5), (0, 4), (4, 0)])
@pytest.mark.parametrize("k", [-1, 0, 2])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16"])
def test_eye(shape: tuple[int, int | None], k: int, dtype: str) -> None:
    found = meta.eye(*shape, k=k, dtype=dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.numpy().astype(int), np.eye(*shape, k=k, dtype=int))


@pytest.mark.parametrize("ends", [(0, 1), (1, -1), (2.5, 2.5), (-1e30, 1e30), (5, 6.25)])
@pytest.mark.parametrize("num", [0, 1, 2, 7])
@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_linspace(ends: tuple[float, float], num: int, endpoint: bool, dtype: str) -> None:
    found = meta.linspace(*ends, num, dtype=dtype, endpoint=endpoint)
    expected = np.linspace(*ends, num, dtype=dtype, endpoint=endpoint)
    assert found.dtype == dtype
    scale = max(map(abs, ends))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-7 * scale)
    if num > 1 and endpoint:
        assert found.numpy()[-1] == expected[-1]


MODES = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("size", [3, 7, 10])
def test_interpolate_is_torchs(count: int, size: int) -> None:
    x = torch.randn(2, 3, *(5, 4, 6)[:count], generator=torch.Generator().manual_seed(count))
    for mode in ["nearest", "nearest-exact", "area", *MODES[count]]:
        for corners in (False, True) if mode in MODES[count] else (False,):
            option = {"align_corners": corners} if mode in MODES[count] else {}
            expected = F.interpolate(x, size, mode=mode, **option)
            found = meta.interpolate(x, size, mode=mode, align_corners=corners)
            np.testing.assert_allclose(
                found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5, err_msg=f"{mode} {corners}"
            )
    expected = F.interpolate(x, scale_factor=2)
    np.testing.assert_array_equal(meta.interpolate(x, scale_factor=2).numpy(), expected)


def test_gradients_flow_through_compositions() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    ours = meta.array(x.detach())
    ours.requires_grad = True
    loss = meta.sum(meta.median(ours, axis=1) * 2.0) + meta.sum(meta.diff(ours) * 3.0)
    loss.backward()
    ranked = x.sort(1).values
    (ranked[:, 1:3].mean(1).sum() * 2 + x.diff().sum() * 3).backward()
    np.testing.assert_allclose(ours.grad.numpy(), x.grad.numpy())


REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("moveaxis", (A, (0, 0), (1, 2)), {}),
    ("moveaxis", (A, 3, 0), {}),
    ("meshgrid", (A,), {}),
    ("meshgrid", (V,), {"indexing": "xz"}),
    ("diff", (A,), {"n": -1}),
    ("linspace", (0, 1, -1), {}),
    ("round", (V.astype("int64"), -1), {}),
    ("quantile", (A, 1.5), {}),
    ("median", (EMPTY,), {"axis": 0}),
    # The third is out in NumPy, and keepdim in torch.
    ("median", (A, 0, True), {}),
    ("nanmedian", (A, 0, True), {}),
    ("quantile", (A, 0.5, 0, True), {}),
    ("count_nonzero", (A, 0, True), {}),
    ("nansum", (A, 0, "float64"), {}),
    ("nanmean", (A, 0, "float64"), {}),
    ("mode", (EMPTY,), {"axis": 0}),
    ("bincount", (np.array([-1, 2]),), {}),
    ("bincount", (np.array([1, 2]),), {"length": 2}),
    ("bincount", (V,), {}),
    ("histogram", (V, 0), {}),
    ("histogram", (V, 3, (2.0, 1.0)), {}),
    ("interpolate", (A,), {}),
    ("interpolate", (A, 3), {"mode": "bilinear"}),
    ("interpolate", (A,), {"scale_factor": 1.3}),
    ("interpolate", (A, 3), {"align_corners": True}),
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row[0]}-{[*row[2]]}")
def test_refused(row: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
    name, args, options = row
    with pytest.raises(MetaError):
        getattr(meta, name)(*args, **options)


def test_traced_bins_need_a_length() -> None:
    with pytest.raises(ArgumentError, match="length="):
        meta.vm.compile(trace(lambda x: meta.bincount(x)), meta.array([1, 2]))


def test_a_function_has_no_operators_name() -> None:
    assert not [name for name in FUNCTIONS if name in meta.base.registry.OPERATORS]
    assert meta.median is meta.op.median is FUNCTIONS["median"]


def test_constants() -> None:
    assert (meta.pi, meta.e, meta.inf, meta.newaxis) == (math.pi, math.e, math.inf, None)
    assert math.isnan(meta.nan)
