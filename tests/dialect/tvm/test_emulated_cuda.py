"""Every operator's CUDA kernels by TVM, emulated on the CPU, beside the oracle.

An ordinary run takes a few that once were wrong, or take a way of their own. A kernel that reads or
writes outside of its arguments, misaligned, or in a race with another thread, fails too.
"""

from __future__ import annotations

import pytest
import torch
from tvm import te

from meta.dialect.tvm.lower import prim_func
from meta.testing import opcheck
from meta.testing.case import OpCase, Sample
from meta.testing.emulator import generated
from meta.testing.emulator.launching import EmulationError, check_limits
from tests.op.records import CASES

OFTEN = {
    "adam(F[0, 2], F[0, 2], F[0, 2], F[0, 2], 1, 0.1)",  # some results have no elements
    "conv1d(F[1, 4, 9], F[4, 1, 3], (3,), (0, 2), 2, 4)",  # fewer results than threads
    "max_pool1d_dx(x[1, 3, 8], y[1, 3, 5], F[1, 3, 5], 3, 2, 1, 1, True, False)",  # compiles
    "mse_loss(F[33, 70], F[33, 70], reduction='sum')",  # the last vector ends behind the array
    "scatter_add(I[2, 3], C[[0, 2, -1], [9, 1, 1]], I[2, 3], 1)",  # a sum of bytes
    "max_pool2d(F[1, 1, 7, 8], 3, 2, 1, 1, True, False)",  # windows are cut off on all sides
    "max_pool2d(F[2, 6, 5, 3], 2, 2, layout='NHWC')",
    "prod_dx(F[2, 3, 4], F[3], axis=(0, 2))",  # one shared array for two of other types
    "resize2d_dx(F[1, 2, 33, 40], F[1, 2, 17, 95], (17, 95), 'NCHW', 'cubic', 'half_pixel', '', "
    "-0.75, 1)",  # compiles in seconds
    "rotary_embedding(F[2, 3, 4], F[3, 2], F[3, 2])",  # a side of a selection is outside
    "lamb(C[1.0, 2.0], C[0.0, 0.0], C[0.0, 0.0], C[0.0, 0.0], 1, 0.1, weight_decay=0.0)",
}
HALF = "float16", "bfloat16"


def _samples(dtypes: tuple[str, ...]) -> list[pytest.param]:
    """Return the samples with the dtypes among these that the records have, or their first."""
    return [
        pytest.param(
            case, one, dtype,
            id=f"{name[:90]}-{dtype}",
            marks=[] if name in OFTEN and dtype == "float32" else pytest.mark.sweep,
        )
        for case in CASES
        for one in case.samples
        if "cuda" in case.devices and (name := f"{case.op}({one})")
        for dtype in dtypes
        if dtype in (case.dtypes or ("float32",))
    ]  # fmt: skip


@pytest.mark.parametrize(("case", "one", "dtype"), _samples(("float32", *HALF, "int32", "bool")))
def test_a_kernel_agrees_with_the_oracle(
    case: OpCase, one: Sample, dtype: str, on_cuda: None
) -> None:
    if "tvm" in opcheck.accepting(case, one, dtype):
        opcheck.check_dialect(case, one, dtype, "tvm")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("case", "one"),
    [
        pytest.param(case, one, id=f"{case.op}({one})"[:90])
        for case in CASES
        for one in case.samples
        if "cuda" in case.devices and case.grad and one.has_floats
    ],
)
def test_the_gradient_is_right(case: OpCase, one: Sample, on_cuda: None) -> None:
    opcheck.check_gradient(case, one)


def _function() -> tuple[object, torch.Tensor, torch.Tensor]:
    x = te.placeholder((100,), "float32", "x")
    y = te.compute((100,), lambda i: x[i] + 1, name="y")
    return prim_func([x], [y]), torch.rand(100), torch.empty(100)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("x_ptr[0]", "x_ptr[100]", "a read of 4 bytes at 400"),
        ("x_ptr + (", "x_ptr + 1 + (", "which is not aligned"),
        ("y_ptr + ((", "y_ptr + 0 * ((", "a race: writes what thread 0 writes"),
    ],
)
def test_faults_are_found(
    right: str, wrong: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, x, y = _function()
    original = generated.source.generated

    def changed(text: str) -> tuple[str, list[generated.source.Kernel]]:
        code, kernels = original(text)
        code = code.replace("{\n  LOCAL", "{\n  float first = x_ptr[0];\n  LOCAL", 1)
        assert right in code, code
        return code.replace(right, wrong), kernels

    monkeypatch.setattr(generated.source, "generated", changed)
    with pytest.raises(RuntimeError, match=message):
        generated.emulated(function)(x, y)


def test_launches_have_limits() -> None:
    check_limits((1, 1, 1), (1024, 1, 1))
    for grid, block in [((1, 1, 1), (1025, 1, 1)), ((1, 65536, 1), (32, 1, 1))]:
        with pytest.raises(EmulationError):
            check_limits(grid, block)
