"""Fused tensors and copies between devices: what the generated checks do not ask for."""

import pytest

import meta
from meta.base.errors import DeviceError, TypeInferError
from meta.op.memory import fused_layout
from meta.testing import get_testable_devices, randn


def test_defusing_undoes_fusing() -> None:
    parts = (randn((2, 3)), randn(()), randn((0, 4)), randn((5,)))
    layout = fused_layout(tuple(meta.ir.TensorType(p.shape, p.dtype) for p in parts))
    assert layout == ((6, 1, 0, 5), (2, 3, 0, 4, 5), (2, 2, 4, 5))
    for part, again in zip(
        parts, meta.defuse_tensor(meta.fuse_tensor(parts), *layout), strict=True
    ):
        assert again.shape == part.shape
        assert again.numpy().tolist() == part.numpy().tolist()


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (((), (), ()), "no tensor"),
        (((2, 3), (2, 3), (1,)), "2 sizes and 1 shape_indices"),
        (((2, 3), (2, 3), (1, 3)), "do not cut"),
        (((2, 3), (2, 3), (2, 1)), "do not cut"),
        (((2, 3), (2, 4), (1, 2)), r"shape \[4\] does not have 3"),
        (((2, 2), (2, 2), (1, 2)), "another number of elements"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(layout, message) -> None:
    with pytest.raises(TypeInferError, match=message):
        meta.defuse_tensor(randn((5,)), *layout)


def test_fusing_needs_tensors_of_one_dtype() -> None:
    with pytest.raises(TypeInferError, match="data is empty"):
        meta.fuse_tensor(())
    with pytest.raises(TypeInferError, match="differ in dtype"):
        meta.fuse_tensor((randn((2,)), randn((2,), dtype="float64")))


def test_the_source_of_a_copy_has_to_be_where_the_array_is() -> None:
    with pytest.raises(DeviceError, match="on another device than src_device"):
        meta.device_copy(randn((2,)), "cuda", "cpu")


def test_a_copy_to_an_absent_device_is_refused_by_every_executor() -> None:
    x = randn((2,))
    traced = meta.model.trace(lambda x: meta.device_copy(x, "cpu", "cuda:99"))
    for run in (traced, lambda x: meta.device_copy(x, dst_device="cuda:99")):
        with pytest.raises(DeviceError, match="cuda:99 is not present"):
            run(x)
    with pytest.raises(DeviceError, match="cuda:99"):
        meta.vm.compile(traced, x)


@pytest.mark.skipif(get_testable_devices() == ["cpu"], reason="needs two devices")
def test_a_copy_goes_to_the_other_device_and_its_gradient_comes_back() -> None:
    x = randn((2, 3), requires_grad=True)
    traced = meta.model.trace(lambda x: meta.device_copy(x, "cpu", "cuda"))
    for run in (traced, lambda x: meta.device_copy(x, "cpu", "cuda")):
        x.grad = None
        y = run(x)
        assert y.device == "cuda:0"
        assert y.numpy().tolist() == x.numpy().tolist()
        meta.sum(y * y).backward()
        assert x.grad.device == "cpu"
        assert x.grad.numpy().tolist() == (2 * x.numpy()).tolist()
        assert meta.device_copy(y, "cuda", "cpu").device == "cpu"
    with pytest.raises(DeviceError, match="compiled for cpu holds no array on cuda:0"):
        meta.vm.compile(traced, x)
