"""What an operator of a package has by its registrations alone: nothing else names it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import meta
from meta.frontend.aten.registry import aten
from meta.grad.core import gradient
from meta.interop.torch import overloads
from meta.op.core import Op
from meta.op.core.check import require_float
from meta.passes.distributed.sharding_rules import elementwise, rule_of
from meta.testing import F, OpCase, error, sample
from tests.registered import Author, author
from tools.fuzz_models import records
from tools.fuzz_models.draw import Style, generate
from tools.fuzz_models.program import all_steps
from tools.fuzz_models.run import Way, check
from tools.fuzz_models.torch_compile.overloads import calls
from tools.torch_samples.run import run

Tensor = meta.op.core.Tensor
CACHES = (
    overloads.refusal, overloads.all_names, overloads._by_packet, overloads._by_operator,
    records.records, calls,
)  # fmt: skip


def sigmoid_of(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), elementwise. ``x``: floating point. Raises TypeInferError for others."""
    require_float(x, "x")
    return x


@pytest.fixture
def acme() -> Iterator[Author]:
    with author() as made:
        yield made
    for cached in CACHES:
        cached.cache_clear()


@pytest.fixture
def operator(acme: Author, monkeypatch: pytest.MonkeyPatch) -> Op:
    """An elementwise operator with a gradient, a kernel, a record and a converter of ATen's."""
    made = acme.op(sigmoid_of, elementwise=True)
    acme.dialect.kernel(made)(lambda x: torch.sigmoid(x))

    @gradient(made)
    def rule(y, dy):  # type: ignore[no-untyped-def]
        return dy * y * (1.0 - y)

    case = OpCase(
        made.name,
        samples=[sample(F(3, 5)), sample(F())],
        oracle=torch.sigmoid,
        dialects=("author",),
        errors=[error(meta.testing.I(3, low=0, high=2), match="x must be floating point")],
    )
    monkeypatch.setattr(records, "CASES", [*records.CASES, case])
    monkeypatch.delitem(aten._entries, "sigmoid")
    aten.same("sigmoid", made)
    for cached in CACHES:
        cached.cache_clear()
    return made


def test_it_is_fuzzed(operator: Op) -> None:
    """In programs of every executor, under torch.compile, and differentiated."""
    record = records.record_of(operator.name)
    assert record.smooth and not record.moves and not record.degree
    for executor in ("eager", "vm2", "tape"):
        style = Style(2, 3, smooth=executor == "tape", control=False, only=(operator.name,))
        program = generate(0, style)
        assert operator.name in {step.op for step in all_steps(program.steps)}
        assert check(program, Way(executor)) is None
    assert "torch.ops.aten.sigmoid.default({0})" in calls()


def test_it_is_sharded_enabled_and_compared_with_torch(operator: Op) -> None:
    assert rule_of(operator) is elementwise
    assert overloads.overloads_of(operator) == ("sigmoid",)
    found = run("sigmoid", (torch.float32,))
    assert found.passed and found.ran > 1 and found.gradients
