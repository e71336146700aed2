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
from meta.dialect.vendors.aten import check_signature, forms_of, kernel_maker
from meta.dialect.vendors.aten_names import ROWS, is_other_form
from meta.op.core.call import array_type
from meta.testing import opcheck
from meta.testing.case import OpCase, Sample
from tests.op.records import CASES

aten = torch.ops.aten
Implementation = Callable[..., Any]

# By a name of the table, ATen's function where it is called otherwise.
OTHERWISE: dict[str, Implementation] = {
    "all_dim": torch.all, "all_dims": torch.all, "any_dim": torch.any, "any_dims": torch.any,
    "bitwise_and_scalar": torch.bitwise_and, "bitwise_and_tensor": torch.bitwise_and,
    "bitwise_or_scalar": torch.bitwise_or, "bitwise_or_tensor": torch.bitwise_or,
    "bitwise_xor_scalar": torch.bitwise_xor, "bitwise_xor_tensor": torch.bitwise_xor,
    "elu": F.elu, "embedding": aten.embedding, "eq_scalar": torch.eq,
    "fmod_tensor": torch.fmod, "ge_scalar": torch.ge, "gelu": F.gelu,
    "gelu_backward": aten.gelu_backward, "glu": F.glu, "greater_scalar": torch.greater,
    "gt_scalar": torch.gt, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish,
    "layer_norm": F.layer_norm, "le_scalar": torch.le, "leaky_relu": F.leaky_relu,
    "less_equal_scalar": torch.less_equal, "lerp_scalar": torch.lerp, "lerp_tensor": torch.lerp,
    "linear": F.linear, "log_sigmoid": F.logsigmoid, "logsigmoid": F.logsigmoid,
    "log_softmax": aten._log_softmax, "_log_softmax": aten._log_softmax,
    "log_softmax_backward": aten._log_softmax_backward_data,
    "_log_softmax_backward_data": aten._log_softmax_backward_data, "lt_scalar": torch.lt,
    "max_dim": torch.max, "mean_dim": torch.mean, "min_dim": torch.min, "mish": F.mish,
    "mish_backward": aten.mish_backward, "ne_scalar": torch.ne,
    "native_layer_norm": torch.native_layer_norm, "not_equal_scalar": torch.not_equal,
    "pow_scalar": torch.pow, "pow_tensor_scalar": torch.pow, "pow_tensor_tensor": torch.pow,
    "prod_dim": torch.prod, "relu6": F.relu6, "rms_norm": F.rms_norm,
    "scatter_reduce": torch.scatter_reduce, "sigmoid_backward": aten.sigmoid_backward,
    "silu": F.silu, "silu_backward": aten.silu_backward, "softmax": aten._softmax,
    "_softmax": aten._softmax, "softmax_backward": aten._softmax_backward_data,
    "_softmax_backward_data": aten._softmax_backward_data, "softplus": F.softplus,
    "softplus_backward": aten.softplus_backward, "softshrink": F.softshrink,
    "special_entr": torch.special.entr, "special_erfc": torch.special.erfc,
    "special_erfinv": torch.special.erfinv, "special_i0e": torch.special.i0e,
    "special_i1": torch.special.i1, "special_i1e": torch.special.i1e,
    "special_ndtr": torch.special.ndtr, "special_xlog1py": torch.special.xlog1py,
    "i0e": torch.special.i0e, "i1": torch.special.i1, "i1e": torch.special.i1e,
    "sum_dim": torch.sum, "tanh_backward": aten.tanh_backward, "tanhshrink": F.tanhshrink,
    "threshold": F.threshold, "threshold_backward": aten.threshold_backward,
    "var_correction": torch.var, "where_scalar_other": torch.where,
    "where_scalar_self": torch.where, "where_self": torch.where,
    "xlogy_scalar_tensor": torch.xlogy, "xlogy_tensor_scalar": torch.xlogy,
    "elu_backward": aten.elu_backward, "hardswish_backward": aten.hardswish_backward,
    "leaky_relu_backward": aten.leaky_relu_backward, "mse_loss": aten.mse_loss,
    "mse_loss_backward": aten.mse_loss_backward, "repeat": lambda x, sizes: x.repeat(sizes),
    "binary_cross_entropy_backward": aten.binary_cross_entropy_backward,
    "repeat_interleave_self_int": torch.repeat_interleave, "hardshrink": F.hardshrink,
    "selu": F.selu, "celu": F.celu,
}  # fmt: skip


def implementation(name: str) -> Implementation:
    return OTHERWISE[name] if name in OTHERWISE else getattr(torch, name)


def case_of(op: str) -> list[OpCase]:
    return [case for case in CASES if case.op == op]


def of_operators() -> Iterator[Any]:
    """Yield each operator of the table with the names that serve it."""
    named: dict[str, list[str]] = {}
    for name in ROWS:
        for form in forms_of(name):
            if name not in named.setdefault(form.op, []):
                named[form.op].append(name)
    yield from (pytest.param(op, names, id=op) for op, names in named.items())


def register(dialect: Dialect, op: str, name: str) -> None:
    forms = [(name, form, implementation(name)) for form in forms_of(name) if form.op == op]
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
    forms = [(op, form, function) for form in forms_of(op) if form.op == op]
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
    (form, *_) = forms_of(name)
    op = OPERATORS[form.op]
    types = tuple(array_type(a.key) if isinstance(a, meta.ndarray) else a for a in args)
    call = op.call_values(op.schema.bind(types, {}, lambda v: v), CPU)
    with pytest.raises(Unsupported, match=why):
        kernel_maker([(name, form, torch.relu)], "vendor acme")(call)


def test_the_signature_is_checked_when_the_folder_is_read() -> None:
    (form,) = forms_of("softmax")
    check_signature(lambda self, dim, half_to_float=False: self, "softmax", form)
    check_signature(torch.softmax, "softmax", form)  # which does not say
    with pytest.raises(FormatError, match="does not take ATen's arguments") as caught:
        check_signature(lambda self: self, "softmax", form)
    assert "softmax(x, axis, False)" in str(caught.value)
    (form,) = forms_of("gelu")
    with pytest.raises(FormatError, match="'gelu'"):
        check_signature(lambda A, kind: A, "gelu", form)


def test_names_of_other_forms() -> None:
    known = ["gelu_", "abs_out", "bitwise_and_", "softmax_out", "pow_tensor_scalar_"]
    assert all(map(is_other_form, known))
    assert not any(map(is_other_form, ["gelu", "nonsense_", "flash_attention_forward"]))


def test_the_table_speaks_of_operators_and_their_slots() -> None:
    for name in ROWS:
        for form in forms_of(name):
            slots = {slot.name: slot for slot in OPERATORS[form.op].slots}
            assert form.slots <= set(slots), f"{name}: {form.text}"
            left = [s for n, s in slots.items() if n not in form.slots]
            assert all(s.has_default or s.optional for s in left), f"{name}: {form.text}"
