"""Every operator, written as ONNX: its records, run by onnxruntime, beside its own results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import onnx
import pytest
import torch

import meta
from meta.base.dtype import TOLERANCE
from meta.base.registry import OPERATORS
from meta.frontend import from_onnx
from meta.frontend.onnx.export.model import to_proto
from meta.frontend.onnx.export.registry import EXPORTERS, derived, no_counterpart
from meta.frontend.onnx.registry import OnnxError
from meta.model import trace
from meta.op.core import tree
from meta.runtime.ndarray import ndarray
from meta.testing.case import OpCase, Sample
from meta.testing.compare import check
from meta.testing.layout import called, of_tensors
from meta.vm import interpret
from tests.frontend.onnx.exported import run
from tests.op.records import CASES

OTHERS = ("float16", "bfloat16", "float64")
OPEN = {
    "argmax argmin max min unique scatter_reduce": "nan",
    "grid_sample": "nan|inf",
    "pow": r"\b64\b|1099511627777",  # integers that overflow
}
"""By operators, the samples of what ONNX leaves to the runtime (docs/howto/onnx_export.md)."""
OPEN_PATTERNS = {name: pattern for names, pattern in OPEN.items() for name in names.split()}
WRONG = {
    ("sign", "float16"): "onnxruntime has 1 for NaN",
    ("log_softmax", "bfloat16"): "the reference takes the logarithm of what was rounded to 0",
    ("lrn", "bfloat16"): "the reference adds up in bfloat16",
    ("max_pool1d", "bfloat16"): "the reference leaves padding out",
}
"""What another evaluator has wrong, by operator and dtype."""
COARSE = 2e-5, 5e-6
"""Tolerances in float64 where an evaluator computes in float32: cubic weights, `BY_ERF`."""
BY_ERF = ("erf", "erfc", "gelu", "ndtr")
REFUSED = re.compile(
    r"complex numbers|float8|Conv\w* does not take int32|opset=|without axes|other extents"
    "|at random|odd number|edge twice|weighted elements|no order"
)
"""What of operators that have a form has none."""
OF_NEWER_OPSETS = {"cumprod", "reinterpret"}
NOT_IMPORTED = {"dynamic_squeeze"}  # the axes have to be known
FEW = 4
"""Samples of an ordinary run."""


def samples(case: OpCase, everything: bool) -> Iterator[tuple[Sample, str]]:
    """Yield samples with their dtypes: in an ordinary run a few of one dtype, the first of all."""
    dtypes = case.dtypes or ("float32",)
    usual = "float32" if "float32" in dtypes else dtypes[0]
    for place, one in enumerate(case.samples):
        for dtype in dtypes:
            few = place < FEW if dtype == usual else place == 0
            if everything != few:
                yield one, dtype


def is_open(case: OpCase, one: Sample, dtype: str) -> bool:
    pattern = OPEN_PATTERNS.get(case.op)
    return (case.op, dtype) in WRONG or (pattern is not None and bool(re.search(pattern, str(one))))


def require_close(
    found: list[Any], expected: list[Any], case: OpCase, one: Sample, dtype: str, coarse: bool
) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        name = str(b.dtype).removeprefix("torch.")
        rtol, atol = COARSE if name == "float64" and coarse else TOLERANCE.get(name, (0.0, 0.0))
        rtol, atol = max(rtol, case.rtol.get(dtype, 0)), max(atol, case.atol.get(dtype, 0))
        wide = [t.float() if t.dtype.itemsize == 1 and t.is_floating_point() else t for t in (a, b)]
        if not is_open(case, one, dtype):
            check(*wide, rtol, atol, what=f"{case.op}({one}) in {dtype}")


def compare(case: OpCase, one: Sample, dtype: str, again: bool) -> bool:
    """Write a call, and compare what it gives, where it can be run; ``again``: what the importer
    makes of it, too. Return whether it was run. OnnxError if it has no form.
    """
    leaves, structure = tree.flatten(one.make(dtype))
    call = of_tensors(called(case), structure)
    program = trace(call).program(*map(ndarray, leaves))
    proto, weights = to_proto(program, 21)
    assert not weights
    onnx.checker.check_model(proto, full_check=True)
    result = interpret(program, *(ndarray(t.clone()) for t in leaves))
    expected = [a.tensor for a in tree.flatten(result)[0]]
    if again and case.op not in NOT_IMPORTED:
        imported = tree.flatten(from_onnx(proto)(*map(ndarray, leaves)))[0]
        require_close([a.tensor for a in imported], expected, case, one, dtype, False)
    try:
        found, by_onnxruntime = run(proto, leaves)
    except RuntimeError:
        # Of other dtypes than float32, and of nothing, neither has all kernels.
        assert dtype in OTHERS or any(not t.numel() for t in leaves), f"{case.op}({one}) in {dtype}"
        return False
    coarse = not by_onnxruntime or case.op in BY_ERF
    require_close(found, expected, case, one, dtype, coarse)
    return True


def names() -> set[str]:
    return {op.name for op in (*EXPORTERS, *derived())}


BY_OPERATOR = {n: [c for c in CASES if c.op == n and c.samples] for n in sorted(names())}


@pytest.mark.parametrize("name", BY_OPERATOR)
@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_records(name: str, everything: bool) -> None:
    """At least one of an operator's samples is written and run."""
    ran = refused = 0
    with meta.dialect.prefer("torch"):
        for case in BY_OPERATOR[name]:
            for place, (one, dtype) in enumerate(samples(case, everything)):
                try:
                    ran += compare(case, one, dtype, place == 0 and not everything)
                except OnnxError as error:
                    assert REFUSED.search(str(error)), f"{name}({one}) in {dtype}: {error}"
                    refused += 1
    assert ran or everything or (refused and name in OF_NEWER_OPSETS)


def test_operators_of_newer_opsets() -> None:
    """What opset 21 has not is written where a newer one is asked for."""
    call = trace(lambda x: meta.op.reinterpret(x, "int32"))
    x = torch.randn(3)
    program = call.program(ndarray(x))
    with pytest.raises(OnnxError, match="opset=26"):
        to_proto(program, 21)
    (found,), _ = run(to_proto(program, 26)[0], [x])
    assert torch.equal(found, x.view(torch.int32))


FAMILIES = ("random", "fourier", "decomposition", "special")
"""Families of which most has no form."""


def test_most_operators_have_a_form() -> None:
    """The others are what the page says, but for a few."""
    own = [op for op in map(OPERATORS.__getitem__, OPERATORS) if op.site.is_own]
    without = [op for op in own if op.name not in names()]
    why = [no_counterpart(op).why for op in without if op.family not in FAMILIES]
    assert len(own) - len(without) >= 250 and why.count("ONNX has no such operator") <= 40
