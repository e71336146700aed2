"""The cast rules: every operator has one, and none makes a call that its type function refuses."""

import threading
from pathlib import Path

import pytest

import meta
from meta import op
from meta.amp import (
    always,
    cast_dtypes,
    custom,
    custom_rules,
    generic_cast,
    infer_cast,
    never,
    register_op_cast_rule,
    rule_of,
)
from meta.base.dtype import is_float
from meta.base.errors import AutocastError, RegistrationError
from meta.base.registry import OPERATORS
from meta.base.source import Span
from meta.ir.types import TensorType
from meta.op.core import Op, Tensor, map_tensors
from meta.op.core.call import array_type
from meta.runtime.ndarray import as_array
from meta.testing import OpCase
from tests.op.records import CASES


def _own() -> list[str]:
    package = str(Path(meta.__file__).parent)
    return [name for name in OPERATORS if OPERATORS[name].site.file.startswith(package)]


def t(dtype: str, *shape: int) -> TensorType:
    return TensorType(shape, dtype)


def casts(name: str, *args: object, half: str = "float16") -> tuple[str | None, ...]:
    """Return the casts of the tensor slots of one call."""
    base = OPERATORS[name]
    bound = base.schema.bind(args, {}, lambda value: value)
    found = cast_dtypes(base, bound, half)
    return tuple(found[i] for i in base.schema.tensor_slots)


def test_every_operator_resolves_to_a_rule() -> None:
    for name in _own():
        rule = rule_of(OPERATORS[name])
        assert rule is not None, name
        assert rule.word in ("always", "never", "infer", "custom"), name
        assert (rule.function is not None) == (rule.word == "custom"), name


def test_what_is_stated_stands_in_one_table() -> None:
    table = str(Path(meta.__file__).parent / "amp" / "rules.py")
    stated = [OPERATORS[n].aspects.cast_rule for n in _own() if OPERATORS[n].aspects.cast_rule]
    assert stated
    assert {rule.site.file for rule in stated} == {table}


def test_no_half_precision_loss_or_matrix_product_is_forgotten() -> None:
    """Families in which one operator too few would cost precision, or the point of it all."""
    for name in _own():
        word = rule_of(OPERATORS[name]).word
        # These take float8, or scales beside what is cast.
        product = "matmul" in name and name not in ("scaled_matmul", "quantized_matmul")
        if product or name.startswith("conv2d") or name == "dense":
            assert word == "always", name
        if "loss" in name or "cross_entropy" in name or "softmax" in name:
            assert word == "never", name
        if "_norm" in name and not name.startswith("random_"):
            assert word == "custom", name


def _precisions(base: Op, args: tuple[object, ...]) -> list[tuple[object, ...]]:
    """Return a float32 call as one that mixed precision could meet: some arguments are half.

    What is written in place, parameters and statistics, is float32.
    """
    slots = [
        i
        for i in base.schema.tensor_slots
        if base.schema.slots[i].access == "RO"
        and any(is_float(v.dtype) for v in _flat(args[i]) if isinstance(v, TensorType))
    ]
    choices = [slots, slots[:1], slots[1:], slots[-1:], []]
    return [
        tuple(_as(value, "float16") if i in chosen else value for i, value in enumerate(args))
        for chosen in choices
    ]


def _flat(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _as(value: object, dtype: str | None) -> object:
    if isinstance(value, tuple):
        return tuple(_as(v, dtype) for v in value)
    if dtype is not None and isinstance(value, TensorType) and is_float(value.dtype):
        return value.with_dtype(dtype)
    return value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_casts_keep_every_call_well_typed(case: OpCase) -> None:
    base = OPERATORS[case.op]
    for one in case.samples:
        args, kwargs = one.make("float32")
        bound = base.schema.bind(args, kwargs, as_array)
        types = map_tensors(base, bound, lambda a: array_type(a.key))
        for mixed in _precisions(base, types):
            found = cast_dtypes(base, mixed, "float16")
            after = tuple(_as(v, d) for v, d in zip(mixed, found, strict=True))
            base.infer(after)
            assert not any(cast_dtypes(base, after, "float16")), f"a second cast of {after}"


def test_always_takes_half_precision() -> None:
    a, b = t("float32", 2, 3), t("float32", 4, 3)
    assert casts("dense", a, b) == ("float16", "float16")
    assert casts("dense", a, b, half="bfloat16") == ("bfloat16", "bfloat16")
    assert casts("dense", t("float16", 2, 3), b) == (None, "float16")


def test_never_takes_float32() -> None:
    assert casts("softmax", t("float16", 2, 3)) == ("float32",)
    assert casts("softmax", t("float32", 2, 3)) == (None,)


def test_infer_follows_the_arguments() -> None:
    h, f = t("float16", 3), t("float32", 3)
    assert casts("divide", h, h) == (None, None)
    assert casts("divide", h, 2.0) == (None, None)
    assert casts("divide", h, f) == ("float32", None)
    assert casts("divide", h, t("bfloat16", 3)) == ("float32", "float32")


def test_float64_is_never_narrowed_and_integers_stay() -> None:
    d = t("float64", 3, 3)
    assert casts("matmul", d, d) == (None, None)
    assert casts("matmul", t("float32", 3, 3), d) == ("float64", None)
    assert casts("softmax", d) == (None,)
    assert casts("cross_entropy", t("float16", 3, 3), t("int64", 3)) == ("float32", None)


def test_what_is_written_is_not_cast_and_the_rest_follows() -> None:
    h, f = t("float16", 3), t("float32", 3)
    assert casts("sgd", f, h, f, 0.1, 0.9) == (None, "float32", None, None, None)
    assert casts("sgd", h, f, h, 0.1, 0.9) == (None, "float16", None, None, None)


def test_rules_of_their_own() -> None:
    h, f = t("float16", 4), t("float32", 4)
    assert casts("add", h, f) == ("float32", None, None, None)
    assert casts("add", f, f, h) == ("float16", "float16", None, None)
    assert casts("concat", (h, h, f)) == ("float16",)
    assert casts("concat", (h, f)) == ("float32",)
    assert casts("concat", (h, h)) == (None,)
    assert casts("bias_add", t("float16", 2, 4), f) == (None, "float16")
    x = t("float16", 2, 4, 3)
    assert casts("batch_norm_train", x, f, f, f, h) == (None, None, None, None, "float32")
    wide = t("float32", 2, 4)
    assert casts("layer_norm", t("float16", 2, 4), f, f) == (None, None, None)
    assert casts("layer_norm", wide, f, h) == ("float16", None, "float32")
    assert casts("rms_norm_dx", wide, f, wide) == ("float16", None, "float16")
    assert casts("layer_norm", t("float64", 2, 4)) == (None, None, None)
    assert casts("split", t("float16", 2, 4), 2) == (None,)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply"])
def test_a_bias_or_a_scale_follows(name: str) -> None:
    h, f = t("float16", 2, 4), t("float32", 4)
    assert casts(name, h, f)[:2] == (None, "float16")
    assert casts(name, f, h)[:2] == ("float16", None)
    assert casts(name, h, t("float64", 4))[:2] == ("float64", None)
    # Not what is no vector of the other: operands meet in the wider dtype.
    assert casts(name, h, t("float32", 1, 4))[:2] == ("float32", None)
    assert casts(name, h, t("float32", 1))[:2] == ("float32", None)
    assert casts(name, h, t("float32", 2, 4))[:2] == ("float32", None)
    assert casts(name, t("float32", 2, 4), t("float16", 4))[:2] == (None, "float32")


def test_casts_that_are_stated() -> None:
    h = t("float16", 4)
    assert casts("astype", h, "float32") == (None,)


def test_a_second_rule_is_refused_and_names_both_places() -> None:
    with pytest.raises(RegistrationError, match="two cast rules") as caught:
        never(op.dense)
    assert "rules.py" in str(caught.value) and Path(__file__).name in str(caught.value)
    with pytest.raises(RegistrationError, match="two cast rules"):
        always(op.add)


def test_a_rule_with_the_wrong_number_of_dtypes_is_refused() -> None:
    def identity(x: Tensor) -> Tensor:
        return x

    made = Op(identity, name="identity_for_amp", schema=op.relu.schema, random=False)

    @custom(made)
    def too_many(args, half):
        return None, None

    with pytest.raises(RegistrationError, match="wrong number of dtypes"):
        cast_dtypes(made, (t("float32", 2),), "float16")


def made_op() -> Op:
    def pair(x1: Tensor, x2: Tensor) -> Tensor:
        return x1

    return Op(pair, name="pair_for_amp", schema=op.equal.schema, random=False)


def test_strangers_state_their_rules() -> None:
    h, f = t("float16", 3), t("float32", 3)
    for rule, expected in (
        (generic_cast(True, 1), ("float16", None)),
        (generic_cast(False, 1), ("float32", None)),
        (generic_cast(False), ("float32", "float32")),
        (infer_cast(2), (None, None)),
        (lambda args, half: (None, half), (None, None)),
    ):
        made = made_op()
        register_op_cast_rule(made, rule)
        found = rule_of(made)
        assert found is not None and found.site.file == __file__
        assert cast_dtypes(made, (f if expected[0] == "float16" else h, h), "float16") == expected
    made = made_op()
    register_op_cast_rule(made, infer_cast(1))
    assert cast_dtypes(made, (f, h), "float16") == (None, None)
    with pytest.raises(RegistrationError, match="two cast rules"):
        register_op_cast_rule("softmax", infer_cast(1))


def test_a_rule_that_cannot_be_is_refused() -> None:
    with pytest.raises(RegistrationError, match="more arguments than it has"):
        register_op_cast_rule(made_op(), infer_cast(3))
    with pytest.raises(RegistrationError, match="no cast rule"):
        register_op_cast_rule(made_op(), "always")
    with pytest.raises(RegistrationError, match="no cast rule"), custom_rules({"relu": "never"}):
        pass


def test_an_operator_that_states_nothing_has_no_rule() -> None:
    made = made_op()
    assert rule_of(made) is None
    with pytest.raises(AutocastError, match="no cast rule: pair_for_amp"):
        cast_dtypes(made, (t("float32", 2), t("float32", 2)), "float16")


def test_a_folder_beside_the_package_with_a_longer_name_is_a_strangers() -> None:
    made = made_op()
    made.site = Span(f"{Path(meta.__file__).parent}_extra/ops.py", 1)
    assert rule_of(made) is None
    made.site = Span(f"{Path(meta.__file__).parent}/op/ops.py", 1)
    assert rule_of(made).word == "infer"


def test_rules_of_a_block_nest_and_end() -> None:
    h = t("float16", 3)
    with custom_rules({"softmax": infer_cast()}):
        assert casts("softmax", h) == (None,)
        with custom_rules({op.softmax: generic_cast(False), "relu": generic_cast(False)}):
            assert casts("softmax", h) == ("float32",) == casts("relu", h)
        assert casts("softmax", h) == (None,) == casts("relu", h)
    assert casts("softmax", h) == ("float32",)


def test_rules_of_a_block_are_those_of_its_thread() -> None:
    seen = []
    with custom_rules({"softmax": infer_cast()}):
        thread = threading.Thread(target=lambda: seen.append(rule_of(op.softmax).word))
        thread.start()
        thread.join()
    assert seen == ["never"]
