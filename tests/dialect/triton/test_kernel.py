"""Kernels of Triton as implementations of operators, run by the interpreter on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import meta
from meta import op
from meta.base import config
from meta.base.device import CPU
from meta.base.errors import DispatchError, RegistrationError
from meta.cost.chooser import save_configurations
from meta.cost.record import Cost, Timing
from meta.dialect import only
from meta.dialect.core import dispatch
from meta.dialect.core.preference import forget
from meta.dialect.triton import TritonDialect, interpreted
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from tests.dialect.triton import kernels

NAME = "tested"
pytestmark = pytest.mark.usefixtures("tested")


@triton.jit
def square(x, out, numel, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < numel)
    tl.store(out + at, value * value, mask=at < numel)


def _on_cpu(call: CallValues) -> CallValues:
    made: CallValues = call.op.call_values(tuple(call.args), CPU)
    return made


TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-7}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(3, 70), (1, 1), (5, 64)])
def test_softmax_of_strided_arrays(dtype: str, shape: tuple[int, int]):
    torch.manual_seed(0)
    compact = torch.randn(shape).to(getattr(torch, dtype))
    wide = torch.randn(shape[0], 2 * shape[1]).to(compact.dtype)
    turned = torch.randn(shape[1], shape[0]).to(compact.dtype)
    for x in (compact, wide[:, ::2], wide[:, 1::2], turned.T):
        with interpreted(), only(NAME):
            y = meta.softmax(meta.array(x))
        expected = torch.softmax(x.double(), 1)
        torch.testing.assert_close(
            y.torch().double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )


@pytest.mark.parametrize("dtype", [*TOLERANCE, "int32", "int64"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (65,), (3, 5, 7)])
def test_a_flat_kernel_in_all_shapes(dtype: str, shape: tuple[int, ...]):
    x = (torch.randn(shape) * 4).to(getattr(torch, dtype))
    with interpreted(), only(NAME):
        y = meta.relu(meta.array(x))
        turned = meta.relu(meta.array(x.T if x.ndim == 2 else x))
    assert torch.equal(y.torch(), x.relu()) and turned.shape == x.shape


def test_what_a_flat_kernel_would_read_wrong_is_declined():
    x, row = meta.ones((3, 4)), meta.ones((4,))
    with interpreted(), only(NAME):
        assert (meta.add(x, x).torch() == 2).all()
        with pytest.raises(DispatchError, match="as many elements as the result, 12"):
            meta.add(x, row)


def test_other_ranks_than_the_kernel_has_names_for_are_declined():
    cube, matrix = meta.ones((2, 3, 4)), meta.ones((2, 3))
    with interpreted(), only(NAME):
        with pytest.raises(DispatchError, match="x of 2 axes"):
            meta.softmax(cube, axis=-1)
        with pytest.raises(DispatchError, match="made for the last axis"):
            meta.softmax(matrix, axis=0)


def test_the_interpreter_is_off_unless_it_is_asked_for():
    x = meta.array([-1.0, 2.0])
    with only(NAME):
        with pytest.raises(DispatchError, match="META_TRITON_INTERPRET=1"):
            meta.relu(x)
        with config.override(META_TRITON_INTERPRET=True):
            assert meta.relu(x).tolist() == [0.0, 2.0]
        with pytest.raises(DispatchError, match="META_TRITON_INTERPRET=1"):
            meta.relu(x)
    with interpreted(), only(NAME, "torch"):  # it is asked last
        assert "->  torch" in str(meta.explain(op.relu, x))


def test_configurations_are_listed_named_and_refused(tested: TritonDialect):
    x = meta.array([-1.0, 2.0])
    with interpreted(), only(NAME):
        records = {r["dialect"]: r for r in meta.explain(op.relu, x).records()}
        assert records[NAME]["configs"] == 2
        costs = [c.name for c in meta.measure(op.relu, x, iters=1) if not c.refused]
        names = [f"{NAME}@BLOCK=128,num_stages=2,num_warps=8", f"{NAME}@BLOCK=32,num_warps=1"]
        assert costs == [NAME, *names]
        relu = getattr(meta.op, NAME).relu
        named = tested.resolve("relu@BLOCK=32,num_warps=1")
        assert named.name == f"{NAME}.relu@BLOCK=32,num_warps=1"
        assert named(x).tolist() == relu(x).tolist() == [0.0, 2.0]
        wrong = tested.resolve("relu@BLOCK=33,num_warps=1")
        with pytest.raises(DispatchError, match=r"no configuration BLOCK=33,num_warps=1, only "):
            wrong(x)


def test_programs_run_kernels_and_gradients_follow_the_operator():
    @meta.model.trace
    def model(x):
        return meta.softmax(meta.relu(x))

    x = meta.array([[1.0, -2.0, 3.0]])
    with interpreted(), only(NAME):
        run = meta.vm.compile(model, x)
        assert run.kernels() == {f"{NAME}.relu": 1, f"{NAME}.softmax": 1}
        found = run(x).torch()
    torch.testing.assert_close(found, torch.softmax(x.torch().relu(), 1))
    given = meta.array([-1.0, 2.0])
    given.requires_grad = True
    with interpreted(), meta.dialect.prefer(NAME), config.override(META_VERIFY=True):
        meta.relu(given).sum().backward()
    assert given.grad.tolist() == [0.0, 1.0]


def test_a_key_says_which_calls_share_a_configuration(tested: TritonDialect, tmp_path: Path):
    tested.kernel(op.square, grid=kernels.flat, configs=kernels.BLOCKS, key=("x_size_1",))(square)
    one, same, other = (
        kernels.call(op.square, TensorType(shape, "float32")) for shape in ((9, 5), (90, 5), (9, 6))
    )
    calls = [_on_cpu(call) for call in (one, same, other)]
    best = (("BLOCK", 32), ("num_warps", 1))
    fast, slow = Timing(1.0, 1.0, 1.0, 9), Timing(9.0, 9.0, 9.0, 9)
    costs = [Cost(NAME, (), slow), Cost(NAME, best, fast), Cost("torch", (), fast)]
    knobs = {"META_CACHE_DIR": str(tmp_path), "META_TUNE": "cached"}
    with config.override(**knobs), interpreted(), only(NAME):
        assert [dispatch(call).config for call in calls] == [(), (), ()]
        forget()
        save_configurations(calls[0], costs, "eager")
        assert [dispatch(call, eager=True).config for call in calls] == [best, best, ()]
        assert (
            dispatch(calls[1], eager=True).dialect_op.name == f"{NAME}.square@BLOCK=32,num_warps=1"
        )
        with config.override(META_TUNE="off"):
            assert dispatch(calls[1], eager=True).config == ()
    with pytest.raises(RegistrationError, match=r"a key of what is not known: \['rows'\]"):
        tested.kernel(op.cos, grid=kernels.flat, configs=kernels.BLOCKS, key=("rows",))(square)
