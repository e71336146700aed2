"""A program with a device of its own in PyTorch, "chip" at the key PrivateUse1, and a vendor of it.

A tensor of the device holds an array of NumPy, so the device is of Python (as PyTorch's own test of
PrivateUse1 is). Run with the path of the vendor's folder.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import meta
import meta.interop.torch as interop
from meta.base.errors import DeviceError, MetaError
from meta.dialect import vendors

NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


class Chip(torch.Tensor):
    """A tensor on the device."""

    held: Any

    @staticmethod
    def of(array: Any) -> Chip:
        dtype = next(dtype for dtype, one in NUMPY.items() if one == array.dtype)
        make: Any = torch._C._acc  # type: ignore[attr-defined]
        made: Any = make.create_empty_tensor(array.shape, dtype)
        made.__class__ = Chip
        made.held = np.ascontiguousarray(array)
        return made


def kernels() -> Any:
    """Register what PyTorch itself has for the device."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("detach", lambda x: Chip.of(x.held), "PrivateUse1")
    library.impl(
        "add.Tensor", lambda x, y, alpha=1: Chip.of(x.held + alpha * y.held), "PrivateUse1"
    )
    library.impl("tanh", lambda x: Chip.of(np.tanh(x.held)), "PrivateUse1")
    library.impl("relu", lambda x: Chip.of(np.maximum(x.held, 0)), "PrivateUse1")
    return library


def main(folder: str) -> None:
    known = vendors.add(folder)
    assert (known.device, known.dispatch_key) == ("chip", "PrivateUse1")
    (verdict,) = (v for v in vendors.verdicts() if v.known.name == "acme")
    assert not verdict.active and "torch has no device chip" in verdict.why, verdict.why
    try:
        interop.enable(device="chip")
    except DeviceError as error:
        assert "'chip'" in str(error)
    else:
        raise AssertionError("enabled for a device that is not there")

    _setup_privateuseone_for_python_backend("chip")
    library = kernels()
    (verdict,) = (v for v in vendors.verdicts() if v.known.name == "acme")
    assert verdict.active, verdict.why
    x, y = Chip.of(np.float32([[-1.0, 2.0]])), Chip.of(np.float32([[3.0, 4.0]]))
    assert torch.relu(x).held.tolist() == [[0.0, 2.0]]
    with interop.enable() as enabled:
        assert enabled.devices == ("chip",)
        relu, total = torch.relu(x), torch.add(x, y)
        again = torch.relu(x)
        other = torch.tanh(x)
        double = torch.relu(Chip.of(np.float64([[-1.0]])))
        assert torch.relu(torch.tensor([-1.0])).item() == 0.0
    # The vendor's relu adds 100; the other functions are PyTorch's.
    assert relu.held.tolist() == again.held.tolist() == [[100.0, 102.0]]
    assert relu.device.type == "chip" and isinstance(relu, Chip)
    assert total.held.tolist() == [[2.0, 6.0]] and other.held.tolist() == np.tanh(x.held).tolist()
    assert double.held.tolist() == [[0.0]]
    assert torch.relu(x).held.tolist() == [[0.0, 2.0]]
    report = interop.report()
    assert dict(report.served) == {("relu", "vendor_chips"): 2}, report
    assert {name for name, _ in report.refused} == {"relu", "add.Tensor", "tanh"}, report
    interop.reset_report()
    try:
        meta.measure(meta.relu, meta.ndarray(x))
    except MetaError as error:
        assert "no clock" in str(error), error
    del library
    print("done")


if __name__ == "__main__":
    meta.dialect.Dialect("vendor_chips", devices=("cpu",))
    main(sys.argv[1])
