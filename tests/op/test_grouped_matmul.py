"""`grouped_matmul` beyond its records: forms of a call, programs, and what torch leaves open."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.amp import autocast_scope
from meta.analysis import flops
from meta.base.errors import UnknownName
from meta.dialect.core.ir_calls import called_op
from meta.ir import Call
from meta.model import trace
from meta.passes import dead_code, infer_type, simplify

ENDS = torch.tensor([2, 2, 5], dtype=torch.int32)


def draws(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("x", "w"), [((7, 8), (3, 8, 16)), ((3, 8, 16), (16, 8)), ((8, 8), (8, 16))]
)
def test_as_torch_has_it(x: Any, w: Any, dtype: Any) -> None:
    """Where there is nothing after the last group, which torch leaves as it is."""
    x, w = draws(*x, dtype=dtype), draws(*w, seed=1, dtype=dtype)
    extent = x.shape[0] if w.ndim == 3 else w.shape[-1] if x.ndim == 3 else x.shape[1]
    ends = torch.tensor([2, 2, extent], dtype=torch.int32)
    expected = torch.nn.functional.grouped_mm(x, w, offs=ends)
    found = meta.grouped_matmul(meta.array(x), meta.array(w), meta.array(ends))
    rounding = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    torch.testing.assert_close(found.torch(), expected, rtol=rounding, atol=rounding)


def test_a_matrix_of_each_for_each_group() -> None:
    x, w = draws(3, 5, 4), draws(3, 4, 8, seed=1)
    found = meta.grouped_matmul(meta.array(x), meta.array(w))
    torch.testing.assert_close(found.torch(), torch.nn.functional.grouped_mm(x, w))


def test_what_is_after_the_last_group_is_zero_and_has_no_gradient() -> None:
    x, w = meta.array(draws(8, 4)), meta.array(draws(3, 4, 6, seed=1))
    x.requires_grad = w.requires_grad = True
    y = meta.grouped_matmul(x, w, meta.array(ENDS))
    assert not y.torch()[5:].any() and y.torch()[:5].all()
    y.sum().backward()
    assert not x.grad.torch()[5:].any() and x.grad.torch()[:5].all()
    assert not w.grad.torch()[1].any() and w.grad.torch()[[0, 2]].all()


def test_transposed_operands_are_read_as_they_are_stored() -> None:
    @trace
    def experts(x: Any, w: Any, offs: Any) -> Any:
        y = op.grouped_matmul(x, op.permute_dims(w, (0, 2, 1)), offs)
        inner = op.grouped_matmul(op.swapaxes(x, 0, 1), y, offs)
        return op.grouped_matmul_tn(op.permute_dims(inner, (0, 2, 1)), op.swapaxes(y, 0, 1), offs)

    args = [meta.array(a) for a in (draws(7, 4), draws(3, 6, 4, seed=1), ENDS)]
    program = experts.program(*args)
    module = dead_code(simplify(infer_type(program.module)))
    called = [called_op(b.value) for b in module.main.body.bindings if isinstance(b.value, Call)]
    assert called == [op.grouped_matmul_nt, op.grouped_matmul_tn, op.grouped_matmul_nt]
    found = meta.vm.compile(experts, *args)(*args)
    torch.testing.assert_close(found.torch(), experts(*args).torch())


@pytest.mark.parametrize("shapes", [((7, 4), (3, 4, 6)), ((3, 7, 4), (4, 6)), ((7, 4), (4, 6))])
def test_operations_are_those_of_one_product(shapes: Any) -> None:
    args = [meta.array(draws(*s)) for s in shapes]
    module = trace(lambda x, w, o: op.grouped_matmul(x, w, o)).program(*args, meta.array(ENDS % 4))
    assert flops(infer_type(module.module)).total == 2 * 7 * 4 * 6


def test_it_is_computed_in_half_precision_under_autocast() -> None:
    x, w = meta.array(draws(7, 4)), meta.array(draws(3, 4, 6, seed=1))
    with autocast_scope("bfloat16"):
        y = meta.grouped_matmul(x, w, meta.array(ENDS))
    assert y.dtype == "bfloat16"


def test_the_name_of_torch_leads_here() -> None:
    with pytest.raises(UnknownName, match=r"meta\.grouped_matmul"):
        _ = meta.grouped_mm
