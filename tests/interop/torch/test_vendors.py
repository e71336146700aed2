"""`enable` under the dispatch keys that vendors state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import meta.interop.torch as interop
from meta.base.errors import DeviceError
from meta.dialect import Dialect, vendors
from meta.interop.torch.registration import key_of
from tests.conftest import run_python
from tests.registered import remove_dialects

ROOT = Path(__file__).parents[3]
PYTHON_DEVICES = hasattr(torch._C, "_acc") and hasattr(
    torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"
)


def written(folder: Path, stated: str, ops: str) -> Path:
    """Write a vendor's folder with a function ``relu``."""
    (folder / "ops").mkdir(parents=True)
    vendor = f'vendor = Vendor("acme", {stated}, dialect="vendor_chips")\n'
    text = f"from meta.dialect.vendors import Vendor\n\n{vendor}"
    (folder / "__init__.py").write_text(text, "utf-8")
    (folder / "ops" / "__init__.py").write_text(f"{ops}\n\n__all__ = ['relu']\n", "utf-8")
    return folder


@pytest.fixture
def chips() -> Iterator[None]:
    """A dialect on the CPU that has only what vendors bring."""
    made = Dialect("vendor_chips", devices=("cpu",))
    yield
    vendors.remove("acme")
    remove_dialects(made)


@pytest.mark.skipif(not PYTHON_DEVICES, reason="this torch has no devices written in Python")
def test_a_device_of_its_own_at_private_use_one(tmp_path: Path) -> None:
    ops = """
import numpy as np
from __main__ import Chip

def relu(x):
    return Chip.of(np.maximum(x.held, 0) + 100)
"""
    stated = '"chip", dispatch_key="PrivateUse1", dtypes=("float32",)'
    folder = written(tmp_path / "acme", stated, ops)
    printed = run_python(Path(__file__).with_name("chip.py"), folder)
    assert printed.split()[-1:] == ["done"]


def test_a_vendor_of_the_cpu(chips: None, tmp_path: Path) -> None:
    ops = "import torch\n\ndef relu(x):\n    return torch.clamp_min(x, 0) + 100"
    stated = '"cpu", probe=lambda: None'
    vendors.add(written(tmp_path / "acme", stated, ops))
    assert key_of("cpu") == "CPU"
    interop.reset_report()
    with interop.enable(["relu"], device="cpu"):
        assert torch.relu(torch.tensor([-1.0, 2.0])).tolist() == [100.0, 102.0]
    assert interop.report().served == {("relu", "vendor_chips"): 1}


def test_a_key_that_torch_does_not_have(chips: None, tmp_path: Path) -> None:
    stated = '"cpu", probe=lambda: None, dispatch_key="PrivateUse"'
    ops = "import torch\n\ndef relu(x):\n    return torch.clamp_min(x, 0)"
    vendors.add(written(tmp_path / "acme", stated, ops))
    with pytest.raises(DeviceError, match="dispatch key") as raised:
        interop.enable(["relu"], device="cpu")
    assert "PrivateUse1" in str(raised.value)
    assert torch.relu(torch.tensor(-1.0)).item() == 0.0
