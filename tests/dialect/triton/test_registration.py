"""What a registration refuses, with the kernel's line; how strangers' kernels are taken over."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import meta
from meta import op
from meta.base.errors import ArgumentError, RegistrationError
from meta.dialect import only
from meta.dialect.core import Unsupported
from meta.dialect.triton import TritonDialect, interpreted
from meta.ir.types import TensorType
from tests.conftest import run_python
from tests.dialect.triton import kernels

X = TensorType((3, 50), "float32")


@triton.jit
def flat(x, out, numel, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < numel), mask=at < numel)


@triton.jit
def unknown(x, result, BLOCK: tl.constexpr):
    pass


@triton.jit
def fixed(x: tl.constexpr, out):
    pass


@triton.jit
def number(x, out, negative_slope: tl.constexpr):
    pass


@triton.jit
def numbered(x, out_1):
    pass


@triton.jit
def constant_stride(x, out, x_stride_0: tl.constexpr):
    pass


@triton.jit
def at_run_time(x, out, axis):
    pass


BLOCK = [{"BLOCK": 64}]
GRID = (1,)
REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (op.exp, lambda x, out: None, {"grid": GRID}, "is a function of triton.jit"),
    (op.exp, flat, {"configs": BLOCK}, "has no grid"),
    (op.exp, flat, {"configs": BLOCK, "grid": (1, 2, 3, 4)}, "has no grid"),
    (op.exp, flat, {"configs": BLOCK, "grid": (-1,)}, "has no grid"),
    (op.exp, unknown, {"configs": BLOCK, "grid": GRID}, "gives as: 'result'"),
    (op.exp, flat, {"grid": GRID}, "gives as: 'BLOCK'"),
    (op.exp, fixed, {"grid": GRID}, "run time only cannot be tl.constexpr: 'x'"),
    (op.leaky_relu, number, {"grid": GRID}, "cannot be tl.constexpr: 'negative_slope'"),
    (op.exp, flat, {"configs": [{"BLOCKS": 64}], "grid": GRID}, r"names what is no parameter"),
    (op.exp, flat, {"configs": [{"numel": 64}], "grid": GRID}, r"what is no parameter: \['numel'"),
    (op.exp, flat, {"configs": [{"BLOCK": -1}], "grid": GRID}, r"has BLOCK=-1"),
    (op.exp, flat, {"configs": [{"BLOCK": 0.5}], "grid": GRID}, r"has BLOCK=0.5"),
    (op.exp, flat, {"configs": [64], "grid": GRID}, "neither a triton.Config nor a dict"),
    (op.exp, flat, {"configs": [*BLOCK, *BLOCK], "grid": GRID}, "BLOCK=64 twice"),
    (op.exp, flat, {"configs": [*BLOCK, {"num_warps": 4}], "grid": GRID}, "different meta-para"),
    (op.exp, flat, {"configs": [{"BLOCK": 64, "num_warps": 3}], "grid": GRID}, "num_warps=3"),
    (op.exp, flat, {"configs": [{"BLOCK": 64, "num_ctas": 16}], "grid": GRID}, "num_ctas=16"),
    (
        op.exp,
        flat,
        {"configs": [triton.Config({"BLOCK": 64}, pre_hook=print)], "grid": GRID},
        "has pre_hook",
    ),
    (
        op.exp,
        flat,
        {"configs": BLOCK, "grid": GRID, "heuristics": {"SIZE": len}},
        r"heuristics of what is no tl.constexpr parameter: \['SIZE'\]",
    ),
    (
        op.exp,
        flat,
        {"configs": BLOCK, "grid": GRID, "names": {"x_ptr": "x"}},
        "names= has what is no parameter: 'x_ptr'",
    ),
    (
        op.exp,
        unknown,
        {"configs": BLOCK, "grid": GRID, "names": {"result": "y"}},
        "names= has words that 'exp' does not have: 'result'",
    ),
]


@pytest.mark.parametrize(("operator", "kernel", "how", "message"), REFUSED)
def test_a_registration_that_is_refused(
    tested: TritonDialect, operator: Any, kernel: Any, how: dict[str, Any], message: str
):
    with pytest.raises(RegistrationError, match=message) as caught:
        tested.kernel(operator, **how)(kernel)
    assert "test_registration.py" in str(caught.value) and operator.name not in tested.ops


AT_A_CALL: list[tuple[Any, dict[str, Any], str]] = [
    (numbered, {"grid": GRID}, "asks for 'out_1'"),
    (constant_stride, {"grid": GRID}, "has the stride 'x_stride_0' as a constant"),
    (at_run_time, {"grid": GRID, "bind": lambda call: {"axis": (0,)}}, "'axis' at run time"),
    (flat, {"grid": lambda m: (m["rows"],), "configs": BLOCK}, "grid= of the kernel 'flat'"),
    (flat, {"grid": lambda m: m["BLOCK"], "configs": BLOCK}, "has a grid that is none"),
    (flat, {"grid": GRID, "heuristics": {"BLOCK": lambda m: m["rows"]}}, "heuristic 'BLOCK'"),
    (flat, {"grid": GRID, "bind": lambda call: {}}, "is not told 'BLOCK' in tan"),
    (flat, {"grid": GRID, "bind": lambda call: {"B": 1}}, r"bind= that returns \['B'\]"),
    (flat, {"grid": GRID, "bind": lambda call: {"BLOCK": torch.ones(1)}}, "compiled for BLOCK="),
]


@pytest.mark.parametrize(("kernel", "how", "message"), AT_A_CALL)
def test_what_is_wrong_with_a_call(kernel: Any, how: dict[str, Any], message: str):
    from meta.dialect.triton.single_launch import SingleKernel

    given = {"grid": None, "stated": (), "heuristics": {}, "names": {}, "bind": None, "when": None}
    given |= {("stated" if n == "configs" else n): v for n, v in how.items()}
    with pytest.raises(RegistrationError, match=message) as caught:
        SingleKernel(kernel, op.tan, not_capturable="", **given).make(kernels.call(op.tan, X))
    assert "test_registration.py" in str(caught.value) and "'tan'" in str(caught.value)


def test_what_a_kernel_declines(tested: TritonDialect):
    make = tested.ops["relu"].make
    complex_ = TensorType((3,), "complex64")
    with pytest.raises(Unsupported, match="x1 is complex64, which Triton does not have"):
        tested.ops["add"].make(kernels.call(op.add, complex_, complex_))
    with pytest.raises(Unsupported, match="extents that are numbers"):
        make(kernels.call(op.relu, meta.ir.parse_type("float32[n, 8]")))
    for dtype in ("uint8", "int8", "bool"):
        type_ = TensorType((3,), dtype)
        assert tested.ops["add"].make(kernels.call(op.add, type_, type_)) is not None


def test_a_kernel_tuned_by_triton_is_taken_over(tested: TritonDialect):
    @triton.autotune(
        configs=[triton.Config({"BLOCK_SIZE": 32}), triton.Config({"BLOCK_SIZE": 64}, num_warps=2)],
        key=["n_elements"],
    )
    @triton.heuristics({"EVEN": lambda args: args["n_elements"] % args["BLOCK_SIZE"] == 0})
    @triton.jit
    def theirs(
        x_ptr, output_ptr, n_elements, scale, BLOCK_SIZE: tl.constexpr, EVEN: tl.constexpr, P=2.0
    ):
        at = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        if EVEN:
            tl.store(output_ptr + at, tl.load(x_ptr + at) * scale * P)
        else:
            inside = at < n_elements
            tl.store(output_ptr + at, tl.load(x_ptr + at, mask=inside) * scale * P, mask=inside)

    returned = tested.kernel(
        op.negative,
        grid=lambda meta: (triton.cdiv(meta["n_elements"], meta["BLOCK_SIZE"]),),
        names={"x_ptr": "x", "output_ptr": "out", "n_elements": "numel"},
        bind=lambda call: {"scale": -0.5},
    )(theirs)
    assert returned is theirs
    for count in (50, 64):
        x = meta.array(torch.randn(count))
        with interpreted(), only("tested"):
            assert torch.equal(meta.negative(x).torch(), -x.torch())
    env = tested.ops["negative"].make(kernels.call(op.negative, X))
    assert env.configs is not None
    assert list(env.configs.listed()) == [(("BLOCK_SIZE", 64), ("num_warps", 2))]

    with pytest.raises(RegistrationError, match="states reset_to_zero"):
        tuned = triton.autotune([triton.Config({"BLOCK": 1})], key=[], reset_to_zero=["out"])
        tested.kernel(op.sinh, grid=GRID)(tuned(flat))


def test_several_results_and_lists_of_tensors(tested: TritonDialect):
    @triton.jit
    def halves(x, out_0, out_1, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out_0 + at, tl.load(x + at, mask=at < n), mask=at < n)
        tl.store(out_1 + at, tl.load(x + n + at, mask=at < n), mask=at < n)

    @triton.jit
    def joined(arrays, out, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        for i in tl.static_range(len(arrays)):
            tl.store(out + i * n + at, tl.load(arrays[i] + at, mask=at < n), mask=at < n)

    def size(call: Any) -> dict[str, int]:
        return {"n": call.args.x.size // 2}

    tested.kernel(op.split, grid=GRID, configs=[{"BLOCK": 16}], bind=size)(halves)
    tested.kernel(
        op.concat,
        grid=GRID,
        configs=[{"BLOCK": 16}],
        bind=lambda call: {"n": call.args.arrays[0].size},
    )(joined)
    x, y = meta.array(torch.arange(6.0)), meta.array(torch.arange(6.0, 12.0))
    with interpreted(), only("tested"):
        first, second = meta.split(x, 2)
        both = meta.concat((x, y), axis=0)
    assert first.tolist() == [0, 1, 2] and second.tolist() == [3, 4, 5]
    assert both.tolist() == list(range(12))
    types = kernels.call(op.concat, (TensorType((6,), "float32"),) * 3)
    variant = tested.ops["concat"].make(types)._deferred.source.unit.variants[0]
    assert variant.types["arrays"] == ("*fp32",) * 3
    assert variant.multiples[:3] == ((0, 0), (0, 1), (0, 2))


UNDER_TRITON = """
import triton, triton.language as tl, meta
from meta.dialect.triton import triton_dialect
from tests.dialect.triton import kernels
kernels.register(triton_dialect)
x = meta.array([-1.0, 2.0])
with meta.dialect.only("triton"):
    print(meta.relu(x).tolist(), type(kernels.relu).__name__)
"""


@pytest.mark.slow
def test_tritons_own_switch_serves(tmp_path: Path):
    printed = run_python("-c", UNDER_TRITON, TRITON_INTERPRET="1")
    assert printed.strip() == "[0.0, 2.0] InterpretedFunction"


def test_a_dialect_of_ones_own_is_one_of_triton(tested: TritonDialect):
    assert isinstance(tested, TritonDialect) and tested.plevel == 20
    # Costs of its kernels are those of the files that they are in.
    files = [Path(kernels.__file__), Path(__file__)]
    noted = [sha256(file.read_bytes()).hexdigest() for file in files]
    assert tested.registered_text.split() == noted
    relu = tested.ops["relu"]
    assert relu.plevels == {"cuda": 20, "cpu": 1}
    with pytest.raises(RegistrationError, match="implements 'relu' twice"):
        tested.kernel(op.relu, grid=GRID, configs=BLOCK)(flat)
    with pytest.raises(ArgumentError):
        meta.relu()
