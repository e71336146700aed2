"""The CPU schedules change the speed of a function, never its result."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from tvm import te, tirx

import meta
from meta import op
from meta.base import config
from meta.base.device import CPU
from meta.dialect.tvm import schedule_cpu
from meta.dialect.tvm.build import kernel
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.target import for_device
from tests.dialect.tvm import functions
from tests.dialect.tvm.functions import RECORDS, empty_like, sample, tensor

TARGET = for_device(CPU)


@pytest.mark.parametrize("name", RECORDS)
def test_result(name):
    inputs, outputs, oracle = RECORDS[name]()
    run = kernel(prim_func(inputs, outputs), TARGET)
    arrays = [sample(placeholder, seed) for seed, placeholder in enumerate(inputs)]
    results = [empty_like(output) for output in outputs]
    run(*arrays, *results)
    for result, expected in zip(results, oracle(*arrays), strict=True):
        torch.testing.assert_close(result, expected.contiguous(), rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("offset", [1, 3])
def test_unaligned_views(offset):
    """TVM's own default promises 64 bytes to LLVM; a view then crashes the process."""
    x = tensor(1024)
    run = kernel(prim_func([x], [te.compute((1024,), lambda i: x[i] * 2.0)]), TARGET)
    source, result = torch.randn(1100), torch.zeros(1100)
    run(source[offset : offset + 1024], result[offset : offset + 1024])
    torch.testing.assert_close(result[offset : offset + 1024], 2 * source[offset : offset + 1024])
    assert not result[:offset].any() and not result[offset + 1024 :].any()


@pytest.mark.product
@pytest.mark.parametrize("n", [65537, 131 * 127, 1031, 2 * 65537, 64 * 1031])
@pytest.mark.parametrize("rows", [1, 3])
def test_sums_are_as_good_for_every_extent(n: int, rows: int) -> None:
    """Those of a prime number of elements were added to one number, one by one."""
    x = torch.rand((rows, n), generator=torch.Generator().manual_seed(1)) * 3
    factors = torch.where(x < 1.5, -1.0, 1.0)
    factors[:, -3:] = 2.0
    with meta.dialect.prefer("tvm"):
        found = op.mse_loss(meta.ndarray(x[0]), meta.ndarray(torch.zeros(n)), reduction="sum")
        sums = op.sum(meta.ndarray(x), 1).torch()
        largest = op.max(meta.ndarray(-x), 1).torch()
        product = op.prod(meta.ndarray(factors), 1).torch()
    exact = x.double()
    torch.testing.assert_close(found.torch().double(), exact[0].square().sum(), rtol=1e-6, atol=0)
    torch.testing.assert_close(sums.double(), exact.sum(1), rtol=1e-6, atol=0)
    assert torch.equal(largest, (-x).amax(1))
    assert torch.equal(product, factors.prod(1))


def test_dynamic_shape():
    n = te.var("n", "int64")
    x = te.placeholder((n, 64), name="x")
    k = te.reduce_axis((0, n), "k")
    outputs = [
        te.compute((n, 64), lambda i, j: x[i, j] + 1.0),
        te.compute((64,), lambda j: te.sum(x[k, j], axis=k)),
    ]
    run = kernel(prim_func([x], outputs), TARGET)
    for rows in (0, 1, 33):
        source = torch.randn(rows, 64)
        y, total = torch.empty(rows, 64), torch.full((64,), 7.0)
        run(source, y, total)
        torch.testing.assert_close(y, source + 1)
        torch.testing.assert_close(total, source.sum(0), rtol=1e-5, atol=1e-5)


def test_softmax_is_one_parallel_loop_over_rows():
    inputs, outputs, _ = RECORDS["softmax"]()
    function = prim_func(inputs, outputs)
    text = schedule_cpu.schedule(function, TARGET).script()
    assert text.count("T.parallel(64)") == 1


def test_unrelated_outputs_share_no_rows():
    """TVM would otherwise compute all of the second for every row of the first."""
    x = tensor(64, 64)
    left = te.compute((64, 32), lambda i, j: x[i, j], name="left")
    right = te.compute((64, 32), lambda i, j: x[i, j + 32], name="right")
    text = schedule_cpu.schedule(prim_func([x], [left, right]), TARGET).script()
    loops = [line for line in text.splitlines() if line.startswith("    for ")]
    assert len(loops) == 2  # one after the other


def test_a_reduction_over_rows_keeps_its_columns_innermost():
    """Also with an elementwise stage behind it, which has these columns as its rows."""
    x, k = tensor(256, 512), te.reduce_axis((0, 256), "k")
    total = te.compute((512,), lambda j: te.sum(x[k, j], axis=k), name="total")
    mean = te.compute((512,), lambda j: te.exp(total[j]), name="scaled")
    text = schedule_cpu.schedule(prim_func([x], [mean]), TARGET).script()
    assert "v_k = T.axis.reduce(256, k)" in text
    assert "for k, j_1 in T.grid(256" in text


@pytest.mark.parametrize("examples", [1, 4])
def test_what_is_read_twice_at_one_place_is_no_stage_of_its_own(examples):
    """A comparison of what costs much, and itself: LLVM computes it once."""
    x, c = tensor(examples, 8, 16, 16), tensor(8)
    y = te.compute(x.shape, lambda n, i, h, w: (x[n, i, h, w] - c[i]) / te.sqrt(c[i] + 1.0) * c[i])
    zero = tirx.const(0.0, "float32")
    relu = te.compute(x.shape, lambda *i: tirx.Select(y(*i) < zero, zero, y(*i)))
    function = prim_func([x, c], [relu])
    assert "alloc_buffer" not in schedule_cpu.schedule(function, TARGET).script()
    image, scale = torch.randn(examples, 8, 16, 16), torch.rand(8) + 0.5
    found, per = torch.empty_like(image), scale[:, None, None]
    kernel(function, TARGET)(image, scale, found)
    torch.testing.assert_close(found, torch.relu((image - per) / torch.sqrt(per + 1) * per))


def test_what_is_read_at_two_places_stays_a_stage():
    x = tensor(64, 65)
    y = te.compute(x.shape, lambda i, j: te.exp(x[i, j]) / te.sqrt(x[i, j]) * te.exp(x[i, 0]))
    pairs = te.compute((64, 64), lambda i, j: y[i, j] * y[i, j + 1])
    text = schedule_cpu.schedule(prim_func([x], [pairs]), TARGET).script()
    assert "alloc_buffer" in text


def test_small_functions_stay_serial():
    inputs, outputs, _ = RECORDS["elementwise"]()
    small = schedule_cpu.schedule(prim_func(inputs, outputs), TARGET)
    assert (
        "parallel"
        in schedule_cpu.schedule(prim_func(*RECORDS["elementwise_big"]()[:2]), TARGET).script()
    )
    assert "parallel" not in small.script()


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("extents", [(64, 48), (5, 7), (16,)])
def test_steps_that_write_in_place(offset, extents):
    """As an optimizer's: a new velocity, then a parameter that reads it, over the old ones."""
    x, v, rate = tensor(*extents), tensor(*extents, name="v"), tensor(1, name="rate")
    v_new = te.compute(extents, lambda *i: v(*i) * 0.5 + te.exp(x(*i)), name="v_new")
    x_new = te.compute(extents, lambda *i: x(*i) - rate(0) * v_new(*i), name="x_new")
    function = prim_func([x, v, rate], [x_new, v_new], in_place=[0, 1])
    count, generator = math.prod(extents), torch.Generator().manual_seed(0)
    parameter, velocity = (
        torch.randn(count + offset, generator=generator)[offset:].view(extents) for _ in range(2)
    )
    expected = velocity * 0.5 + parameter.exp()
    moved = parameter - 0.1 * expected
    kernel(function, TARGET)(parameter, velocity, torch.tensor([0.1]), parameter, velocity)
    torch.testing.assert_close(velocity, expected)
    torch.testing.assert_close(parameter, moved)
    vector = "T.vectorized" in schedule_cpu.schedule(function, TARGET).script()
    assert vector == (count % schedule_cpu.LANES == 0)


def test_products_and_sums_apart() -> None:
    """Without the instruction for both at once, a compiled program has the bits of eager calls."""
    fields = json.loads(str(TARGET))
    fields["mattr"] = [*fields.get("mattr", ()), "-fma"]
    numbers = np.random.default_rng(0).normal(size=(64, 33)).astype("float32")

    @meta.model.trace
    def program(x: Any) -> Any:
        return x * x - meta.softmax(x) * x + meta.gelu(x) * 3.0

    with config.override(META_CPU_TARGET=json.dumps(fields)):
        x = meta.array(numbers)
        compiled = meta.vm.compile(program, x, device="cpu")
        with meta.dialect.prefer("tvm"):
            eager = program(x)
        assert np.array_equal(np.asarray(compiled(x)), np.asarray(eager))


@pytest.mark.parametrize(("columns", "vectors"), [(48, True), (20, False)])
def test_a_choice_in_short_rows_of_a_part_is_made_in_vectors(columns: int, vectors: bool) -> None:
    """LLVM unrolls a loop over such a row, and takes a branch for each element."""
    x, c = tensor(4, 9, columns), tensor(4, 8, columns, name="c")
    zero = tirx.const(0.0, "float32")
    result = te.compute(c.shape, lambda *i: tirx.Select(c(*i) < zero, zero, x(*i)))
    function = prim_func([x, c], [result])
    assert ("T.vectorized(16)" in schedule_cpu.schedule(function, TARGET).script()) == vectors
    given, chosen = torch.randn(4, 9, columns), torch.randn(4, 8, columns)
    found = torch.empty_like(chosen)
    kernel(function, TARGET)(given, chosen, found)
    assert torch.equal(found, given[:, :8].masked_fill(chosen < 0, 0.0))


@pytest.mark.parametrize(("columns", "sums"), [(8, 0), (20, 4), (24, 8), (48, 16), (63, 0)])
@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_short_rows_are_summed_in_vectors(name: str, columns: int, sums: int) -> None:
    """LLVM unrolls their loops, and adds number to number."""
    inputs, outputs, oracle = getattr(functions, name)(64, columns)
    function = prim_func(inputs, outputs)
    assert (f"T.vectorized({sums})" in schedule_cpu.schedule(function, TARGET).script()) == (
        sums > 0
    )
    arrays = [sample(placeholder, seed) for seed, placeholder in enumerate(inputs)]
    results = [empty_like(output) for output in outputs]
    kernel(function, TARGET)(*arrays, *results)
    for result, expected in zip(results, oracle(*arrays), strict=True):
        torch.testing.assert_close(result, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(4, 4, 64, 32), (4, 64, 4, 32)])
def test_no_more_loops_are_fused_than_threads_need(shape: tuple[int, ...]) -> None:
    """Rows of a transpose are found by divisions in a loop that is fused of all others."""
    x = tensor(shape[0], shape[2], shape[1], shape[3])
    result = te.compute(shape, lambda a, b, c, d: x(a, c, b, d))
    text = str(schedule_cpu.schedule(prim_func([x], [result]), TARGET))
    assert "T.parallel(64)" in text
    values = torch.randn(shape[0], shape[2], shape[1], shape[3])
    found = torch.empty(shape)
    kernel(prim_func([x], [result]), TARGET)(values, found)
    assert torch.equal(found, values.transpose(1, 2))


@pytest.mark.parametrize("width", [1, 3])
def test_what_is_padded_behind_only_is_not_one_loop(width: int) -> None:
    """Its elements are read where they are written, yet the rows have other lengths: as one loop
    with remainders in it, the kernel took twenty times as long.
    """
    x = tensor(4, 32, 32, 48)
    inside = lambda i: tirx.all(i[1] < 32, i[2] < 32)  # noqa: E731
    result = te.compute(
        (4, 32 + width, 32 + width, 48),
        lambda *i: tirx.if_then_else(inside(i), x(*i), tirx.const(0, "float32")),
    )
    text = str(schedule_cpu.schedule(prim_func([x], [result]), TARGET))
    assert "T.axis.spatial(48, i3_0 * 16 + i3_1)" in text
    values = torch.randn(4, 32, 32, 48)
    found = torch.empty(4, 32 + width, 32 + width, 48)
    kernel(prim_func([x], [result]), TARGET)(values, found)
    expected = torch.nn.functional.pad(values, (0, 0, 0, width, 0, width))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
