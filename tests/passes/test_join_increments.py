"""Counters that a program adds to, in one launch."""

from collections import Counter

import pytest
import torch

import meta
from meta.dialect.core.ir_calls import base_op
from meta.ir import Call, parse
from meta.passes import infer_type, join_increments

HEAD = "func @main(%n: int64[], %m: int64[3], %k: int32[], %f: float32[]) -> int64[]"


def called(lines: str, result: str = "%n") -> list[str]:
    """Return the operators of main, whose lines are given, after the pass."""
    module = infer_type(parse(f"{HEAD} {{\n{lines}\n  return {result}\n}}"))
    found = (b.value for b in join_increments(module).main.body.bindings)
    return [base_op(call.callee).name for call in found if isinstance(call, Call)]


BOTH = """
  %a: int64[] = add(%n, 1)
  %b: int64[3] = add(%m, 1)
  %u: () = assign(%n, %a)
  %v: () = assign(%m, %b)
"""
BETWEEN = BOTH.replace("  %v", "  %r: int64[] = negative(%n)\n  %v")
TWO_DTYPES = """
  %a: int64[] = add(%n, 1)
  %b: int32[] = add(%k, 1)
  %u: () = assign(%n, %a)
  %v: () = assign(%k, %b)
"""
OF_FLOATS = """
  %a: float32[] = add(%f, 1)
  %u: () = assign(%f, %a)
"""
OF_ANOTHER = """
  %a: int64[] = add(%n, 1)
  %b: int64[3] = broadcast_to(%a, (3,))
  %u: () = assign(%m, %b)
"""
TWICE = """
  %a: int64[] = add(%n, 1)
  %u: () = assign(%n, %a)
  %b: int64[] = add(%n, 1)
  %v: () = assign(%n, %b)
"""
AS_A_ROW = """
  %a: int64[3] = add(%m, 1)
  %b: int64[1, 3] = reshape(%a, (1, 3))
  %c: int64[3] = reshape(%b, (3,))
  %u: () = assign(%m, %c)
"""


@pytest.mark.parametrize(
    ("lines", "result", "expected"),
    [
        (BOTH, "%n", ["multi_tensor_increment"]),
        (BOTH, "%a", ["add", "multi_tensor_increment"]),
        (BETWEEN, "%r", ["add", "assign", "negative", "multi_tensor_increment"]),
        (TWO_DTYPES, "%n", ["multi_tensor_increment"] * 2),
        (AS_A_ROW, "%n", ["multi_tensor_increment"]),
        (OF_FLOATS, "%n", ["add", "assign"]),
        (OF_ANOTHER, "%n", ["add", "broadcast_to", "assign"]),
        (TWICE, "%n", ["add", "assign", "add", "assign"]),
    ],
)
def test_what_is_joined(lines: str, result: str, expected: list[str]) -> None:
    assert called(lines, result) == expected


def test_counters_of_batch_norms_are_one_launch() -> None:
    layers = [torch.nn.BatchNorm1d(4) for _ in range(5)]
    model = torch.nn.Sequential(*layers)
    eager = torch.nn.Sequential(*[torch.nn.BatchNorm1d(4) for _ in range(5)])
    eager.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="meta", fullgraph=True)
    for i in range(3):
        x = torch.randn(7, 4)
        torch.testing.assert_close(compiled(x), eager(x))
        assert [int(norm.num_batches_tracked) for norm in layers] == [i + 1] * 5
    report = meta.explain_compile(model, torch.randn(7, 4))
    launches = sum((graph.kernels for graph in report.graphs), Counter())
    assert launches["torch", "torch.multi_tensor_increment"] == 1
    assert not any("add" in name or "assign" in name for _, name in launches)
