"""Fused patterns of dialects: registration, choice, refusals with reasons, and those of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.device import CPU, Device
from meta.base.errors import IRError, RegistrationError, UnknownName
from meta.dialect import Dialect
from meta.dialect.core import HANDWRITTEN, LIBRARY, REFERENCE, OpEnv, Unsupported
from meta.ir import Module, parse, structural_equal, verify
from meta.passes import dispatch, explain_fusion, fuse_dialect, infer_type
from tests.registered import remove_dialects

pytestmark = pytest.mark.usefixtures("acme")


def program(text: str, params: str = "%x: float32[4, 3], %w: float32[5, 3]") -> Module:
    """Return a typed main that returns %r."""
    return infer_type(parse(f"func @main({params}) {{\n{text}\n return %r\n}}"))


def kernels(module: Module, *shapes: tuple[int, ...]) -> tuple[list[str], Any, Any]:
    """Return which kernels a compiled program runs, its result, and that of no fusion at all."""
    torch.manual_seed(0)
    arrays = [meta.array(torch.randn(s)) for s in shapes]
    compiled = meta.vm.compile(module, *arrays)
    plain = meta.vm.compile(module, *arrays, opt_level=0)
    return list(compiled.kernels()), compiled(*arrays).torch(), plain(*arrays).torch()


def test_a_call_of_what_the_pattern_computes_stays(acme: Dialect) -> None:
    @acme.pattern(lambda x, w, c: op.add(op.dense(x, w), c))
    def added(x, w, c):
        raise AssertionError("there is no c")

    text = "%a = dense(%x, %w)\n %r = add(%a, %a)"
    assert "computes c" in explain_fusion(program(text), device=CPU)
    names, found, expected = kernels(program(text), (4, 3), (5, 3))
    assert "acme.added" not in names
    torch.testing.assert_close(found, expected)


CHAIN = "%a = dense(%x, %w)\n %b = sigmoid(%a)\n %r = multiply(%b, 3.0)"


def test_a_pattern_and_its_kernel(acme: Dialect) -> None:
    @acme.pattern(lambda x, w, by: op.sigmoid(op.dense(x, w)) * by)
    def gate(by, w, x):
        return torch.sigmoid(x @ w.t()) * by

    fused = fuse_dialect(program(CHAIN), device=CPU)
    verify(fused, typed=True)
    attrs = fused.functions["gate"].attrs
    assert attrs == {
        "fused": "acme",
        "kernel": "gate",
        "arguments": (("x", 0), ("w", 1)),
        "literals": (("by", 3.0),),
        "allocates": True,
    }
    assert structural_equal(dispatch(fused, device=CPU).functions["gate"], fused.functions["gate"])
    names, found, expected = kernels(program(CHAIN), (4, 3), (5, 3))
    assert names == ["acme.gate"]
    torch.testing.assert_close(found, expected)


def test_kernels_that_fill_take_places_in_the_arena(acme: Dialect) -> None:
    @acme.pattern(lambda x: op.exp(op.negative(x)))
    def decay(x, out):
        torch.exp(-x, out=out)

    text = "%a = negative(%x)\n %b = exp(%a)\n %c = tanh(%b)\n %r = sum(%c)"
    names, found, expected = kernels(program(text), (4, 3), (5, 3))
    assert names[0] == "acme.decay"
    torch.testing.assert_close(found, expected)


def test_one_value_for_two_captures(acme: Dialect) -> None:
    @acme.pattern(lambda x, y: op.exp(op.dense(x, y)))
    def product(y, x, out):
        torch.exp(x @ y.t(), out=out)

    text = "%a = dense(%x, %x)\n %r = exp(%a)"
    assert 'arguments=(("x", 0), ("y", 0))' in str(fuse_dialect(program(text), device=CPU))
    names, found, expected = kernels(program(text), (4, 3), (5, 3))
    assert names == ["acme.product"]
    torch.testing.assert_close(found, expected)


def test_attributes_are_captured(acme: Dialect) -> None:
    @acme.pattern(lambda x, axis: op.log(op.softmax(x, axis)))
    def log_softmax(x, axis):
        return torch.log_softmax(x, axis)

    names, found, expected = kernels(program("%a = softmax(%x, 0)\n %r = log(%a)"), (4, 3), (5, 3))
    assert names == ["acme.log_softmax"]
    torch.testing.assert_close(found, expected)


# Which pattern, and why not.


def test_the_largest_level_first_then_the_larger_pattern(acme: Dialect) -> None:
    @acme.pattern(lambda x: op.sigmoid(x) * 3.0, plevel=HANDWRITTEN)
    def small(x):
        return torch.sigmoid(x) * 3

    @acme.pattern(lambda x, w: op.sigmoid(op.dense(x, w)) * 3.0, plevel=HANDWRITTEN)
    def large(x, w):
        return torch.sigmoid(x @ w.t()) * 3

    assert "large" in fuse_dialect(program(CHAIN), device=CPU).functions

    @acme.pattern(lambda x, w: op.sigmoid(op.dense(x, w)), plevel=HANDWRITTEN + 1)
    def early(x, w):
        return torch.sigmoid(x @ w.t())

    assert list(fuse_dialect(program(CHAIN), device=CPU).functions) == ["main", "early"]


def test_a_refusal_leaves_the_program_and_has_a_reason(acme: Dialect) -> None:
    def wide(w):
        return None if w.shape[0] >= 8 else f"{w.shape[0]} units are too few"

    @acme.pattern(lambda x, w: op.sigmoid(op.dense(x, w)), when=wide)
    def gate(x, w):
        raise AssertionError

    given = program(CHAIN)
    assert fuse_dialect(given, device=CPU).functions == given.functions
    said = explain_fusion(given, device=CPU)
    assert "acme plevel 20" in said
    assert "5 units are too few" in said


@pytest.mark.parametrize("plevel", [REFERENCE, {"cpu": REFERENCE}])
def test_a_kernel_of_a_larger_level_goes_first(acme: Dialect, plevel: Any) -> None:
    @acme.pattern(lambda x, w: op.sigmoid(op.dense(x, w)), plevel=plevel)
    def gate(x, w):
        raise AssertionError

    given = program(CHAIN)
    assert fuse_dialect(given, device=CPU).functions == given.functions
    said = explain_fusion(given, device=CPU)
    assert f"dense has the kernel torch.dense of level {LIBRARY}" in said
    with meta.dialect.prefer("acme"):
        assert "gate" in fuse_dialect(given, device=CPU).functions
    with meta.dialect.prefer("torch", "acme"):
        assert "gate" not in fuse_dialect(given, device=CPU).functions


def test_preferences_and_devices_count(acme: Dialect) -> None:
    @acme.pattern(lambda x, w: op.sigmoid(op.dense(x, w)))
    def gate(x, w):
        raise AssertionError

    given = program(CHAIN)
    with meta.dialect.exclude("acme"):
        assert "gate" not in fuse_dialect(given, device=CPU).functions
        assert "acme" not in explain_fusion(given, device=CPU)
    assert "gate" not in fuse_dialect(given, device=Device("cuda")).functions


def test_extents_known_at_run_time_are_refused(acme: Dialect) -> None:
    @acme.pattern(lambda x, w: op.sigmoid(op.dense(x, w)))
    def gate(x, w):
        raise AssertionError

    given = program(CHAIN, "%x: float32[n, 3], %w: float32[5, 3]")
    assert fuse_dialect(given, device=CPU).functions == given.functions
    assert "run time" in explain_fusion(given, device=CPU)


# Registration.


def test_unknown_parameters(acme: Dialect) -> None:
    with pytest.raises(RegistrationError, match=r"'bias'.*asks|asks.*'bias'"):

        @acme.pattern(lambda x, w: op.relu(op.dense(x, w)))
        def gate(x, w, bias):
            raise AssertionError

    with pytest.raises(RegistrationError, match="'b'"):

        @acme.pattern(lambda x, w: op.relu(op.dense(x, w)), when=lambda b: None)
        def gated(x, w):
            raise AssertionError


def test_one_name_twice(acme: Dialect) -> None:
    def gate(x):
        raise AssertionError

    acme.pattern(lambda x: op.relu(op.exp(x)))(gate)
    with pytest.raises(RegistrationError, match="two patterns 'gate'"):
        acme.pattern(lambda x: op.relu(op.tanh(x)))(gate)


def test_a_level_for_another_device(acme: Dialect) -> None:
    with pytest.raises(RegistrationError, match="cuda"):
        acme.pattern(lambda x: op.relu(op.exp(x)), plevel={"cuda": 3})(lambda x: x)


def test_a_function_that_names_a_pattern_which_is_not_there(acme: Dialect) -> None:
    text = """func @main(%x: float32[2]) -> float32[2] {
      %r: float32[2] = @f(%x)
      return %r
    }
    func @f(%x: float32[2]) -> float32[2] attrs(fused="acme", kernel="gat", arguments=()) {
      %r: float32[2] = exp(%x)
      return %r
    }"""

    @acme.pattern(lambda x: op.relu(op.exp(x)))
    def gate(x):
        raise AssertionError

    with pytest.raises(UnknownName, match=r"no pattern 'gat'"):
        meta.vm.compile(parse(text), meta.array([1.0, 2.0]))


@pytest.mark.parametrize("arguments", ["", 'arguments=(("x", 1),)', 'arguments=("x",)'])
def test_a_function_that_does_not_say_what_the_kernel_takes(acme: Dialect, arguments: str) -> None:
    @acme.pattern(lambda x: op.relu(op.exp(x)))
    def gate(x):
        raise AssertionError

    attrs = ", ".join(['fused="acme"', 'kernel="gate"', *filter(None, [arguments])])
    text = f"""func @main(%x: float32[2]) -> float32[2] {{
      %r: float32[2] = @f(%x)
      return %r
    }}
    func @f(%x: float32[2]) -> float32[2] attrs({attrs}) {{
      %r: float32[2] = exp(%x)
      return %r
    }}"""
    with pytest.raises(IRError, match=r"takes as \['x'\]"):
        meta.vm.compile(parse(text), meta.array([1.0, 2.0]))


# The patterns of torch.

LINEAR = "%x: float32[4, 3], %w: float32[5, 3], %b: float32[5]"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("%a = dense(%x, %w)\n %r = bias_add(%a, %b)", ["torch.linear"]),
        ("%a = matmul_nt(%x, %w)\n %r = add(%b, %a)", ["torch.linear"]),
        ("%a = dense(%x, %w)\n %c = add(%a, %b)\n %r = relu(%c)", ["torch.linear_relu"]),
    ],
)
def test_torch_has_linear_layers(text: str, names: list[str]) -> None:
    found, fused, plain = kernels(program(text, LINEAR), (4, 3), (5, 3), (5,))
    assert found == names
    torch.testing.assert_close(fused, plain)


def test_torch_declines_integers() -> None:
    given = program(
        "%a = dense(%x, %w)\n %r = bias_add(%a, %b)", LINEAR.replace("float32", "int32")
    )
    assert fuse_dialect(given, device=CPU).functions == given.functions
    assert "not for int32" in explain_fusion(given, device=CPU)


CONV = "%x: float32[2, 3, 8, 8], %w: float32[4, 3, 3, 3], %b: float32[4]"


@pytest.mark.parametrize("options", ["", ", 2, (1, 0, 0, 2)", ", 1, 2, 2", ", 1, 0, 1, 1"])
def test_torch_has_convolutions_with_bias(options: str) -> None:
    for act, name in (("copy", "conv2d_bias"), ("relu", "conv2d_bias_relu")):
        text = f"%a = conv2d(%x, %w{options})\n %c = bias_add(%a, %b)\n %r = {act}(%c)"
        found, fused, plain = kernels(program(text, CONV), (2, 3, 8, 8), (4, 3, 3, 3), (4,))
        assert found[0] == f"torch.{name}"
        torch.testing.assert_close(fused, plain)


def test_a_convolution_of_another_layout_stays() -> None:
    text = '%a = conv2d(%x, %w, 1, 0, 1, 1, "NHWC")\n %r = bias_add(%a, %b)'
    given = program(text, CONV.replace("[2, 3, 8, 8]", "[2, 8, 8, 3]"))
    assert fuse_dialect(given, device=CPU).functions == given.functions


@pytest.mark.parametrize(
    ("act", "name"),
    [
        ("copy(%c)", "large_linear"),
        ("relu(%c)", "large_linear_relu"),
        ("gelu(%c)", "large_linear_gelu"),
        ('gelu(%c, "tanh")', "large_linear_gelu"),
    ],
)
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_torch_runs_large_linear_layers_on_onednn(
    act: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meta.dialect.torch.onednn.LARGE", 60)
    text = f"%a = dense(%x, %w)\n %c = bias_add(%a, %b)\n %r = {act}"
    found, fused, plain = kernels(program(text, LINEAR), (4, 3), (5, 3), (5,))
    assert found[0] == f"torch.{name}"
    torch.testing.assert_close(fused, plain)


@pytest.mark.parametrize("declines", [True, False])
def test_a_kernel_of_a_larger_level_that_declines_does_not_count(
    acme: Dialect, declines: bool
) -> None:
    @acme.pattern(lambda x, w: op.sigmoid(op.dense(x, w)), plevel=LIBRARY)
    def gate(x, w):
        raise AssertionError

    other = Dialect("other", devices=("cpu",), plevel=LIBRARY + 1)

    @other.op(op.sigmoid)
    def sigmoid(call: Any) -> Any:
        if declines:
            raise Unsupported("too few")
        return OpEnv(torch.sigmoid, allocates=True)

    given = program(CHAIN)
    with meta.dialect.only("torch", "acme", "other"):
        found = fuse_dialect(given, device=CPU)
    remove_dialects(other)
    assert ("gate" in found.functions) == declines
