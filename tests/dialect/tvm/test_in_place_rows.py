"""Kernels that write over an operand: rows with a bias on the CPU; rows that are reduced first, as
for CUDA, emulated, where a race with another thread fails.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tvm import te, tirx

from meta.base.device import CPU, Device
from meta.dialect.tvm import loss
from meta.dialect.tvm.build import kernel
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.schedule_cpu import schedule
from meta.dialect.tvm.schedule_cuda import row_plan, runs_in_place
from meta.dialect.tvm.target import for_device
from meta.testing.emulator import compiler, generated
from tests.dialect.tvm.functions import tensor

TARGET = for_device(CPU)


@pytest.mark.parametrize(("columns", "vectors"), [(32, True), (20, False)])
def test_rows(columns: int, vectors: bool) -> None:
    x, b = tensor(5, columns), tensor(columns, name="b")
    y = te.compute((5, columns), lambda i, j: te.erf(x[i, j] + b[j]))
    function = prim_func([x, b], [y], in_place=(0,))
    assert ("T.vectorized" in schedule(function, TARGET).script()) == vectors
    values, bias = torch.randn(5, columns), torch.randn(columns)
    expected = torch.erf(values + bias)
    kernel(function, TARGET)(values, bias, values)
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("plane", "vectors"), [((8, 8), True), ((4, 12), True), ((7, 7), False)])
def test_planes(plane: tuple[int, int], vectors: bool) -> None:
    shape = (3, 5, *plane)
    x, d = tensor(*shape), tensor(3, 5, name="d")
    y = te.compute(
        shape,
        lambda n, c, i, j: tirx.Select(x[n, c, i, j] > 0.0, d[n, c] / 64.0, tirx.const(0.0)),
    )
    function = prim_func([x, d], [y], in_place=(0,))
    assert ("T.vectorized" in schedule(function, TARGET).script()) == vectors
    values, mean = torch.randn(shape), torch.randn(3, 5)
    expected = torch.where(values > 0, (mean / 64)[:, :, None, None], 0.0)
    kernel(function, TARGET)(values, mean, values)
    torch.testing.assert_close(values, expected, rtol=0, atol=0)


@pytest.mark.product
@pytest.mark.parametrize("held", [True, False], ids=["in registers", "in several sweeps"])
@pytest.mark.parametrize(
    ("rows", "classes"),
    [
        (37, 40),  # several rows in a block, the last one with fewer
        (3, 8192),
        (3, 8200),
        (5, 1001),  # element by element
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_become_their_gradient(
    dtype: str, rows: int, classes: int, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.compiler()
    if not held:
        monkeypatch.setattr(row_plan, "MOST_HELD", 0)
    function = _gradient(dtype, rows, classes)
    assert runs_in_place(function, generated.TARGET)
    _compare(generated.emulated(function), dtype, rows, classes, "cpu")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("rows", "classes"), [(37, 40), (300, 50264), (5, 1001)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_become_their_gradient_on_a_gpu(dtype: str, rows: int, classes: int) -> None:
    target = for_device(Device("cuda"))
    function = _gradient(dtype, rows, classes)
    assert runs_in_place(function, target)
    _compare(kernel(function, target), dtype, rows, classes, "cuda")


def _gradient(dtype: str, rows: int, classes: int) -> tirx.PrimFunc:
    """Return the function that writes the gradient of scores over them."""
    dy, label = tensor(name="dy"), tensor(rows, dtype="int64", name="label")
    x = tensor(rows, classes, dtype=dtype)
    wide = te.compute((rows, classes), lambda i, j: x[i, j].astype("float32"))
    gradient = loss.cross_entropy_dpred(dy, wide, label)
    y = te.compute((rows, classes), lambda i, j: gradient[i, j].astype(dtype))
    return prim_func([x, dy, label], [y], in_place=(0,))


def _compare(run: Callable[..., None], dtype: str, rows: int, classes: int, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    values = (3 * torch.randn(rows, classes, generator=generator)).to(getattr(torch, dtype))
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[1] = -100  # a row that does not count
    expected = values.double().requires_grad_()
    (2.0 * F.cross_entropy(expected, labels)).backward()
    values, labels, dy = (x.to(device) for x in (values, labels, torch.tensor(2.0)))
    run(values, dy, labels, values)
    close = {"rtol": 1e-2, "atol": 1e-4} if dtype == "bfloat16" else {"rtol": 1e-4, "atol": 1e-7}
    torch.testing.assert_close(values.double().cpu(), expected.grad, **close)


def _other_rows(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, 64))
    last = te.compute((9,), lambda i: te.sum(x[8 - i, k], axis=k))
    return te.compute((9, 64), lambda i, j: x[i, j] - last[i])


def _columns(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, 9))
    total = te.compute((64,), lambda j: te.sum(x[k, j], axis=k))
    return te.compute((9, 64), lambda i, j: x[i, j] - total[j])


def _other_elements(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, 64))
    total = te.compute((9,), lambda i: te.sum(x[i, k], axis=k))
    return te.compute((9, 64), lambda i, j: x[i, 63 - j] - total[i])


def _first_element(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, 64))
    total = te.compute((9,), lambda i: te.sum(x[i, k], axis=k))
    return te.compute((9, 64), lambda i, j: x[i, 0] * x[i, j] - total[i])


def _rows_that_share_vectors(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, 4097))
    total = te.compute((9,), lambda i: te.sum(x[i, k], axis=k))
    return te.compute((9, 4097), lambda i, j: x[i, j] - total[i])


@pytest.mark.parametrize(
    ("columns", "made"),
    [
        (64, _other_rows),
        (64, _other_elements),
        (64, _first_element),
        (4097, _rows_that_share_vectors),
    ],
)
def test_what_others_read_is_not_overwritten(
    columns: int, made: Callable[[te.Tensor], te.Tensor]
) -> None:
    x = tensor(9, columns)
    assert not runs_in_place(prim_func([x], [made(x)], in_place=(0,)), generated.TARGET)


def test_what_a_kernel_before_has_read_is_overwritten() -> None:
    compiler.compiler()
    x = tensor(9, 64)
    function = prim_func([x], [_columns(x)], in_place=(0,))
    assert runs_in_place(function, generated.TARGET)
    values = torch.randn(9, 64, generator=torch.Generator().manual_seed(0))
    expected = values - values.sum(0)
    generated.emulated(function)(values, values)
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)
