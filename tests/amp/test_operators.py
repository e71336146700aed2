"""Every operator under autocast, in both half precisions, against its oracle in float64.

Generated from the `OpCase` records: a sample is traced, cast and interpreted, and it is called in
an `autocast_scope` with arguments that come in half precision. Results have to be as near to the
oracle as numbers of 16 bits are, by the tolerances of `meta.testing`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.amp import rule_of
from meta.base.dtype import TO_TORCH
from meta.base.registry import OPERATORS
from meta.model import trace
from meta.op.core import Slot, tree
from meta.op.core.op import by_schema
from meta.passes import autocast
from meta.testing import OpCase, check
from meta.testing.case import Sample, Spec
from meta.testing.layout import called
from meta.testing.opcheck import tolerance
from meta.vm.run.interpreter import run_module
from tests.op.records import CASES

pytestmark = pytest.mark.usefixtures("torch_kernels")

HALVES = ["float16", "bfloat16"]


RECORDS = [c for c in CASES if c.samples and {"float32", "float16"} <= set(c.dtypes)]


def has_floats(one: Sample) -> bool:
    specs = tree.flatten((one.args, one.kwargs), lambda v: isinstance(v, Spec))[0]
    return any(s.given or str(s).startswith("F") for s in specs)


def parameters() -> list[Any]:
    """One sample per operator and half precision, of an operator that just follows its arguments in
    bfloat16 only; all others are slow.
    """
    found, seen = [], set()
    for case in RECORDS:
        samples = [one for one in case.samples if has_floats(one)]
        for half in HALVES:
            follows = rule_of(OPERATORS[case.op]).word == "infer" and half == "float16"
            first = 0 if follows or (case.op, half) in seen else 1
            seen.add((case.op, half))
            for part, marks in ((samples[:first], ()), (samples[first:], (pytest.mark.slow,))):
                if part:
                    name = f"{case.op}-{half}-{len(part)}"
                    found.append(pytest.param(case, part, half, id=name, marks=marks))
    return found


def rounded(one: Sample, half: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return float32 arguments whose numbers are exact in the half precision: what is tested is the
    operator, not the rounding of what it is given.
    """
    leaves, structure = tree.flatten(one.make("float32"))
    exact = [t.to(TO_TORCH[half]).to(t.dtype) if t.dtype == torch.float32 else t for t in leaves]
    return tree.unflatten(structure, exact)


@pytest.mark.parametrize(("case", "samples", "half"), parameters())
def test_operator(case: OpCase, samples: list[Sample], half: str) -> None:
    for one in samples:
        check_sample(case, one, half)


def check_sample(case: OpCase, one: Sample, half: str) -> None:
    op = OPERATORS[case.op]
    args, kwargs = rounded(one, half)
    leaves, structure = tree.flatten((args, kwargs))

    def call(*tensors: Any) -> Any:
        own_args, own_kwargs = tree.unflatten(structure, list(tensors))
        return called(case)(*own_args, **own_kwargs)

    wide = [t.double() if t.dtype.is_floating_point else t.clone() for t in leaves]
    own_args, own_kwargs = tree.unflatten(structure, wide)
    expected = tree.flatten(case.oracle(*own_args, **own_kwargs))[0]
    program = trace(call).program(*map(meta.array, leaves))
    made = autocast(program.module, dtype=half)
    found = program.convention.unflatten(run_module(made, list(map(meta.array, leaves))))
    check_results(case, one, half, found, expected)
    bound = op.schema.bind(args, kwargs, lambda t: t)
    inputs = [_given(slot, value, half) for slot, value in zip(op.slots, bound, strict=True)]
    with meta.amp.autocast_scope(half):
        check_results(case, one, half, by_schema(op)(*inputs), expected)


def _given(slot: Slot, value: Any, half: str) -> Any:
    """Return an argument as it comes in mixed precision: what is written in place is float32."""
    if isinstance(value, tuple):
        return tuple(_given(slot, v, half) for v in value)
    if not isinstance(value, torch.Tensor):
        return value
    narrow = slot.access == "RO" and value.dtype == torch.float32
    return meta.array(value.to(TO_TORCH[half]) if narrow else value)


def check_results(case: OpCase, one: Sample, half: str, found: Any, expected: list[Any]) -> None:
    rtol, atol = tolerance(case, half)
    what = f"{case.op}({one}) in {half}, whose rule is {rule_of(OPERATORS[case.op])}"
    for mine, theirs in zip(tree.flatten(found)[0], expected, strict=True):
        check(mine, theirs, rtol, atol, what=what)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("dialect", ["torch", "tvm"])
def test_sums_are_accumulated_in_float32(dialect: str, half: str) -> None:
    """5000 ones: in 16 bits the sum would stop growing at 2048, or at 256."""
    x, image = meta.array(torch.ones(2, 5000)), meta.array(torch.ones(1, 50, 10, 10))
    with meta.dialect.only(dialect, "torch"), meta.amp.autocast_scope(half):
        narrow, small = meta.astype(x, half), meta.astype(image, half)
        for found, expected in (
            (meta.dense(x, x), 5000),
            (meta.matmul_nt(x, x), 5000),
            (meta.conv2d(image, image), 5000),
            (meta.mean(narrow, 1), 1),
            (meta.std(narrow, 1), 0),
            (meta.sum(narrow, 1), 5000),
            (meta.adaptive_avg_pool2d(small, 1), 1),
            (
                meta.scatter_add(
                    meta.zeros((1,), half), 0, meta.zeros((5000,), "int64"), narrow[0]
                ),
                5000,
            ),
        ):
            assert found.torch().float().sub(expected).abs().max() <= expected / 256
