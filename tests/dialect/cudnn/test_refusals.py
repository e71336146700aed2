"""What the dialect says where it cannot be used, and of calls that cuDNN does not take.

No device is needed to know. The table of levels names what there is.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest
import torch

import meta
import meta.dialect.cudnn as package
from meta.base.device import Device
from meta.dialect.core import DIALECTS, HANDWRITTEN, Unsupported
from meta.dialect.core.plevel import from_table
from meta.ir import parse_type

CUDA = Device("cuda:0")
DIALECT = DIALECTS["cudnn"]


@pytest.fixture(autouse=True, scope="module")
def families() -> None:
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


@pytest.mark.parametrize(
    ("device", "frontend", "library", "reason"),
    [
        (False, True, True, "no CUDA device"),
        (True, False, True, "nvidia-cudnn-frontend is not installed"),
        (True, True, False, "libcudnn not found"),
        (True, True, True, None),
    ],
)
def test_why_it_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, device: bool, frontend: bool, library: bool, reason: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device)
    monkeypatch.setattr(package, "find_spec", lambda name: object() if frontend else None)
    monkeypatch.setattr(package, "load", lambda name: object() if library else None)
    assert package.probe() == reason


def test_the_table_of_levels_is_that_of_the_kernels() -> None:
    made = {**DIALECT.ops, **DIALECT.patterns}
    table = from_table()["cudnn"]
    assert {name: one.plevels for name, one in made.items()} == table
    assert all(0 < one["cuda"] < HANDWRITTEN for one in table.values())


def refusal(name: str, *args: Any) -> str:
    """Return why the dialect refuses a call; strings are types."""
    base = getattr(meta.op, name)
    given = [parse_type(a) if isinstance(a, str) and "[" in a else a for a in args]
    bound = base.schema.bind(tuple(given), {}, lambda t: t)
    with pytest.raises(Unsupported) as caught:
        DIALECT.ops[name].make(base.call_values(bound, CUDA))
    return str(caught.value)


LAST = "float32[3, 3, 3, 3]", "float32[3, 3, 3, 3]"
GROUPS = "float32[1, 4, 6, 6]", None, "float32[1, 4, 6, 6]"
IMAGE, HALF = "float32[2, 4, 6, 6]", "float16[1, 2, 8, 16]"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (("conv2d", "int32[1, 4, 6, 6]", "int32[4, 4, 3, 3]"), "no convolution of int32"),
        (("conv2d", "float32[0, 4, 6, 6]", "float32[4, 4, 3, 3]"), "an empty tensor"),
        (("conv2d", "float32[n, 4, 6, 6]", "float32[4, 4, 3, 3]"), "extents that are numbers"),
        (("conv2d", *LAST, 1, 0, 1, 1, "NHWC", "HWIO", "NHWC"), "layouts NHWC, HWIO and NHWC"),
        (("conv2d", *LAST, 1, 0, 1, 1, "HWNC", "OHWI", "NHWC"), "layouts HWNC"),
        (("conv2d", *LAST, 1, 0, 1, 1, "NCHW", "OIHW", "NCWH"), "OIHW and NCWH"),
        (("conv2d_dw", *GROUPS, (4, 2, 3, 3), 1, (0, 1, 2, 1), 1, 2), "uneven padding"),
        (("conv2d_dw", *GROUPS, (4, 2, 3, 3), 1, 2, 2, 2), "dilation"),
        (("conv2d_dw", *GROUPS, (4, 1, 3, 3), 1, 1, 1, 4), "groups of one channel"),
        (("softmax", "float32[n, 4]"), "extents that are numbers"),
        (("softmax", "float32[0, 4]"), "1 to 2147483647 elements"),
        (("max_pool2d", IMAGE, 2, 2, (1, 0, 0, 0)), "both sides of a pooled axis alike"),
        (("max_pool2d", IMAGE, 2, 1, 0, 2), "no dilated pooling"),
        (("avg_pool2d", IMAGE, 4, 4, 0, 1, True), "whole windows only"),
        (("relu", "int32[4]"), "no activation of int32"),
        (("tanh_dx", "float32[4]", None, "float32[4]"), "from the result"),
        (("fused_attention", *["float32[1, 2, 8, 16]"] * 3), "attention of float32"),
        (("fused_attention", HALF, *["float16[1, 2, 0, 16]"] * 2), "empty tensor"),
        (("layer_norm", "float32[4, 6]", "float32[4]", "float32[4]", 0), "along the last axis"),
        (("layer_norm", "float32[4, 6]"), "wants all parameters"),
        (("rms_norm", "float32[4, 6]"), "wants a scale"),
    ],
    ids=str,
)
def test_why_a_call_is_refused(call: tuple[Any, ...], reason: str) -> None:
    assert reason in refusal(*call)
