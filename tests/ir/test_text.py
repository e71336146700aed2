"""Print is parse: to the last bit, and the second print is the first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meta.base.errors import IRError
from meta.base.source import Span
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Function,
    GlobalVar,
    If,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    bindings,
    first_difference,
    parse,
    parse_function,
    parse_type,
    structural_equal,
    structural_hash,
    text,
    verify,
)
from meta.ir.constants import tensor_bytes
from meta.ir.literals import literal_text
from tests.ir.programs import ADD, BARE, CLIP, SUM, literals, modules, types

EXAMPLE = """\
func @main(%x: float32[3, n], %p: bool[]) -> float32[3] attrs(training=True, "odd key"=(1,)) {
  %0: float32[3, n] = test_add(%x, const float32[2] [1.0, 2.5])  # /home/me/lenet.py:12
  %t: (float32[3, n], float32[3, n]) = (%0, %x)  # a model.py:13
  %1: float32[3, n] = %t.1
  %f: fn(float32[3, n]) -> float32[3] = fn(%a: float32[3, n]) -> float32[3] {
    %2: float32[3] = test_sum(%a, axis=(1,))  # /home/me/lenet.py:15
    return %2
  }
  %3: float32[3] = if %p {  # /home/me/lenet.py:16
    %4: float32[3] = %f(%1)
    yield %4
  } else {
    %5: float32[3] = @helper(%1)
    yield %5
  }
  %6 = test_clip(%3, low=-inf, high=%3)
  %7 = test_concat((%3, %6), axis=1)
  %8 = fake.softmax(%7, axis=0)
  %9 = test_bare(test_add, (,), (), "a\\n\\"b\\"")
  return %3
}

func @helper(%x: float32[3, n]) -> float32[3] {
  %0: float32[3] = test_sum(%x)
  return %0
}"""


def test_example_prints_as_it_was_written() -> None:
    module = parse(EXAMPLE)
    verify(module)
    assert text(module) == str(module) == EXAMPLE
    assert [b.span for b in bindings(module.main)][:2] == [
        Span("/home/me/lenet.py", 12),
        Span("a model.py", 13),
    ]


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(modules())
def test_round_trip(module: Module) -> None:
    verify(module)
    printed = text(module)
    again = parse(printed)
    assert first_difference(module, again) is None
    assert structural_equal(module, again)
    assert structural_hash(module) == structural_hash(again)
    assert text(again) == printed
    verify(again)
    for name, function in module.functions.items():
        assert structural_equal(parse_function(text(function)), function)
        spans = [b.span for b in bindings(function)]
        assert spans == [b.span for b in bindings(again.functions[name])]


@given(types)
def test_types_round_trip(type_: Any) -> None:
    assert parse_type(str(type_)) == type_


@given(literals)
def test_literals_round_trip(value: Any) -> None:
    module = Module({"main": Function((), Block((), Tuple(())), None, {"k": value})})
    again = parse(text(module)).main.attrs["k"]
    assert literal_text(again) == literal_text(value)
    assert type(again) is type(value)


@pytest.mark.parametrize(
    ("dtype", "value", "shown"),
    [
        (torch.float16, 0.1, "const float16[] 0.1"),
        (torch.float16, 65504.0, "const float16[] 65500.0"),
        (torch.bfloat16, 1.1, "const bfloat16[] 1.1"),
        (torch.float32, 1e20, "const float32[] 1e+20"),
        (torch.float32, -0.0, "const float32[] -0.0"),
        (torch.float64, 1 / 3, "const float64[] 0.3333333333333333"),
        (torch.float32, math.nan, "const float32[] nan"),
        (torch.float32, -math.inf, "const float32[] -inf"),
        (torch.int64, -(2**63), "const int64[] -9223372036854775808"),
        (torch.uint8, 255, "const uint8[] 255"),
        (torch.bool, True, "const bool[] True"),
    ],
)
def test_small_constants(dtype: torch.dtype, value: float, shown: str) -> None:
    assert text(Constant(torch.tensor(value, dtype=dtype))) == shown


def test_large_constants_are_shared_and_keep_strides_out() -> None:
    data = torch.arange(100, dtype=torch.int32).reshape(10, 10).T
    constant = Constant(data)
    module = Module({"main": Function((), Block((), Tuple((constant, constant))))})
    printed = text(module)
    assert printed.count("@data.0") == 3
    again = parse(printed).main.body.result
    assert isinstance(again, Tuple)
    first, second = again.fields
    assert first is second
    assert isinstance(first, Constant)
    assert torch.equal(first.data, data)


def test_nan_payload_is_kept() -> None:
    odd = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    function = Function((), Block((), Constant(odd)))
    again = parse_function(text(function)).body.result
    assert isinstance(again, Constant)
    assert again.data.view(torch.int32).item() == 0x7FC00001


def test_a_tensor_without_elements_has_no_bytes() -> None:
    # The stride of an empty array of NumPy is 0 in torch, of which no view of bytes is made.
    assert bytes(tensor_bytes(torch.from_numpy(np.zeros(0, np.int64)))) == b""


def test_names_are_made_unique_and_legal() -> None:
    x, y, z = Var("x"), Var("x"), Var("a b/c")
    inner = Function((Var("x"),), Block((), x))
    body = Block((Binding(z, inner), Binding(y, Call(ADD, (x, x)))), y)
    assert text(Function((x,), body)) == (
        "fn(%x) {\n"
        "  %a_b_c = fn(%x_1) {\n"
        "    return %x\n"
        "  }\n"
        "  %x_2 = test_add(%x, %x)\n"
        "  return %x_2\n"
        "}"
    )


def test_defaults_are_left_out_only_if_they_are_exactly_the_same() -> None:
    x = Var("x")
    assert text(Call(SUM, (x, -1, False))) == "test_sum(%x)"
    assert text(Call(SUM, (x, -1.0, 0))) == "test_sum(%x, axis=-1.0, keep=0)"
    assert text(Call(CLIP, (x, 0, x, None))) == "test_clip(%x, low=0, high=%x)"
    assert text(Call(BARE, (x, 0, None))) == "test_bare(%x, 0, None)"


def test_parts_print() -> None:
    x = Var("x", TensorType((2,), "float32"))
    assert str(x) == "%x"
    assert str(Call(ADD, (x, GlobalVar("g")))) == "test_add(%x, @g)"
    assert str(TupleGetItem(x, 1)) == "%x.1"
    assert str(Binding(x, ADD, Span("f.py", 3))) == "%x: float32[2] = test_add  # f.py:3"
    assert str(If(x, Block((), x), Block((), x))) == "if %x {\n  yield %x\n} else {\n  yield %x\n}"
    assert str(Block((), x)) == "{\n  yield %x\n}"
    assert str(ADD) == "test_add"


def test_a_broken_program_prints() -> None:
    x = Var("x")
    nested = Call(ADD, (Call(ADD, (x, object)), If(x, Block((), x), Block((), x))))
    assert text(nested) == "test_add(test_add(%x, y=<<class 'object'>>), <If>)"


@pytest.mark.heavy
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(modules())
def test_round_trip_with_tensors_apart(module: Module) -> None:
    tensors: dict[str, torch.Tensor] = {}
    written = text(module, tensors)
    assert written.count(' tensor "constant.') >= len(tensors)
    again = parse(written, constants=tensors)
    assert first_difference(module, again) is None
    assert text(again) == text(module)
    assert text(again, dict(tensors)) == written


def test_tensors_apart_are_the_given_ones_and_get_free_names() -> None:
    data, other = torch.arange(3.0), Constant(torch.ones(()))
    tensors = {"w": data, "constant.2": torch.zeros(1)}
    module = Module({"main": Function((), Block((), Tuple((Constant(data), other, other))))})
    written = text(module, tensors)
    assert list(tensors) == ["w", "constant.2", "constant.3"]
    found = parse(written, constants=tensors).main.body.result
    assert isinstance(found, Tuple)
    one, two, three = found.fields
    assert isinstance(one, Constant) and one.data is data
    assert isinstance(two, Constant) and two.data is other.data and two is three


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (None, "a tensor that is given with the text"),
        (torch.zeros(3), "'w', a torch.float32[3]"),
        (torch.zeros(2, dtype=torch.int32), "'w', a torch.int32[2]"),
        (torch.zeros(2).cfloat(), "'w', a torch.complex64[2]"),
    ],
)
def test_a_tensor_of_another_type_is_refused(tensor: torch.Tensor | None, message: str) -> None:
    source = 'func @main() { return @data.0 }\ndata @data.0 = float32[2] tensor "w"'
    with pytest.raises(IRError) as caught:
        parse(source, constants={} if tensor is None else {"w": tensor})
    assert message in str(caught.value)


@settings(max_examples=500)
@given(st.data())
def test_a_changed_program_is_read_or_refused(data: st.DataObject) -> None:
    """A program or an IRError, and never anything else; what is read prints."""
    written = text(parse(EXAMPLE), {})
    tensors = {"constant.0": torch.tensor([1.0, 2.5])}
    at = data.draw(st.integers(0, len(written)))
    end = data.draw(st.integers(at, min(len(written), at + 20)))
    start = data.draw(st.integers(0, len(written)))
    moved = written[start : start + data.draw(st.integers(0, 20))]
    noise = data.draw(st.text(alphabet='%@(){}[]=.,:#"\\-> \n0123456789ntfué', max_size=6))
    try:
        module = parse(written[:at] + moved + noise + written[end:], constants=tensors)
        verify(module)
    except IRError:
        return
    assert first_difference(parse(text(module)), module) is None


@given(st.text(alphabet='%@(){}[]=.,:#"\\-> \nifabn01', max_size=40))
def test_any_text_is_read_or_refused(noise: str) -> None:
    for source in (noise, f"func @main(%a) {{\n{noise}\nreturn %a }}"):
        try:
            parse(source)
        except ValueError as error:
            assert type(error).__name__ == "IRError"


def test_the_bytes_of_what_is_compact_by_any_stride() -> None:
    assert bytes(tensor_bytes(torch.tensor(5).expand(0))) == b""
    assert bytes(tensor_bytes(torch.tensor(5).expand(1))) == bytes(tensor_bytes(torch.tensor([5])))
