"""Products in groups by Triton: the interpreter beside torch in float64, and all configurations
compiled for an H100, whose blocks have 227 KiB of shared memory.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.registry import OPERATORS
from meta.dialect import only, prefer
from meta.ir import parse_type
from meta.testing import opcheck
from meta.testing.case import OpCase, Sample
from tests.op.linalg import CASES

triton = pytest.importorskip("triton")

from meta.dialect.triton import interpreted, triton_dialect  # noqa: E402
from tests.dialect.triton import kernels  # noqa: E402

SHARED = 227 << 10
GROUPED = [c for c in CASES if c.op.startswith("grouped_matmul") and c.samples]
FEW = {"grouped_matmul_nt": {0, 1, 2, 12}}
"""Samples that an ordinary run takes: rows, columns, inner; and more than a tile, as of all."""
SAMPLES = [
    pytest.param(
        case,
        one,
        id=f"{case.op}({one})"[:80],
        marks=() if i in FEW.get(case.op, {12}) else pytest.mark.slow,
    )
    for case in GROUPED
    for i, one in enumerate(case.samples)
]


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_as_torch_in_float64(case: OpCase, one: Sample) -> None:
    with interpreted():
        for dtype in ("float32", "float16", "bfloat16") if one is case.samples[0] else ("float32",):
            if "triton" in opcheck.accepting(case, one, dtype):
                opcheck.check_dialect(case, one, dtype, "triton")
            else:  # nothing to be summed, or no group
                sizes = [t.numel() for t in one.make(dtype)[0]]
                assert 0 in sizes


def test_gradients_are_such_products() -> None:
    torch.manual_seed(0)
    x, w, ends = torch.randn(9, 6), torch.randn(3, 7, 6), torch.tensor([2, 2, 8])
    arrays = meta.array(x), meta.array(w)
    arrays[0].requires_grad = arrays[1].requires_grad = True
    with interpreted(), prefer("triton"):
        y = OPERATORS["grouped_matmul_nt"](*arrays, meta.array(ends))
        y.sum().backward()
    leaves = x.double().requires_grad_(), w.double().requires_grad_()
    parts = [leaves[0][:2] @ leaves[1][0].T, leaves[0][2:8] @ leaves[1][2].T, torch.zeros(1, 7)]
    expected = torch.cat(parts)
    expected.sum().backward()
    torch.testing.assert_close(y.torch().double(), expected, rtol=1e-5, atol=1e-5)
    for array, leaf in zip(arrays, leaves, strict=True):
        torch.testing.assert_close(array.grad.torch().double(), leaf.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ends", [[-5, 100, 3], [7, 2, 9], [2**31 - 1, -(2**31), 4]])
@pytest.mark.parametrize(
    "shapes", [((9, 6), (3, 6, 7)), ((3, 7, 6), (6, 9)), ((7, 9), (9, 6))], ids=str
)
def test_wrong_ends_stay_within_the_tensors(shapes: Any, ends: list[int]) -> None:
    """Of a call whose indices nobody looked at, as on CUDA: what is around the result stays."""
    op = OPERATORS["grouped_matmul"]
    types = [meta.ir.TensorType(s, "float32") for s in shapes]
    bound = op.schema.bind((*types, parse_type("int32[3]")), {}, lambda v: v)
    call = op.call_values(bound, meta.base.device.CPU)
    size = call.out.size
    memory = torch.full((3 * size,), 7.0)
    out = memory[size : 2 * size].view(call.out.static_shape)
    with interpreted():
        env = triton_dialect.resolve("grouped_matmul").make(call)
        env.run(*(torch.ones(s) for s in shapes), torch.tensor(ends, dtype=torch.int32), out)
    assert (memory[:size] == 7.0).all() and (memory[2 * size :] == 7.0).all()


def test_double_precision_is_left_to_others() -> None:
    x, w = meta.zeros((4, 3), "float64"), meta.zeros((2, 3, 2), "float64")
    with interpreted(), only("triton"), pytest.raises(meta.errors.DispatchError, match="float32"):
        meta.grouped_matmul(x, w, meta.array([1, 4]))


CALLS = {
    "rows": ("grouped_matmul_nt", "[4096, 1024]", "[8, 2048, 1024]"),
    "columns": ("grouped_matmul", "[8, 1024, 512]", "[512, 4096]"),
    "inner": ("grouped_matmul_tn", "[4096, 1024]", "[4096, 2048]"),
}


def of_kind(kind: str, dtype: str) -> Any:
    """Return the call and its kernel, on a GPU."""
    name, *shapes = CALLS[kind]
    types = [parse_type(f"{dtype}{s}") for s in shapes]
    call = kernels.call(OPERATORS[name], *types, parse_type("int32[8]"))
    return triton_dialect.resolve(name).make(call)


def compiles(env: Any) -> None:
    from meta.dialect.triton import build

    source = env._deferred.source
    units = [one.unit for one in source[1]] if isinstance(source, tuple) else [source.unit]
    for unit in units:
        for variant in unit.variants:
            assert build.compiled(unit, variant).shared <= SHARED


def by_descriptors(env: Any) -> list[Any]:
    """Return the configurations whose blocks stay, and read by descriptors."""
    return [config for config in env.configs.listed() if dict(config).get("TMA")]


@pytest.mark.parametrize(
    ("form", "w"), [("_nt", (4, 136, 72)), ("", (4, 72, 136))], ids=["nt", "nn"]
)
def test_blocks_that_stay(form: str, w: Any) -> None:
    """Of rows that are after the last group, or that no descriptor reads, too."""
    torch.manual_seed(0)
    case = next(c for c in GROUPED if c.op == f"grouped_matmul{form}")
    memory = torch.randn(150 * 72 + 1).half()
    weight, ends = torch.randn(w).half(), torch.tensor([3, 3, 140, 145], dtype=torch.int32)
    weight[3, :, :8] = torch.inf  # of a group that no other meets
    weight[3, 0] = torch.nan
    op = OPERATORS[case.op]
    texts = "float16[150, 72]", f"float16{list(w)}", "int32[4]"
    call = op.call_values(
        op.schema.bind(tuple(map(parse_type, texts)), {}, lambda v: v), meta.base.device.CPU
    )
    with interpreted():
        env = triton_dialect.resolve(op.name).make(call)
        stays = env.configs.made(by_descriptors(env)[-1])
        for x in (memory[:-1], memory[1:]):
            x = x.view(150, 72)
            out = torch.full((150, 136), 7.0).half()
            stays.run(x, weight, ends, out)
            expected = case.oracle(x.double(), weight.double().nan_to_num(0, 0, 0), ends)
            rest = torch.arange(150)[:, None] < 140
            torch.testing.assert_close(
                torch.where(rest, out, 0).double(),
                torch.where(rest, expected, 0),
                rtol=1e-2,
                atol=1e-2,
            )
            assert (out[145:] == 0).all() and not out[140:145].isfinite().all()


def test_compiles() -> None:
    env = of_kind("rows", "bfloat16")
    compiles(env)
    assert len(by_descriptors(env)) == 2 and not by_descriptors(of_kind("rows", "float32"))
    assert isinstance(env._deferred.source, tuple)  # blocks that stay are the default
    compiles(env.configs.made(by_descriptors(env)[0]))
    compiles(env.configs.made(env.configs.listed()[0]))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", CALLS)
def test_all_configurations_compile(kind: str, dtype: str) -> None:
    env = of_kind(kind, dtype)
    listed = env.configs.listed()
    assert len(listed) >= 4
    for config in ((), *listed):
        compiles(env if config == () else env.configs.made(config))
