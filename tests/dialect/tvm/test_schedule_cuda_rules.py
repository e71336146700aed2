"""The rules of CUDA kernels: each covers its functions, in wide accesses; with a GPU, rightly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import tvm
from tvm import te, tirx, topi

from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.tvm import cuda_source, schedule_cuda
from meta.dialect.tvm.build import kernel
from meta.dialect.tvm.cuda_source import required
from meta.dialect.tvm.launch import Unaligned, realigned
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.schedule_cuda import injective
from meta.dialect.tvm.target import cuda, for_device
from meta.testing.emulator import generated
from tests.dialect.tvm.functions import empty_like, sample, tensor

Case = tuple[list[Any], list[Any], Callable[..., list[torch.Tensor]]]


def elements(shape: tuple[int, ...], dtype: str, out: str | None = None) -> Case:
    """A sum times one of its terms. (Of a product and a sum with it CUDA's compiler makes one
    instruction, which rounds once: a result of halves then differs from torch's by a unit.)
    """
    x, y = tensor(*shape, dtype=dtype), tensor(*shape, dtype=dtype, name="y")
    out = out or dtype
    made = te.compute(shape, lambda *i: ((x(*i) + y(*i)) * x(*i)).astype(out), name="made")
    return [x, y], [made], lambda x, y: [((x + y) * x).to(TO_TORCH[out])]


def broadcast(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> Case:
    """An addition of what has one element along ``axes``."""
    one = tuple(1 if a in axes else e for a, e in enumerate(shape))
    x, y = tensor(*shape, dtype=dtype), tensor(*one, dtype=dtype, name="y")
    return [x, y], [topi.add(x, y)], lambda x, y: [x + y]


def chosen(shape: tuple[int, ...]) -> Case:
    c = tensor(*shape, dtype="bool", name="c")
    x, y = tensor(*shape, dtype="float16"), tensor(*shape, dtype="float16", name="y")
    made = te.compute(shape, lambda *i: tirx.Select(c(*i), x(*i), y(*i)))
    return [c, x, y], [made], lambda c, x, y: [torch.where(c, x, y)]


def several(n: int) -> Case:
    x = tensor(n)
    twice = te.compute((n,), lambda i: x[i] * 2.0)
    return [x], [twice, te.compute((n,), lambda i: twice[i] + x[i])], lambda x: [x * 2, x * 3]


def joined(rows: int, left: int, right: int) -> Case:
    """What is read under a condition is not read outside of it."""
    a, b = tensor(rows, left), tensor(rows, right, name="b")
    return [a, b], [topi.concatenate([a, b], 1)], lambda a, b: [torch.cat((a, b), 1)]


def permuted(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> Case:
    x = tensor(*shape, dtype=dtype)
    turned = topi.transpose(x, axes)
    made = te.compute(turned.shape, lambda *i: turned(*i) + turned(*i))
    return [x], [made], lambda x: [x.permute(axes) + x.permute(axes)]


def permuted_with_bias(m: int, n: int) -> Case:
    x, b = tensor(m, n, dtype="float16"), tensor(m, dtype="float16", name="b")
    made = te.compute((n, m), lambda i, j: (x[j, i] + b[j]).astype("float32"))
    return [x, b], [made], lambda x, b: [(x.T + b).float()]


def softmax(shape: tuple[int, ...], dtype: str = "float32") -> Case:
    x = tensor(*shape, dtype=dtype)
    wide = te.compute(shape, lambda *i: x(*i).astype("float32"))
    made = topi.nn.softmax(wide)
    narrow = te.compute(shape, lambda *i: made(*i).astype(dtype))
    return [x], [narrow], lambda x: [x.float().softmax(-1).to(x.dtype)]


def weighted(rows: int, columns: int, dtype: str) -> Case:
    """A sum with weights, what it is subtracted from, and the sum itself."""
    x, w = tensor(rows, columns, dtype=dtype), tensor(columns, name="w")
    k = te.reduce_axis((0, columns))
    total = te.compute((rows,), lambda i: te.sum(x[i, k].astype("float32") * w[k], axis=k))
    rest = te.compute((rows, columns), lambda i, j: x[i, j].astype("float32") - total[i] * 0.01)

    def oracle(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        sums = (x.double() * w).sum(1)
        return [sums.float(), (x.double() - sums[:, None] * 0.01).float()]

    return [x, w], [total, rest], oracle


def largest(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> Case:
    x = tensor(*shape, dtype=dtype)
    return [x], [topi.max(x, axes)], lambda x: [x.amax(axes)]


def total(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = "float32") -> Case:
    x = tensor(*shape, dtype=dtype)
    wide = te.compute(shape, lambda *i: x(*i).astype("float32"))
    made = topi.multiply(topi.sum(wide, axes), 0.125)
    return [x], [made], lambda x: [(x.double().sum(axes) * 0.125).float()]


def gradients(rows: int, columns: int) -> Case:
    """Two sums down the columns, of which one has a factor for each row."""
    x, y = tensor(rows, columns), tensor(rows, columns, name="y")
    m = tensor(rows, name="m")
    r, s = te.reduce_axis((0, rows)), te.reduce_axis((0, rows))
    first = te.compute((columns,), lambda j: te.sum(x[r, j] * (y[r, j] - m[r]), axis=r))
    second = te.compute((columns,), lambda j: te.sum(y[s, j], axis=s))
    return (
        [x, y, m],
        [first, second],
        lambda x, y, m: [
            (x.double() * (y.double() - m[:, None])).sum(0).float(),
            y.double().sum(0).float(),
        ],
    )


def windows(rows: int, n: int) -> Case:
    """Sums of pairs; nothing is read beyond a bound, so nothing can be read ahead."""
    x, k = tensor(rows, n), te.reduce_axis((0, 2))

    def pair(i, j):
        inside = j * 2 + k < n - 1
        return te.sum(tirx.if_then_else(inside, x[i, j * 2 + k], tirx.const(0, "float32")), axis=k)

    def oracle(x):
        return [torch.cat((x[:, :-1], torch.zeros_like(x[:, :1])), 1).view(rows, -1, 2).sum(2)]

    return [x], [te.compute((rows, n // 2), pair)], oracle


def pooled(shape: tuple[int, ...], dtype: str, last: bool = False) -> Case:
    """Sums of windows of 3 by 3, two apart and padded by 1, and their half: channels first or last.

    Neighbouring windows share what they read.
    """
    n, c, h, w = shape
    x = tensor(*((n, h, w, c) if last else shape), dtype=dtype)
    place = (lambda n, c, h, w: (n, h, w, c)) if last else (lambda *i: i)
    k, m = te.reduce_axis((0, 3)), te.reduce_axis((0, 3))

    def total(*i):
        a, b, y, v = (i[0], i[3], i[1], i[2]) if last else i
        y, v = y * 2 + k - 1, v * 2 + m - 1
        inside = tirx.all(y >= 0, y < h, v >= 0, v < w)
        value = x[place(a, b, y, v)].astype("float32")
        return te.sum(tirx.if_then_else(inside, value, tirx.const(0, "float32")), axis=[k, m])

    out = place(n, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1)
    sums = te.compute(out, total, name="sums")
    made = te.compute(out, lambda *i: (sums(*i) * 0.5).astype(dtype), name="half")

    def oracle(x):
        first = x.permute(0, 3, 1, 2) if last else x
        y = torch.nn.functional.avg_pool2d(first.float(), 3, 2, 1, divisor_override=2).to(x.dtype)
        return [y.permute(0, 2, 3, 1) if last else y]

    return [x], [made], oracle


def deviations(a: int, b: int, c: int) -> Case:
    """Means, which are a result, and sums that need them: not one kernel."""
    x = tensor(a, b, c)
    k, m = te.reduce_axis((0, b)), te.reduce_axis((0, b))
    total = te.compute((a, c), lambda i, j: te.sum(x[i, k, j], axis=k), name="total")
    mean = te.compute((a, c), lambda i, j: total[i, j] / float(b), name="mean")
    square = te.compute(
        (a, c),
        lambda i, j: te.sum((x[i, m, j] - mean[i, j]) * (x[i, m, j] - mean[i, j]), axis=m),
        name="square",
    )
    return [x], [mean, square], lambda x: [x.mean(1), x.var(1, correction=0) * b]


CASES: dict[str, tuple[Callable[[], Case], str, int]] = {
    "half": (lambda: elements((40, 96), "float16"), "uint4", 1),
    "bfloat16": (lambda: elements((40, 96), "bfloat16"), "uint4", 1),
    "float": (lambda: elements((40, 96), "float32"), "float4", 1),
    "half to float": (lambda: elements((40, 96), "float16", "float32"), "uint4", 1),
    "tail": (lambda: elements((37, 53), "float16"), "uint4", 1),
    "many": (lambda: elements((1031, 1033), "float32"), "float4", 1),
    "bytes": (lambda: elements((64, 64), "int8"), "", 1),
    "long integers": (lambda: elements((64, 63), "int64"), "longlong2", 1),
    "row": (lambda: broadcast((300, 40), (0,), "float16"), "uint4", 1),
    "column": (lambda: broadcast((300, 40), (1,), "float16"), "uint4", 1),
    "channel": (lambda: broadcast((6, 5, 7, 8), (0, 2, 3), "float32"), "float4", 1),
    "middle": (lambda: broadcast((6, 5, 12), (1,), "float32"), "float4", 1),
    "odd rows": (lambda: broadcast((300, 41), (0,), "float16"), "", 1),
    "where": (lambda: chosen((33, 64)), "uint4", 1),
    "several outputs": (lambda: several(1030), "float4", 1),
    "concatenate": (lambda: joined(70, 12, 20), "", 1),
    "transpose": (lambda: permuted((128, 192), (1, 0), "float32"), "float4", 1),
    "transpose of halves": (lambda: permuted((132, 68), (1, 0), "float16"), "half4", 1),
    "transpose of doubles": (lambda: permuted((36, 68), (1, 0), "float64"), "double2", 1),
    "odd transpose": (lambda: permuted((133, 67), (1, 0), "float16"), "__shared__", 1),
    "batched transpose": (lambda: permuted((3, 64, 36), (0, 2, 1), "float32"), "float4", 1),
    "NCHW to NHWC": (lambda: permuted((2, 20, 6, 6), (0, 2, 3, 1), "float32"), "float4", 1),
    "permutation": (lambda: permuted((17, 18, 19, 20), (3, 1, 0, 2), "float32"), "__shared__", 1),
    "transpose of heads": (lambda: permuted((2, 9, 4, 16), (0, 2, 1, 3), "float16"), "uint4", 1),
    "transpose, bias, cast": (lambda: permuted_with_bias(72, 136), "float4", 1),
    "softmax": (lambda: softmax((65, 1024)), "float4", 1),
    "softmax of halves": (lambda: softmax((3, 7, 512), "float16"), "uint4", 1),
    "short rows": (lambda: softmax((1001, 12)), "float4", 1),
    "odd short rows": (lambda: softmax((101, 7), "float16"), "", 1),
    "shifted rows": (lambda: softmax((37, 4099), "float16"), "uint4", 1),
    "shifted floats": (lambda: softmax((37, 4098)), "float4", 1),
    "long rows": (lambda: softmax((3, 60004)), "float4", 1),
    "long shifted rows": (lambda: softmax((5, 60001)), "float4", 1),
    "one row": (lambda: softmax((1, 5000)), "float4", 1),
    "weights": (lambda: weighted(70, 768, "float16"), "uint4", 1),
    "odd weights": (lambda: weighted(70, 2051, "float16"), "", 1),
    "long weights": (lambda: weighted(3, 60004, "float32"), "float4", 1),
    "max of rows": (lambda: largest((64, 4, 4, 8), (2, 3), "float16"), "uint4", 1),
    "max of integers": (lambda: largest((70, 500), (1,), "int32"), "int4", 1),
    "columns": (lambda: total((1000, 96), (0,)), "float4", 2),
    "odd columns": (lambda: total((1000, 97), (0,), "float16"), "", 2),
    "few columns": (lambda: total((5000, 6), (0,)), "", 2),
    "short columns": (lambda: total((5, 700), (0,)), "float4", 1),
    "short odd columns": (lambda: total((3, 31, 77), (1,), "float16"), "", 1),
    "single column": (lambda: total((4000, 1, 1), (0,)), "float4", 1),
    "middle axis": (lambda: total((300, 40, 64), (1,), "float16"), "uint4", 1),
    "two axes": (lambda: total((20, 30, 40, 8), (0, 2)), "float4", 1),
    "all": (lambda: total((700, 1000), (0, 1)), "float4", 2),
    "all, odd": (lambda: total((701, 1001), (0, 1), "float16"), "", 2),
    "channels": (lambda: total((16, 6, 40, 40), (0, 2, 3)), "float4", 2),
    "odd channels": (lambda: total((16, 6, 41, 41), (0, 2, 3)), "", 2),
    "few long rows": (lambda: total((3, 400000), (1,)), "float4", 2),
    "gradients": (lambda: gradients(3000, 64), "float4", 2),
    "guarded windows": (lambda: windows(30, 6), "", 1),
    "windows of halves": (lambda: pooled((2, 3, 16, 32), "float16"), "uint4", 1),
    "windows of floats": (lambda: pooled((2, 3, 9, 24), "float32"), "float4", 1),
    "windows of odd rows": (lambda: pooled((2, 3, 9, 13), "float32"), "", 1),
    "windows of channels": (lambda: pooled((2, 16, 9, 13), "float16", last=True), "uint4", 1),
    "windows of odd channels": (lambda: pooled((2, 5, 8, 12), "float32", last=True), "", 1),
    "deviations": (lambda: deviations(2, 5, 3), "", 2),
}  # fmt: skip


def _source(case: Case) -> str:
    target = cuda()
    function = schedule_cuda.schedule(prim_func(*case[:2]), target)
    function, _ = cuda_source.as_parameters(function)
    with target:
        module = tvm.compile(tvm.IRModule({"main": function}), target).mod
    return "".join(part.inspect_source() for part in module.imports)


@pytest.mark.parametrize("name", CASES)
def test_kernels(name):
    """Without a GPU: all rules schedule, lower and generate for sm_90."""
    case, access, kernels = CASES[name]
    source = _source(case())
    source = source[source.index('extern "C" __global__') :]
    assert access in source
    assert source.count("__global__") == 2 * kernels  # declared and defined


@pytest.mark.parametrize(
    ("count", "dtype", "width"),
    [(1 << 22, "float16", 16), (1 << 16, "float16", 4), (1 << 17, "float16", 4),
     (1 << 19, "float16", 8), (1 << 16, "float32", 4), (1 << 22, "float32", 16)],
)  # fmt: skip
def test_few_elements_have_narrow_vectors(
    count: int, dtype: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the 132 multiprocessors of an H100, each has two blocks of threads, if that can be."""
    monkeypatch.setattr(injective, "FEW_BLOCKS", 2)
    monkeypatch.setattr(injective, "processors", lambda: 132)
    source = _source(elements((count,), dtype))
    source = source[source.rindex('extern "C" __global__') :]
    wide = {16: "uint4" if dtype == "float16" else "float4", 8: "half4", 4: ""}
    found = next((n for n, name in wide.items() if name and name in source), 4)
    assert found == width


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("windows of")])
def test_windows_are_right(name):
    """Emulated."""
    inputs, outputs, oracle = CASES[name][0]()
    run = generated.emulated(prim_func(inputs, outputs))
    x, made = sample(inputs[0]), empty_like(outputs[0])
    run(x, made)
    torch.testing.assert_close(made, oracle(x)[0].contiguous())


def test_overlapping_windows_read_each_element_once():
    """Along the rows: a vector of results of 8 windows of 3 needs 17 elements, in 3 accesses."""
    source = _source(pooled((2, 3, 16, 32), "float16"))
    source = source[source.rindex('extern "C" __global__') :]
    assert source.count("x_ptr +") + source.count("x_ptr[") == 3


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_result(name, start):
    """At any address: ``start`` elements after that of a fresh tensor."""
    inputs, outputs, oracle = CASES[name][0]()
    run = kernel(prim_func(inputs, outputs), for_device(Device("cuda")))

    def moved(array: torch.Tensor) -> torch.Tensor:
        buffer = torch.empty(array.numel() + start, dtype=array.dtype, device="cuda")
        return buffer[start:].view(array.shape).copy_(array)

    arrays = [moved(sample(placeholder, seed)) for seed, placeholder in enumerate(inputs)]
    results = [moved(empty_like(output)) for output in outputs]
    run(*arrays, *results)
    rough = any(r.dtype in (torch.float16, torch.bfloat16) for r in results)
    for result, expected in zip(results, oracle(*arrays), strict=True):
        torch.testing.assert_close(
            result,
            expected.contiguous(),
            rtol=1e-2 if rough else 2e-5,
            atol=1e-2 if rough else 1e-3,
        )


def test_copies_replace_what_lies_at_odd_addresses():
    """On the CPU, whose code checks addresses in the same way."""
    x = tensor(8)
    function = prim_func([x], [te.compute((8,), lambda i: x[i] + 1.0)])
    sch = tvm.s_tir.Schedule(function)
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    sch.vectorize(sch.get_loops(block)[0])
    target = for_device(Device("cpu"))
    module = tvm.compile(tvm.IRModule({"main": required(sch.mod["main"])}), target).mod
    run = module.get_function("main")
    calls = []

    def counted(*values: Any) -> None:
        calls.append(values)
        run(*values)

    given, made = torch.arange(9.0)[1:], torch.zeros(9)
    with pytest.raises(Unaligned):
        run(given, made[1:])
    realigned(counted)(given, made[1:])
    torch.testing.assert_close(made, torch.tensor([0.0, *range(2, 10)]))
    assert len(calls) == 2
    whole = torch.arange(8.0)
    realigned(counted)(whole, whole)
    assert len(calls) == 3


def test_a_product_in_half_precision_ends_no_process() -> None:
    """TVM looks whether it suits tensor cores, and 0.27 crashes where it does not."""
    x, y = tensor(128, 256, dtype="float16"), tensor(256, 192, dtype="float16", name="y")
    k = te.reduce_axis((0, 256), name="k")
    total = te.compute(
        (128, 192),
        lambda i, j: te.sum(x[i, k].astype("float32") * y[k, j].astype("float32"), axis=k),
    )
    out = te.compute((128, 192), lambda i, j: total[i, j].astype("float16"))
    made = schedule_cuda.schedule(prim_func([x, y], [out]), cuda())
    assert "threadIdx.x" in str(made)
