"""Functions with ATen's names and arguments serve our operators: the names' table is true.

Each name's function is ATen's own, so that what is compared is which arguments it is given, and
that a call which means something else is declined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base.device import CPU
from meta.base.errors import BackendError, DispatchError, FormatError
from meta.base.registry import OPERATORS
from meta.base.source import Span
from meta.dialect import Dialect, only
from meta.dialect.core import Unsupported
from meta.dialect.torch.aten_calls import BY_FUNCTION, CALLS
from meta.dialect.torch.correspondence import AtenCall
from meta.dialect.vendors.aten import calls_of, check_signature, is_other_form, kernel_maker
from meta.frontend.aten.registry import overload_of
from meta.op.core.call import array_type
from meta.testing import opcheck
from meta.testing.case import OpCase, Sample
from tests.op.records import CASES

Implementation = Callable[..., Any]


def implementation(form: AtenCall) -> Implementation:
    """Return the overload of a record, or the function that is composed of others."""
    if form.overload is None:
        found: Implementation = getattr(F, form.functions[0])
        return found
    overload = overload_of(form.overload)
    assert overload is not None
    return overload


def case_of(op: str) -> list[OpCase]:
    return [case for case in CASES if case.op == op]


def of_operators() -> Iterator[Any]:
    """Yield each operator of the table with the names that serve it."""
    named: dict[str, list[str]] = {}
    for name, forms in BY_FUNCTION.items():
        for form in forms:
            if name not in named.setdefault(form.op.name, []):
                named[form.op.name].append(name)
    yield from (pytest.param(op, names, id=op) for op, names in named.items())


def register(dialect: Dialect, op: str, name: str) -> None:
    forms = [(name, form, implementation(form)) for form in calls_of(name) if form.op.name == op]
    dialect.register(OPERATORS[op], kernel_maker(forms, "vendor acme"), Span(__file__, 1))


def served(op: str, dialect: Dialect, one: Sample, case: OpCase, dtype: str) -> bool:
    """Check a sample on the dialect; False if it declines it."""
    try:
        opcheck.check_dialect(case, one, dtype, "chips")
    except DispatchError:
        return False
    return True


@pytest.fixture
def many(chips: Dialect) -> Iterator[Callable[[str, str], None]]:
    """Let one name after the other implement an operator."""

    def again(op: str, name: str) -> None:
        made = chips.ops.pop(op, None)
        if made is not None:
            made.base.aspects.dialect_ops.remove(made)
        register(chips, op, name)

    yield again


def check_names(op: str, names: list[str], many: Any, chips: Dialect, dtypes: Any) -> None:
    for name in names:
        many(op, name)
        found = [
            served(op, chips, one, case, dtype)
            for case in case_of(op)
            for dtype in dtypes(case)
            for one in case.samples
        ]
        assert any(found), f"{name} serves no sample"


def first_real(case: OpCase) -> tuple[str, ...]:
    real = [dtype for dtype in case.dtypes if "complex" not in dtype and dtype[:4] != "uint"]
    return tuple(real[:1]) or ("float32",)


UNDEFINED = pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")


@pytest.mark.slow
@UNDEFINED
@pytest.mark.parametrize(("op", "names"), list(of_operators()))
def test_names_mean_what_aten_means_in_all_dtypes(
    op: str, names: list[str], many: Any, chips: Dialect
) -> None:
    check_names(op, names, many, chips, lambda case: case.dtypes or ("float32",))


@UNDEFINED
@pytest.mark.parametrize(("op", "names"), list(of_operators()))
def test_names_mean_what_aten_means(op: str, names: list[str], many: Any, chips: Dialect) -> None:
    check_names(op, names, many, chips, first_real)


# What functions of a vendor may be, and what they return.


def run(chips: Dialect, function: Implementation, *args: Any, op: str = "softmax") -> Any:
    forms = [(op, form, function) for form in calls_of(op) if form.op.name == op]
    chips.register(OPERATORS[op], kernel_maker(forms, "vendor acme"), Span(__file__, 1))
    with only("chips"):
        return OPERATORS[op](*args)


X = meta.array([[1.0, 2.0], [3.0, 5.0]])
WRONG = {
    "shape": lambda x, dim, half: x[0],
    "dtype": lambda x, dim, half: x.double(),
    "count": lambda x, dim, half: (x, x),
    "kind": lambda x, dim, half: None,
}


@pytest.mark.parametrize("what", WRONG)
def test_a_function_that_returns_something_else_is_an_error(what: str, chips: Dialect) -> None:
    with pytest.raises(BackendError, match="returns something else") as caught:
        run(chips, WRONG[what], X)
    assert "softmax of the vendor acme" in caught.value.what


def test_results_are_compact_and_in_memory_of_their_own(chips: Dialect) -> None:
    given = X.torch()
    same = run(chips, lambda x: x, X, op="relu")
    assert same.torch().data_ptr() != given.data_ptr()
    turned = run(chips, lambda x: torch.abs(x).t().contiguous().t(), X, op="abs")
    assert turned.torch().is_contiguous() and torch.equal(turned.torch(), given)


def test_nothing_is_launched_for_a_result_without_elements(chips: Dialect) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("launched")

    assert run(chips, fails, meta.zeros((0, 3)), op="relu").shape == (0, 3)


DECLINED = [
    ("add", (X, 2.0), "x2 is a number, not a tensor"),
    ("bmm", (meta.ones((1, 2, 2)), meta.ones((3, 2, 2))), "batches of different extent"),
    ("sin", (meta.ones((2,), dtype="complex64"),), "complex64"),
    ("sum", (X, 0), "ATen has no axis, which is 0"),
    ("sum_dim", (X,), "axis is None"),
    ("all_dim", (X, (0, 1)), "not one axis"),
    ("mean", (meta.ones((0, 2)),), "a tensor without elements"),
    ("where_self", (X, X, X), "condition is float32, not bool"),
    ("layer_norm", (X, None, None, 0), "axis is 0, not the last one"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "why"), DECLINED, ids=[d[0] for d in DECLINED])
def test_what_aten_does_not_mean_is_declined(name: str, args: Any, why: str) -> None:
    (form, *_) = calls_of(name)
    op = form.op
    types = tuple(array_type(a.key) if isinstance(a, meta.ndarray) else a for a in args)
    call = op.call_values(op.schema.bind(types, {}, lambda v: v), CPU)
    with pytest.raises(Unsupported, match=why):
        kernel_maker([(name, form, torch.relu)], "vendor acme")(call)


def test_the_signature_is_checked_when_the_folder_is_read() -> None:
    (form,) = calls_of("softmax")
    check_signature(lambda self, dim, half_to_float=False: self, "softmax", form)
    check_signature(torch.softmax, "softmax", form)  # which does not say
    with pytest.raises(FormatError, match="does not take ATen's arguments") as caught:
        check_signature(lambda self: self, "softmax", form)
    assert "softmax(x, axis, False)" in str(caught.value)
    (form,) = calls_of("gelu")
    with pytest.raises(FormatError, match="'gelu'"):
        check_signature(lambda A, kind: A, "gelu", form)


def test_names_of_other_forms() -> None:
    known = ["gelu_", "abs_out", "bitwise_and_", "softmax_out", "pow_tensor_scalar_"]
    assert all(map(is_other_form, known))
    assert not any(map(is_other_form, ["gelu", "nonsense_", "flash_attention_forward"]))


def test_the_tables_speak_of_operators_and_their_slots() -> None:
    for form in CALLS:
        slots = {slot.name: slot for slot in form.op.slots}
        assert form.slots <= set(slots), f"{form.overload}: {form}"
        left = [s for n, s in slots.items() if n not in form.slots]
        assert all(s.has_default or s.optional for s in left), f"{form.overload}: {form}"
