"""Every converter against the independent result of its cases; every operator of TVM is known."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm
from tvm import relax as R

import meta
from meta.frontend import from_relax
from meta.frontend.relax import RelaxError, operators
from meta.frontend.relax.values import relax
from meta.op.core import tree
from tests.frontend.relax.records import RelaxCase

FAMILIES = sorted((Path(__file__).parent / "converters").glob("*.py"))
CASES: list[RelaxCase] = [
    case
    for path in FAMILIES
    for case in import_module(f"tests.frontend.relax.converters.{path.stem}").CASES
]
OF_TVM = {
    str(n).removeprefix("relax.") for n in tvm.ir.Op.list_op_names() if str(n).startswith("relax.")
}


def module_of(case: RelaxCase) -> tvm.IRModule:
    """Return a module whose main makes the case's call."""
    builder = R.BlockBuilder()
    variables = [
        R.Var(f"x{i}", R.TensorType(x.shape, str(x.dtype))) for i, x in enumerate(case.inputs)
    ]
    with builder.function("main", variables):
        builder.emit_func_output(builder.emit(case.build(*variables)))
    return builder.get()


def flat(value: Any) -> list[Any]:
    return [v for part in value for v in flat(part)] if isinstance(value, tuple | list) else [value]


def check(case: RelaxCase, device: str = "cpu") -> None:
    module = module_of(case)
    assert case.name in operators(module)
    model = from_relax(module)
    if case.training:
        model.train()
    found, _ = tree.flatten(model(*(meta.array(x, device=device) for x in case.inputs)))
    wanted = case.expected
    if callable(wanted):
        wanted = wanted(*(torch.from_numpy(x) for x in case.inputs))
    for f, w in zip(found, flat(wanted), strict=True):
        w = torch.as_tensor(w)
        result = f.torch().cpu()
        assert (result.shape, result.dtype) == (w.shape, w.dtype)
        tolerance = case.tolerance if w.is_floating_point() else 0
        torch.testing.assert_close(result, w, rtol=tolerance, atol=tolerance, equal_nan=True)


RESULTS = [pytest.param(c, id=c.id) for c in CASES if c.refused is None]


@pytest.mark.parametrize("case", RESULTS)
def test_results(case: RelaxCase) -> None:
    with meta.dialect.prefer("torch"):
        check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", RESULTS)
def test_results_on_tvm(case: RelaxCase) -> None:
    check(case)


@pytest.mark.cuda
@pytest.mark.parametrize("case", [c for c in RESULTS if c.values[0].inputs])
def test_results_on_cuda(case: RelaxCase) -> None:
    """On a GPU, what a converter makes is where the inputs are."""
    with meta.dialect.prefer("torch"):
        check(case, "cuda")


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in CASES if c.refused])
def test_refused(case: RelaxCase) -> None:
    with pytest.raises(RelaxError, match=case.refused):
        from_relax(module_of(case))(*map(meta.array, case.inputs))


def test_every_operator_of_tvm_is_converted_or_has_a_reason() -> None:
    assert OF_TVM - {"call_tir"} == {n for n in relax if not n.startswith("torch.")}


def test_every_converter_has_a_case() -> None:
    converted = {n for n in relax if relax.get(n).function is not None and n in OF_TVM}
    called = {n for c in CASES for n in operators(module_of(c))}
    # The one is no value by itself, the other needs a module with devices.
    assert converted - called == {"null_value", "to_vdevice"}
