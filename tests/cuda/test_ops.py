"""Every operator's case on CUDA: each dialect against the oracle, executors, gradients.

Float32 and float16 only, so that a few minutes do: the other dtypes take the same code paths there.
"""

import pytest

from meta.testing import opcheck
from meta.testing.case import OpCase, Sample
from tests.op.records import CASES

pytestmark = pytest.mark.cuda
SAMPLES = [
    pytest.param(c, one, id=f"{c.op}({one})"[:80])
    for c in CASES
    for one in c.samples
    if "cuda" in c.devices
]
DIFFERENTIABLE = [p for p in SAMPLES if p.values[0].grad and p.values[1].has_floats]


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_each_dialect_agrees_with_the_oracle(case: OpCase, one: Sample) -> None:
    for dtype in [d for d in case.dtypes if d in ("float16", "float32")] or ["float32"]:
        for dialect in opcheck.accepting(case, one, dtype, "cuda"):
            opcheck.check_dialect(case, one, dtype, dialect, "cuda")


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_eager_interpreter_and_vm_agree(case: OpCase, one: Sample) -> None:
    opcheck.check_executors(case, one, "cuda")


@pytest.mark.parametrize(("case", "one"), DIFFERENTIABLE)
def test_the_gradient_is_right(case: OpCase, one: Sample) -> None:
    opcheck.check_gradient(case, one, "cuda")
