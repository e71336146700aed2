"""The generated checks of every operator: one test per case, sample and property. Cases are the
records beside this file.

An ordinary run takes the first sample of each case, which should be the one that shows most; the
others are marked slow, for each compiles kernels of its own. Of checks of what runs kernels, rather
than of kernels, it takes the first case of each operator; those of the others are marked long.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.registry import OPERATORS
from meta.dialect import only
from meta.dialect.core import compile_together
from meta.op.core import Op, tree
from meta.testing import opcheck
from meta.testing.case import OpCase, Sample
from meta.testing.compare import first_float
from meta.testing.shapes import reshaped
from tests.op.records import CASES


def params(chosen: Callable[[OpCase, Sample], bool], most: int | None = None) -> list[Any]:
    """Return the chosen samples of each case, at most ``most``; all but the first are slow."""
    return [
        pytest.param(
            case, one, id=f"{case.op}({one})"[:80], marks=pytest.mark.slow if place else ()
        )
        for case in CASES
        for place, one in enumerate([one for one in case.samples if chosen(case, one)][:most])
    ]


SAMPLES = params(lambda case, one: True)
ELEMENTWISE = params(lambda case, one: OPERATORS[case.op].elementwise)
REFUSED = [pytest.param(case, id=case.op) for case in CASES if case.errors]
DIFFERENTIABLE = params(lambda case, one: case.grad and one.has_floats)
# Second derivatives are checked away from kinks and ties; two samples per case cover the rules.
TWICE = params(
    lambda case, one: case.second and case.grad and one.has_floats and one.is_smooth,
    most=2,
)
RESHAPED = [
    pytest.param(case, id=f"{case.op}({case.samples[0]})"[:80]) for case in CASES if case.samples
]
# One sample per case shows whether its kernels read memory as its strides say.
LAID_OUT = params(lambda case, one: one.is_smooth, most=1)


def long_after_first(samples: list[Any]) -> list[Any]:
    """Return the same, marked long where an operator has one before that is not slow."""
    first: dict[str, Any] = {}
    for one in samples:
        if not one.marks:
            first.setdefault(one.values[0].op, one)
    return [
        one
        if one.marks or one is first[one.values[0].op]
        else pytest.param(*one.values, id=one.id, marks=pytest.mark.long)
        for one in samples
    ]


def compiled_calls(case: OpCase, samples: Iterable[Sample]) -> list[tuple[Sample, str, str]]:
    """Return sample, dtype and dialect of each call that a dialect accepts. Their kernels are
    compiled together, in half the time that they take one by one.
    """
    accepted = [
        (one, dtype, opcheck.explained(case, one, dtype))
        for one in samples
        for dtype in case.dtypes or ("float32",)
    ]
    compile_together(c.env for *_, found in accepted for c in found if c.env is not None)
    return [
        (one, dtype, dialect)
        for one, dtype, found in accepted
        for dialect in opcheck.dialects_that_accept(case, found)
    ]


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_each_dialect_agrees_with_the_oracle(case: OpCase, one: Sample) -> None:
    for _, dtype, dialect in compiled_calls(case, [one]):
        opcheck.check_dialect(case, one, dtype, dialect)


@pytest.mark.parametrize("case", list({p.values[0].op: p for p in reversed(RESHAPED)}.values()))
def test_torch_keeps_its_promise_in_other_shapes(case: OpCase) -> None:
    for one in reshaped(case):
        with only("torch"):
            accepted = opcheck.accepting(case, one, dtype := opcheck.widest(case))
        if accepted:
            opcheck.check_dialect(case, one, dtype, "torch")


@pytest.mark.slow  # each shape is a kernel that is compiled
@pytest.mark.parametrize("case", RESHAPED)
def test_each_dialect_keeps_its_promise_in_other_shapes(case: OpCase) -> None:
    for one, dtype, dialect in compiled_calls(case, reshaped(case)):
        opcheck.check_dialect(case, one, dtype, dialect)


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_the_type_function_tells_the_truth(case: OpCase, one: Sample) -> None:
    for dtype in case.dtypes or ("float32",):
        opcheck.check_type_function(case, one, dtype)


@pytest.mark.parametrize(("case", "one"), ELEMENTWISE)
def test_elementwise_operators_are(case: OpCase, one: Sample) -> None:
    opcheck.check_elementwise(case, one, (case.dtypes or ("float32",))[0])


@pytest.mark.parametrize(("case", "one"), long_after_first(SAMPLES))
def test_eager_interpreter_and_vm_agree(case: OpCase, one: Sample) -> None:
    opcheck.check_executors(case, one)


@pytest.mark.parametrize(("case", "one"), long_after_first(LAID_OUT))
def test_layouts_in_memory_do_not_matter(case: OpCase, one: Sample) -> None:
    opcheck.check_layouts(case, one, opcheck.accepting(case, one, opcheck.widest(case)))


@pytest.mark.parametrize(("case", "one"), DIFFERENTIABLE)
def test_the_gradient_is_right(case: OpCase, one: Sample) -> None:
    opcheck.check_gradient(case, one)


@pytest.mark.long
@pytest.mark.parametrize(("case", "one"), TWICE)
def test_the_second_gradient_is_right(case: OpCase, one: Sample) -> None:
    opcheck.check_second_gradient(case, one)


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused(case: OpCase) -> None:
    for one in case.errors:
        opcheck.check_error(case, one)


def test_every_operator_is_complete() -> None:
    """Each has a case, says something about its gradient, runs where its case says, and is seen to
    raise the errors of which its docstring speaks.
    """
    tested: dict[str, set[str]] = {}
    for case in CASES:
        if case.samples or not case.errors:  # without both, it is tested elsewhere
            tested.setdefault(case.op, set()).update(case.dialects)
    refused = {case.op for case in CASES if case.errors}
    missing = []
    for name in OPERATORS:
        op: Op = OPERATORS[name]
        if not op.site.file.startswith(str(Path(meta.__file__).parent)):
            continue  # defined by another test
        if name not in tested:
            missing.append(f"{name}: no OpCase")
        if op.aspects.gradient is None:
            missing.append(f"{name}: neither a gradient nor a reason for none")
        if not op.__doc__:
            missing.append(f"{name}: no docstring")
        dialects = opcheck.dialects_of(op)
        if dialects and name in tested and not tested[name] <= set(dialects):
            missing.append(f"{name}: only on {dialects}")
        # A DeviceError is known where a call runs, not where it is traced.
        if "TypeInferError" in (op.__doc__ or "") and name not in refused:
            missing.append(f"{name}: its docstring names an error, and no case has one")
    assert not missing, "\n".join(missing)


def differentiated(case: OpCase, one: Sample) -> set[str]:
    """Return the names of the arguments by which torch differentiates the oracle."""
    op = OPERATORS[case.op]
    args, kwargs = one.make("float64")
    leaves = [t for t in tree.flatten((args, kwargs))[0] if t.dtype.is_floating_point]
    for leaf in leaves:
        leaf.requires_grad_()
    y = first_float(case.oracle(*args, **kwargs))
    if not y.requires_grad:
        return set()
    found = torch.autograd.grad(y.sum(), leaves, allow_unused=True)
    reached = {id(t) for t, g in zip(leaves, found, strict=True) if g is not None and t.numel()}
    bound = op.schema.bind(args, kwargs, lambda t: t)
    return {
        op.schema.names[i]
        for i in op.schema.tensor_slots
        if any(id(t) in reached for t in tree.flatten(bound[i])[0])
    }


def test_every_gradient_is_checked_numerically() -> None:
    """For each operator, by every argument by which it has a gradient, in at least one sample."""
    wanted: dict[str, set[str]] = {}
    checked: dict[str, set[str]] = {}
    for case, one in (p.values for p in DIFFERENTIABLE):
        names = differentiated(case, one)
        wanted.setdefault(case.op, set()).update(names)
        if opcheck.has_numeric_gradient(one):
            checked.setdefault(case.op, set()).update(names)
    missing = [
        f"{name}: no smooth sample of at most {opcheck.MAX_NUMERIC_ELEMENTS} elements has {slots}"
        for name in wanted
        if (slots := sorted(wanted[name] - checked.get(name, set())))
    ]
    excused = {case.op for case in CASES if case.why}
    for name in {case.op for case in CASES} - set(wanted) - excused:
        gradient = OPERATORS[name].aspects.gradient
        if gradient is not None and gradient.function is not None:
            missing.append(f"{name}: no case has grad, and none says why")
    assert not missing, "\n".join(sorted(missing))
