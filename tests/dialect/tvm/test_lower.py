"""Lowering: parameters in order, scalars, copies, updates in place."""

from __future__ import annotations

import pytest
import torch
from tvm import te, topi

from meta.base import config
from meta.base.device import CPU
from meta.base.dtype import COMPLEX, DTYPES, FLOAT8, TO_TORCH
from meta.dialect.tvm import build
from meta.dialect.tvm.build import kernel
from meta.dialect.tvm.lower import NO_ALIAS, prim_func
from meta.dialect.tvm.target import for_device
from tests.dialect.tvm.functions import tensor

TARGET = for_device(CPU)


@pytest.mark.product
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in FLOAT8 | COMPLEX])
@pytest.mark.parametrize("shape", [(), (5,), (3, 130)])
def test_dtypes(dtype, shape):
    x, y = tensor(*shape, dtype=dtype), tensor(*shape, dtype=dtype, name="y")
    both = te.compute(
        shape, lambda *i: te.all(x(*i), y(*i)) if dtype == "bool" else x(*i) * y(*i) + x(*i)
    )
    run = kernel(prim_func([x, y], [both]), TARGET)
    a = torch.arange(x_count(shape)).reshape(shape).remainder(5).to(TO_TORCH[dtype])
    b = (a.to(torch.int64) + 1).remainder(3).to(TO_TORCH[dtype])
    result = torch.empty(shape, dtype=TO_TORCH[dtype])
    run(a, b, result)
    numbers = (a.double() * b.double() + a.double()).to(TO_TORCH[dtype])  # small, so exact
    assert torch.equal(result, a & b if dtype == "bool" else numbers)


def x_count(shape):
    return int(torch.Size(shape).numel())


def test_half_precision_rounds_as_torch():
    for dtype in ("float16", "bfloat16"):
        x = tensor(4096, dtype=dtype)
        third = topi.divide(x, te.const(3.0, dtype))
        source, result = (torch.randn(4096).to(TO_TORCH[dtype]) for _ in range(2))
        kernel(prim_func([x], [third]), TARGET)(source, result)
        assert torch.equal(result, source / 3)


def test_scalars_between_tensors():
    x, y = tensor(4), tensor(4, name="y")
    s, n, d, b = (te.var(t, t) for t in ("float32", "int64", "float64", "bool"))
    out = te.compute(
        (4,),
        lambda i: te.if_then_else(b, x[i] * s + y[i] * n.astype("float32"), d.astype("float32")),
    )
    run = kernel(prim_func([x, s, y, n, d, b], [out]), TARGET)
    a, c, result = torch.arange(4.0), torch.ones(4), torch.empty(4)
    run(a, 2.5, c, 3, 0.5, True, result)
    assert torch.equal(result, a * 2.5 + 3)
    run(a, 2, c, 3, 0.5, False, result)
    assert torch.equal(result, torch.full((4,), 0.5))


def test_input_as_output_and_output_twice():
    x = tensor(3, 4)
    y = te.compute((3, 4), lambda i, j: x[i, j] + 1.0)
    run = kernel(prim_func([x], [x, y, y]), TARGET)
    source, results = torch.randn(3, 4), [torch.empty(3, 4) for _ in range(3)]
    run(source, *results)
    assert torch.equal(results[0], source)
    assert torch.equal(results[1], source + 1) and torch.equal(results[2], source + 1)


def test_updates_see_old_values():
    """The second update reads the old value of what the first one overwrites."""
    m, p, g = (tensor(100, name=name) for name in "mpg")
    scaled = te.compute((100,), lambda i: te.exp(m[i]))
    new_m = te.compute((100,), lambda i: m[i] * 0.5 + g[i])
    new_p = te.compute((100,), lambda i: p[i] - scaled[i] * m[i] - new_m[i])
    function = prim_func([m, p, g], [new_m, new_p], in_place=(0, 1))
    assert NO_ALIAS not in function.attrs
    a, b, c = torch.randn(100), torch.randn(100), torch.randn(100)
    expected_m = a * 0.5 + c
    expected_p = b - a.exp() * a - expected_m
    kernel(function, TARGET)(a, b, c, a, b)
    torch.testing.assert_close(a, expected_m)
    torch.testing.assert_close(b, expected_p, rtol=1e-5, atol=1e-5)


def test_simple_updates_are_not_copied():
    m, p = tensor(10, name="m"), tensor(10, name="p")
    new_m = te.compute((10,), lambda i: m[i] * 0.5)
    new_p = te.compute((10,), lambda i: p[i] - new_m[i])
    text = prim_func([m, p], [new_m, new_p], in_place=(0, 1)).script()
    assert "alloc_buffer" not in text


@pytest.mark.parametrize("is_linked", [True, False])
def test_wrong_arguments_are_refused_not_read(
    is_linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what we link to a library, and by TVM's own checks where there is none."""
    x, y = tensor(4, 3), te.placeholder((te.var("n"), 200), "float16", "y")
    n = te.var("m")
    z = te.placeholder((n,), "int8", "z")
    count = te.var("count", "int64")
    results = [
        te.compute((4, 3), lambda i, j: x[i, j]),
        te.compute((n, 200), lambda i, j: y[i, j]),
        te.compute((n,), lambda i: z[i] + count.astype("int8")),
    ]
    good = [
        *(torch.randn(4, 3), torch.randn(2, 200).half(), torch.ones(2).to(torch.int8), 5),
        *(torch.empty(4, 3), torch.empty(2, 200).half(), torch.empty(2).to(torch.int8)),
    ]
    wrong: dict[int, list[object]] = {
        0: [
            *(torch.randn(5, 3), torch.randn(4, 4), torch.randn(12), torch.randn(4, 3, 1)),
            *(torch.randn(4, 3).double(), torch.ones(4, 3, dtype=torch.int32), torch.randn(3, 4).T),
            *(torch.randn(8, 3)[::2], torch.randn(4, 6)[:, ::2], 3, 2.5, None, "text"),
            *(torch.randn(4, 0), torch.randn(4, 3, device="meta")),
        ],
        1: [torch.randn(2, 201).half(), torch.randn(200).half(), torch.randn(2, 200).bfloat16()],
        2: [torch.ones(3, dtype=torch.int8), torch.ones(2, dtype=torch.uint8), torch.ones(2, 1)],
        3: [2.5, torch.ones(()), None],
        5: [torch.empty(3, 200).half()],
    }
    monkeypatch.setattr(build, "_kernels", {})
    with config.override(META_CACHE=is_linked):
        run = kernel(prim_func([x, y, z, count], results), TARGET)
    for position, values in wrong.items():
        for value in values:
            with pytest.raises((ValueError, TypeError, BufferError, RuntimeError)):
                run(*good[:position], value, *good[position + 1 :])
    for few in (good[:-1], [*good, good[0]], []):
        with pytest.raises(TypeError):
            run(*few)
    run(*good)
    for argument, result in zip(good[:3], good[4:], strict=True):
        change = 5 if result.dtype is torch.int8 else 0
        assert torch.equal(argument + change, result)


@pytest.mark.parametrize("is_linked", [True, False])
def test_strides_along_one_element_are_any(
    is_linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, n = tensor(1, 3, 1), te.var("n")
    y = te.placeholder((n, 3), "float32", "y")
    outputs = [te.compute((1, 3, 1), lambda *i: x[i]), te.compute((n, 3), lambda *i: y[i])]
    monkeypatch.setattr(build, "_kernels", {})
    with config.override(META_CACHE=is_linked):
        run = kernel(prim_func([x, y], outputs), TARGET)
    a, b = torch.randn(1, 3, 2)[:, :3, :1].contiguous(), torch.randn(1, 3)
    a, b = a.as_strided((1, 3, 1), (7, 1, 5)), b.as_strided((1, 3), (9, 1))
    found = [torch.empty(1, 3, 1), torch.empty(1, 3)]
    run(a, b, *found)
    assert torch.equal(found[0], a) and torch.equal(found[1], b)
