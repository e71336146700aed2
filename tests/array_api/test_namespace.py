"""The namespace of the Array API standard: what differs from `meta` itself, and how it is found."""

from __future__ import annotations

import numpy as np
import pytest

import meta
from meta import array_api as xp
from meta.base.errors import ArgumentError, DeviceError, MetaError


def test_an_array_names_its_namespace() -> None:
    x = meta.array([1.0, 2.0])
    assert x.__array_namespace__() is xp
    assert x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(ArgumentError, match=r"2021\.12"):
        x.__array_namespace__(api_version="2021.12")
    assert all(hasattr(xp, name) for name in xp.__all__)
    assert xp.sin is meta.sin and xp.pow is meta.pow and xp.linalg is meta.linalg


def test_a_trace_has_it_too() -> None:
    def standardized(x: meta.ndarray) -> meta.ndarray:
        names = x.__array_namespace__()
        return (x - names.mean(x)) / names.std(x)

    x = meta.array(np.arange(6.0))
    expected = (np.arange(6.0) - 2.5) / np.arange(6.0).std()
    traced = meta.model.trace(standardized)
    for found in (standardized(x), traced(x), meta.vm.compile(traced, x)(x)):
        np.testing.assert_allclose(found.numpy(), expected)


def test_what_there_is() -> None:
    info = xp.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["real floating"] == xp.asarray(0.5).dtype
    assert info.dtypes(kind="bool") == {"bool": "bool"}
    assert set(info.dtypes()) >= {"uint8", "uint16", "uint32", "int64", "float64", "complex128"}
    assert info.capabilities()["boolean indexing"] is True
    with pytest.raises(DeviceError):
        info.dtypes(device="cuda:99")


def test_asarray_copies_where_it_is_told_to() -> None:
    x = meta.array([1.0, 2.0])
    assert xp.asarray(x) is x and xp.asarray(x, copy=False) is x
    assert xp.asarray(x, copy=True) is not x
    values = np.array([1.0, 2.0])
    shared, own = xp.asarray(values, copy=False), xp.asarray(values, copy=True)
    values[0] = 7
    assert shared.tolist() == [7, 2] and own.tolist() == [1, 2]
    for obj, options in (([1.0], {}), (x, {"dtype": "float64"}), (range(3), {})):
        with pytest.raises(ArgumentError, match="without a copy"):
            xp.asarray(obj, copy=False, **options)
    assert xp.asarray(2**64 - 1, dtype="uint64").item() == 2**64 - 1
    assert xp.asarray(1j).dtype == "complex64"


def test_creation() -> None:
    assert xp.full((2,), 1j).tolist() == [1j, 1j]
    assert xp.full((), True).dtype == "bool" and xp.full(3, 1).dtype == "int64"
    assert xp.full_like(xp.ones((2,), dtype="uint64"), 2**64 - 1).tolist() == [2**64 - 1] * 2
    assert xp.empty((2, 0)).shape == (2, 0) and xp.zeros(2).dtype == "float32"
    for make in (meta.zeros, meta.ones, meta.empty):
        assert make((2,), None, device=None).dtype == make((2,)).dtype == "float32"
        assert make((2,), "int8").dtype == "int8"
    assert meta.empty_like(xp.ones((2,), dtype="uint8")).dtype == "uint8"
    assert xp.eye(2, 3, k=2**70).tolist() == [[0] * 3] * 2
    assert [g.shape for g in xp.meshgrid(xp.arange(2), xp.arange(3))] == [(3, 2)] * 2


@pytest.mark.parametrize("name", ["sum", "prod", "cumulative_sum", "cumulative_prod"])
def test_the_dtypes_of_sums(name: str) -> None:
    function = getattr(xp, name)
    unsigned = ("uint8", "uint16", "uint32")
    wider = {**dict.fromkeys(unsigned, "uint64"), "int8": "int64", "float32": "float32"}
    for dtype, wide in wider.items():
        x = xp.asarray([200, 3] if dtype in unsigned else [100, 3], dtype=dtype)
        oracle = {"sum": np.sum, "prod": np.prod, "cumulative_sum": np.cumsum}
        expected = oracle.get(name, np.cumprod)(x.numpy().astype(wide))
        assert function(x).dtype == wide
        np.testing.assert_array_equal(function(x).numpy(), expected)
        assert function(x, dtype="float64").dtype == "float64"
    large = xp.asarray([2**63, 2**63 + 1], dtype="uint64")
    assert xp.sum(large).item() == 1  # modulo 2**64


def test_variances() -> None:
    x = np.array([1.0, 2.0, 4.0])
    assert xp.var(xp.asarray(x)).item() == pytest.approx(x.var())
    assert xp.std(xp.asarray(x), correction=1).item() == pytest.approx(x.std(ddof=1))
    assert xp.var(xp.asarray(x), correction=0.5).item() == pytest.approx(x.var() * 3 / 2.5)
    assert xp.std(xp.asarray(x), correction=3.5).item() == float("inf")


def test_rearranging() -> None:
    x = xp.asarray([[1, 2], [3, 4]])
    assert xp.concat([x, x], axis=None).tolist() == [1, 2, 3, 4] * 2
    assert xp.flip(x).tolist() == [[4, 3], [2, 1]]
    assert xp.repeat(x, xp.asarray([0, 2]), axis=1).tolist() == [[2, 2], [4, 4]]
    assert xp.repeat(x, xp.asarray([1, 0, 2, 0])).tolist() == [1, 3, 3]
    assert xp.repeat(x, xp.asarray([0, 0]), axis=0).shape == (0, 2)
    assert xp.take_along_axis(x, xp.asarray([[-1], [0]]), axis=1).tolist() == [[2], [3]]
    assert xp.reshape(xp.zeros((0, 3)), (3, 0)).shape == (3, 0)
    assert xp.searchsorted(
        xp.asarray([3, 1]), xp.asarray([2]), sorter=xp.asarray([1, 0])
    ).tolist() == [1]
    for wrong in (
        lambda: xp.reshape(x, (0, 4)),
        lambda: xp.searchsorted(x[0], x[1], side="middle"),
        lambda: xp.take_along_axis(x, xp.asarray([0])),
    ):
        with pytest.raises(MetaError):
            wrong()


def test_bounds() -> None:
    x = xp.asarray([-2.0, 0.5, 2.0])
    assert xp.clip(x).tolist() == x.tolist()
    assert xp.clip(x, -1, xp.asarray([3.0, 0.0, 1.0])).tolist() == [-1, 0, 1]
    large = xp.asarray([0, 2**64 - 1], dtype="uint64")
    assert xp.clip(large, 1, 2**64 - 2).tolist() == [1, 2**64 - 2]


def test_parts_of_real_numbers() -> None:
    x = xp.asarray([1, -2])
    assert xp.conj(x).tolist() == xp.real(x).tolist() == [1, -2]
    assert xp.real(xp.asarray([1 + 2j])).tolist() == [1]


def test_dlpack() -> None:
    values = np.array([1.0, 2.0])
    shared, own = xp.from_dlpack(values), xp.from_dlpack(values, copy=True)
    values[0] = 5
    assert shared.tolist() == [5, 2] and own.tolist() == [1, 2]
    x = meta.array([1.0])
    assert np.from_dlpack(x).tolist() == [1] and x.to_device("cpu") is x
    with pytest.raises(ArgumentError, match="current stream"):
        x.to_device("cpu", stream=1)


def test_a_mask_without_axes() -> None:
    x = xp.asarray([1, 2, 3])
    assert x[xp.asarray(True)].tolist() == [[1, 2, 3]] and x[xp.asarray(False)].shape == (0, 3)


def test_a_mask_without_elements() -> None:
    x = xp.ones((2, 3))
    assert x[xp.zeros((0,), dtype="bool")].shape == (0, 3)
    assert x[xp.zeros((2, 0), dtype="bool")].shape == (0,)
    with pytest.raises(IndexError, match="another shape"):
        x[xp.zeros((3,), dtype="bool")]


def test_a_system_of_several_dtypes() -> None:
    matrix = xp.asarray([[2.0, 0.0], [0.0, 4.0]], dtype="float64")
    found = xp.linalg.solve(matrix, xp.asarray([1j, 2.0]))
    assert found.dtype == "complex128" and found.tolist() == [0.5j, 0.5]
