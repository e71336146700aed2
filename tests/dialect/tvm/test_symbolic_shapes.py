"""Elementwise kernels for symbolic extents: built once, they serve every size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tvm import te

import meta
from meta.base.device import CPU, Device
from meta.base.dtype import FROM_TORCH, TO_TORCH
from meta.base.errors import DispatchError, TypeInferError
from meta.base.registry import OPERATORS
from meta.dialect.core import OpEnv, Unsupported, compile_together, dispatch, only
from meta.dialect.tvm import tvm as dialect
from meta.dialect.tvm.compute import compute
from meta.dialect.tvm.reduce import Over
from meta.ir import SymbolicDim, TensorType, parse_type
from meta.op.core import CallValues, map_tensors, runtime_args
from meta.testing import check
from tests.op.records import CASES

KINDS = ("elemwise", "broadcast")


def symbolic(tensor: torch.Tensor) -> TensorType:
    """Return the type with every extent above 1 by name; equal extents have one name."""
    shape = tuple(SymbolicDim(f"d{n}") if n > 1 else n for n in tensor.shape)
    return TensorType(shape, FROM_TORCH[tensor.dtype])


def lift(value: Any) -> Any:
    return torch.as_tensor(value)


def call_of(op: Any, args: tuple[Any, ...]) -> CallValues:
    return op.call_values(map_tensors(op, args, symbolic), CPU)


def first_calls() -> list[tuple[Any, tuple[Any, ...], CallValues, OpEnv]]:
    """Return a call of each elementwise operator that has a kernel for symbolic extents."""
    found = []
    for case in CASES:
        op = OPERATORS[case.op]
        made = [d for d in op.aspects.dialect_ops if d.dialect.name == "tvm"]
        if op.random or not made or made[0].fusion not in KINDS:
            continue
        for sample in case.samples:
            args, kwargs = sample.make("float32")
            try:
                bound = op.schema.bind(args, kwargs, lift)
                call = call_of(op, bound)
                env = dispatch(call) if call.callee is not None else None
            except (TypeInferError, DispatchError):
                continue
            if env is not None and env.polymorphic:
                found.append((op, bound, call, env))
                break
    return found


@pytest.mark.long
def test_every_elementwise_operator() -> None:
    with only("tvm"):
        meta.relu(meta.array([1.0]))  # its operators are registered by the first dispatch
        calls = first_calls()
    compile_together(env for *_, env in calls)
    for op, args, call, env in calls:
        with only("torch"):
            expected = op(*args)
        sizes = {f"d{n}": n for t in runtime_args(op, args) for n in getattr(t, "shape", ())}
        outs = [
            torch.empty(
                [d.evaluate(sizes) if isinstance(d, SymbolicDim) else d for d in out.shape],
                dtype=TO_TORCH[out.dtype],
            )
            for out in call.outputs
        ]
        env.run(*runtime_args(op, args), *outs)
        found = [meta.array(o) for o in outs]
        check(found[0] if len(found) == 1 else tuple(found), expected, 1e-4, 1e-4, what=op.name)
    assert len(calls) > 100


def test_one_kernel_serves_all_sizes() -> None:
    with only("tvm"):
        x = parse_type("float32[n, 2*m + 1]")
        env = dispatch(meta.op.tanh.call_values((x,), CPU))
    for n, m in ((1, 1), (3, 2), (200, 60)):
        values = torch.randn(n, 2 * m + 1)
        out = torch.empty_like(values)
        env.run(values, out)
        torch.testing.assert_close(out, values.tanh(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("axis", [0, -1, (1, 3)])
def test_indices_along_symbolic_extents(axis: Any, dtype: str) -> None:
    with only("tvm"):
        x = parse_type(f"{dtype}[n, 3, m, n]")
        env = dispatch(meta.op.argmax.call_values((x, axis, True), CPU))
    for n, m in ((2, 5), (7, 1)):
        values = torch.randn(n, 3, m, n).to(getattr(torch, dtype))
        expected = meta.op.argmax(meta.array(values.float()), axis, True).torch()
        out = torch.empty_like(expected)
        env.run(values, out)
        torch.testing.assert_close(out, expected)


def test_parts_without_elements_beside_a_symbolic_extent() -> None:
    with only("tvm"):
        x = parse_type("float32[0, n]")
        env = dispatch(meta.op.concat.call_values(((x, x), 0), CPU))
    out = torch.empty(0, 4)
    env.run(torch.empty(0, 4), torch.empty(0, 4), out)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (meta.op.sum, (parse_type("float32[n, 4]"), 0)),
        (meta.op.layer_norm, (parse_type("float32[4, n]"), None, None, -1, 1e-5)),
        (meta.op.concat, ((parse_type("float32[n, 4]"),) * 2, 0)),
        (meta.op.max_pool2d, (parse_type("float32[2, 3, n, 9]"), 3, 1, 1, 1, False, True, "NCHW")),
        (meta.op.relu, (parse_type("float32[?]"),)),
        (meta.op.roll, (parse_type("float32[4, 4]"), (SymbolicDim("k"),), (1,))),
    ],
)
def test_others_decline(op: Any, args: Any) -> None:
    with only("tvm"), pytest.raises(DispatchError, match=r"extent|attribute"):
        dispatch(op.call_values(args, CPU))


@pytest.mark.parametrize("kind", ["comm_reduce", "opaque", "injective"])
def test_a_kernel_of_another_kind_that_takes_expressions_for_extents(kind: str) -> None:
    @meta.op.core.op
    def rows_scaled(x: meta.op.core.Tensor, axis: int = -1) -> meta.op.core.Tensor:
        """x / (1 + the mean of abs(x) along the axis)."""
        return x

    def kernel(x: Any, axis: int) -> Any:
        over = Over.of(x, axis)
        mean = over.at(over.mean(lambda *i: te.abs(x(*i)), "mean"))
        return te.compute(x.shape, lambda *i: x(*i) / (mean(*i) + 1), name="scaled")

    try:
        compute(rows_scaled, kind, static=False)(kernel)
        model = meta.model.trace(lambda x: rows_scaled(meta.tanh(x), 0))
        exe = meta.vm.compile(model, parse_type("float32[n, m]"))
        assert sum("rows_scaled" in name for name in exe.kernels()) == 1
        for n, m in ((1, 1), (3, 5), (40, 7), (2000, 3)):
            y = torch.randn(n, m).tanh()
            expected = y / (1 + y.abs().mean(0))
            check(exe(meta.array(y.atanh())), meta.array(expected), 1e-4, 1e-5)
        cuda = rows_scaled.call_values((parse_type("float32[n, 4]"), 0), Device("cuda"))
        (own,) = rows_scaled.aspects.dialect_ops
        with pytest.raises(Unsupported, match="extents that are numbers"):
            own.make(cuda)
    finally:
        del dialect.ops["rows_scaled"]
        OPERATORS.remove("rows_scaled")


def test_a_program_calls_it_for_every_size() -> None:
    @meta.model.trace
    def squashed(x: Any, y: Any) -> Any:
        return meta.tanh(x * y) + 1.0

    exe = meta.vm.compile(squashed, parse_type("float32[n, m]"), parse_type("float32[m]"))
    assert exe.kernels() == {"tvm.fused_multiply_tanh_add": 1}
    for n, m in ((1, 1), (3, 5), (40, 7)):
        x, y = torch.randn(n, m), torch.randn(m)
        check(exe(meta.array(x), meta.array(y)), meta.array((x * y).tanh() + 1), 1e-5, 1e-5)


@pytest.mark.parametrize(
    "kind", ["0, n", "n, 0", "0, n, 3", "3, n, 0", "n, 0, 3", "n, 0, n", "n, 0, m, 2"]
)
def test_no_elements_beside_a_symbolic_extent(kind: str) -> None:
    """TVM expects strides in the width of the extents behind them; any strides are taken."""
    x = parse_type(f"float32[{kind}]")
    exe = meta.vm.compile(meta.model.trace(lambda x: meta.tanh(x) + 1.0), x)
    shape = [5 if d in "nm" else int(d) for d in kind.split(", ")]
    for values in (torch.ones(shape), torch.ones([e + 1 for e in shape])):
        given = values[tuple(slice(0, e) for e in shape)]
        assert list(exe(meta.ndarray(given)).shape) == shape
