"""A signature is a schema: slots from annotations, checked arguments, task views."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import (
    ArgumentError,
    DeviceError,
    RegistrationError,
    TypeInferError,
)
from meta.base.registry import OPERATORS
from meta.grad.core import gradient, not_differentiable
from meta.op.core import (
    DeviceName,
    DType,
    InOut,
    Ints,
    Op,
    Scalar,
    Schema,
    Tensor,
    Weight,
    op,
)

pytestmark = pytest.mark.usefixtures("torch_kernels")


@pytest.fixture
def define() -> Iterator[Callable[..., Op]]:
    """Define operators that are forgotten after the test."""
    made: list[Op] = []

    def new(function: Callable[..., Any], **options: Any) -> Op:
        made.append(op(**options)(function))
        return made[-1]

    yield new
    for base in made:
        OPERATORS.remove(base.name)


def everything(
    tensor: Tensor,
    state: InOut,
    several: tuple[Tensor, ...],
    number: Scalar,
    either: Scalar | Tensor,
    maybe: Tensor | None = None,
    written: InOut | None = None,
    limit: Scalar | None = None,
    flag: bool = False,
    count: int = 1,
    ratio: float = 0.5,
    mode: str = "same",
    shape: tuple[int, ...] = (),
    pads: Ints = 0,
    axis: int | tuple[int, ...] | None = None,
    dtype: DType = "float32",
    device: DeviceName = "cpu",
    kind: DType | None = None,
) -> Tensor:
    """Every kind of slot."""
    return tensor


SCHEMA = Schema("everything", everything)


def lift(value: Any) -> tuple[str, Any]:
    return ("lifted", value)


def read(name: str, value: Any) -> Any:
    return SCHEMA.slots[SCHEMA.index[name]].read(value, lift)


class TestSlots:
    @pytest.mark.parametrize(
        ("name", "kind", "access", "optional", "accepts"),
        [
            ("tensor", "tensor", "RO", False, "tensor"),
            ("state", "tensor", "RW", False, "tensor written in place"),
            ("several", "tensors", "RO", False, "tuple of tensors"),
            ("number", "scalar", "RO", False, "number"),
            ("either", "scalar or tensor", "RO", False, "number or tensor"),
            ("maybe", "tensor", "RO", True, "tensor or None"),
            ("written", "tensor", "RW", True, "tensor written in place or None"),
            ("limit", "scalar", "RO", True, "number or None"),
            ("flag", "attribute", "RO", False, "bool"),
            ("count", "attribute", "RO", False, "int"),
            ("ratio", "attribute", "RO", False, "float"),
            ("mode", "attribute", "RO", False, "str"),
            ("shape", "attribute", "RO", False, "tuple of ints"),
            ("pads", "attribute", "RO", False, "int or tuple of ints"),
            ("axis", "attribute", "RO", True, "int or tuple of ints or None"),
            ("dtype", "attribute", "RO", False, "dtype"),
            ("device", "attribute", "RO", False, "device"),
            ("kind", "attribute", "RO", True, "dtype or None"),
        ],
    )
    def test_kinds(self, name: str, kind: str, access: str, optional: bool, accepts: str) -> None:
        slot = SCHEMA.slots[SCHEMA.index[name]]
        assert (slot.kind, slot.access, slot.optional) == (kind, access, optional)
        assert slot.accepts == accepts
        assert slot.is_tensor == (kind in ("tensor", "tensors", "scalar or tensor"))

    def test_roles(self) -> None:
        def affine(x: Tensor, w: Weight, b: Weight | None = None) -> Tensor:
            return x

        weights = Schema("affine", affine)
        assert [(s.kind, s.access, s.role) for s in weights.slots] == [
            ("tensor", "RO", "input"),
            ("tensor", "RO", "weight"),
            ("tensor", "RO", "weight"),
        ]
        assert weights.slots[2].optional and weights.slots[1].accepts == "tensor"
        assert {s.role for s in SCHEMA.slots} == {"input"}
        assert [s.name for s in meta.op.batch_norm_train.slots if s.role == "weight"] == ["w", "b"]
        assert [s.name for s in meta.op.dense.slots if s.role == "weight"] == ["x2"]
        assert [s.name for s in meta.op.matmul.slots if s.role == "weight"] == []

    def test_derived(self) -> None:
        assert SCHEMA.required == 5 and SCHEMA.written == (1, 6)
        assert SCHEMA.tensor_slots == (0, 1, 2, 4, 5, 6)
        assert SCHEMA.reserved("y") == "y"
        assert Schema("taken", lambda_of("y: Tensor")).reserved("y") == "y_"
        assert str(meta.op.softmax.schema) == "softmax(x: tensor, axis: int = -1)"

    def test_task_views(self) -> None:
        softmax = meta.op.softmax
        assert softmax.signature("init") == (("axis", "RO"),)
        assert softmax.signature("forward") == (("x", "RO"), ("out", "WO"))
        assert softmax.signature("backward")[-1] == ("dx", "WO")
        assert ("dy", "RO") in softmax.signature("backward")
        forward = meta.op.batch_norm_train.signature("forward")
        assert [n for n, access in forward if access == "RW"] == ["running_mean", "running_var"]
        assert meta.op.argmax.signature("backward") == ()
        with pytest.raises(ArgumentError, match="unknown phase"):
            softmax.signature("sideways")


def lambda_of(parameters: str) -> Callable[..., Any]:
    """A type function with these parameters."""
    scope: dict[str, Any] = {}
    exec(f"def f({parameters}) -> Tensor: ...", globals(), scope)
    return scope["f"]


class TestRegistration:
    @pytest.mark.parametrize(
        "parameters",
        [
            "x: complex",
            "x: dict",
            "x: tuple[float, ...]",
            "x: Tensor | int",
            "x: list[int]",
            "x: InOut | Scalar",
            "x: 'object'",
            "x",
            "*x: Tensor",
            "**x: Tensor",
            "x: Tensor, *, axis: int",
            "x: Tensor, /",
            "_x: Tensor",
        ],
    )
    def test_what_is_no_slot(self, parameters: str) -> None:
        with pytest.raises(RegistrationError, match="wrong") as caught:
            Schema("wrong", lambda_of(parameters))
        assert caught.value.span is not None

    def test_names_clash(self, define: Any) -> None:
        def test_clash(x: Tensor) -> Tensor:
            return x

        first = define(test_clash)
        with pytest.raises(RegistrationError) as caught:
            op(lambda_again)
        text = str(caught.value)
        assert "operator 'test_clash' is defined twice" in text
        assert str(first.site) in text and f"{__file__}:{caught.value.span.line}" in text
        assert OPERATORS["test_clash"] is first

    def test_shared_schema(self, define: Any) -> None:
        def test_base(x: Tensor, axis: int = 0) -> Tensor:
            return x

        def test_other(x: Tensor, axis: int = 0) -> Tensor:
            return x

        def test_unlike(y: Tensor) -> Tensor:
            return y

        base = define(test_base)
        other = define(test_other, schema=base)
        assert other.slots is base.slots
        for made in (base, other):
            with pytest.raises(ArgumentError, match=f"{made.name}: argument 'x' is missing") as e:
                made()
            assert f"expected: {made.name}(x: tensor, axis: int = 0)" in str(e.value)
        with pytest.raises(RegistrationError, match="does not fit the schema of 'test_base'"):
            op(schema=base)(test_unlike)
        assert "test_unlike" not in OPERATORS

    def test_a_type_function_that_hands_its_arguments_on(self, define: Any) -> None:
        def test_base(x: Tensor, axis: int = 0) -> Tensor:
            return x

        def test_handing_on(*arguments: Any) -> Tensor:
            return test_base(*arguments)

        handing_on = define(test_handing_on, schema=define(test_base))
        assert handing_on.schema.names == ("x", "axis")
        x = Tensor((2,), "float32")
        assert handing_on.infer((x, 0)) is x

    def test_two_declares(self, define: Any) -> None:
        def test_declared(x: Tensor) -> Tensor:
            return x

        base = define(test_declared)
        base.declare(lambda call: None)
        with pytest.raises(RegistrationError, match="two declares"):
            base.declare(lambda call: None)

    def test_aspects_name_both_sites(self, define: Any) -> None:
        def test_aspect(x: Tensor) -> Tensor:
            return x

        base = define(test_aspect)
        not_differentiable(base, why="a test")
        with pytest.raises(RegistrationError) as caught:
            gradient(base)(lambda dy: dy)
        assert str(caught.value).count(__file__) >= 2
        with pytest.raises(RegistrationError):
            gradient(define(lambda_of("x: Tensor"), name="test_rule"))(lambda dy, nonsense: dy)


def lambda_again(x: Tensor) -> Tensor:
    return x


lambda_again.__name__ = "test_clash"

X = meta.array([[1.0, 2.0]])


class TestArguments:
    @pytest.mark.parametrize(
        ("use", "what", "details"),
        [
            (lambda: meta.softmax(), "argument 'x' is missing", "x: tensor"),
            (lambda: meta.softmax(axis=1), "argument 'x' is missing", "missing ['x']"),
            (lambda: meta.softmax(X, 1, 2), "takes 2 arguments, 3 were given", "axis: int"),
            (lambda: meta.softmax(X, X, X), "takes 2 arguments, 3 were given", "axis: int"),
            (lambda: meta.softmax(X, axs=1), "no argument 'axs'", "did you mean 'axis'"),
            (lambda: meta.softmax(X, x=X), "argument 'x' is given twice", "x: tensor"),
            (lambda: meta.softmax(X, "1"), "argument 'axis' does not fit", "'1' (str)"),
            (lambda: meta.softmax(X, 1.0), "argument 'axis' does not fit", "1.0 (float)"),
            (lambda: meta.softmax(X, True), "argument 'axis' does not fit", "True (bool)"),
            (lambda: meta.softmax(X, None), "argument 'axis' does not fit", "expected: int"),
            (lambda: meta.softmax(X, X), "argument 'axis' does not fit", "(ndarray)"),
            (lambda: meta.softmax(X, [1]), "argument 'axis' does not fit", "[1] (list)"),
            (lambda: meta.softmax(None), "argument 'x' does not fit", "None (NoneType)"),
            (lambda: meta.softmax(object()), "argument 'x'", "cannot become an array"),
            (lambda: meta.concat(X), "argument 'arrays' does not fit", "tuple of tensors"),
            (lambda: meta.concat(3), "argument 'arrays' does not fit", "3 (int)"),
            (lambda: meta.concat((X, "a")), "argument 'arrays'", "cannot become an array"),
            (lambda: meta.reshape(X, (2.0,)), "argument 'shape' does not fit", "(2.0,) (tuple)"),
            (lambda: meta.sum(X, keepdims="no"), "argument 'keepdims' does not fit", "bool"),
            (lambda: meta.astype(X, "flaot32"), "unknown dtype", "did you mean 'float32'"),
            (lambda: meta.full(0.5, (2,)), "argument 'shape' does not fit", "0.5 (float)"),
            (lambda: meta.full((2,), "1"), "argument 'fill_value' does not fit", "number"),
            (lambda: meta.full((2,), 1j), "argument 'fill_value' does not fit", "1j (complex)"),
            (lambda: meta.add(X, None), "argument 'x2' does not fit", "number or tensor"),
            (lambda: meta.add(X, np.complex64(1)), "argument 'x2' does not fit", "complex64"),
        ],
    )
    def test_errors(self, use: Any, what: str, details: str) -> None:
        with pytest.raises(ArgumentError) as caught:
            use()
        text = str(caught.value)
        assert what in text and details in text
        assert caught.value.op is not None and text.startswith(caught.value.op)
        assert caught.value.span is not None and caught.value.span.file == __file__
        assert isinstance(caught.value, TypeError)

    def test_long_values_are_not_printed(self) -> None:
        with pytest.raises(ArgumentError) as caught:
            meta.softmax(X, "a" * 1000)
        assert len(str(caught.value)) < 400

    @pytest.mark.parametrize("x", [X, X.torch(), X.numpy(), [[1.0, 2.0]], ((1.0, 2.0),)])
    def test_what_is_a_tensor(self, x: Any) -> None:
        expected = X.torch().softmax(-1)
        for y in (meta.softmax(x), meta.softmax(x=x), meta.softmax(x, axis=-1)):
            torch.testing.assert_close(y.torch(), expected)
        for pair in ((x, X), [x, X]):
            assert meta.concat(pair, axis=0).shape == (2, 2)
        assert meta.add(x, 1).shape == meta.add(1, x).shape == (1, 2)

    def test_a_number_where_a_tensor_is_meant(self) -> None:
        assert meta.sum(2.5).item() == 2.5
        assert meta.reshape(3, (1, 1)).numpy().tolist() == [[3]]
        assert meta.sum((X, X)).item() == 6

    def test_ints(self) -> None:
        for axis in ((0, 1), [0, 1], (np.int64(0), np.int8(1)), None):
            assert meta.sum(X, axis).shape == ()
        for axis in (1, np.int64(1), -1, [1]):
            assert meta.sum(X, axis=axis).numpy().tolist() == [3]
        for axis in ((0, True), "01", 1.0, (0, [1]), np.array([0, 1]), {0}):
            with pytest.raises(ArgumentError):
                meta.prod(X, axis)

    def test_reading(self) -> None:
        assert read("flag", np.True_) is True
        assert read("ratio", 3) == 3.0 and type(read("ratio", np.float32(0.5))) is float
        assert read("count", np.uint8(3)) == 3 and type(read("count", np.uint8(3))) is int
        assert read("pads", 2) == 2 and read("pads", [1, 2]) == (1, 2)
        assert read("dtype", torch.float16) == read("dtype", np.float16) == "float16"
        assert read("kind", None) is None and read("kind", float) == "float64"
        assert read("device", "cuda(1)") == "cuda:1"
        assert read("maybe", None) is None and read("limit", None) is None
        assert read("several", [1, 2]) == (lift(1), lift(2)) and read("several", ()) == ()
        assert read("either", 2) == 2 and read("either", "x") == lift("x")
        assert read("dtype", None) == "float32" and read("device", None) == "cpu"
        with pytest.raises(ArgumentError):
            meta.astype(X, None)  # no default
        with pytest.raises(DeviceError):
            read("device", "tpu")

    def test_numbers_lose_their_subclass(self) -> None:
        class Level(enum.IntEnum):
            ONE = 1

        class Seconds(float):
            pass

        for value, kind in (
            (Level.ONE, int),
            (Seconds(1), float),
            (np.float64(1), float),
            (np.float16(1), float),
            (np.int8(1), int),
            (np.True_, bool),
            (True, bool),
        ):
            assert type(read("number", value)) is kind
            np.testing.assert_array_equal(meta.add(X, value).numpy(), [[2, 3]])
            np.testing.assert_array_equal(meta.multiply(value, X).numpy(), X.numpy())

    def test_type_errors_show_the_call(self) -> None:
        with pytest.raises(TypeInferError) as caught:
            meta.softmax(X, axis=5)
        text = str(caught.value)
        assert text.startswith("softmax: axis 5 is out of range for ndim 2")
        assert "expected: -2 <= axis < 2" in text
        assert "found:    softmax(x=float32[1, 2], axis=5)" in text
        assert f"at:       {__file__}:" in text
