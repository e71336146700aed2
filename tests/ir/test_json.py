"""Programs as JSON: read back to the last bit; damaged documents are refused, whatever they say."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meta.base.errors import FormatError, IRError
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Function,
    If,
    Module,
    Op,
    Tuple,
    Var,
    bindings,
    first_difference,
    from_json,
    parse,
    structural_equal,
    text,
    to_json,
    verify,
)
from tests.ir.programs import modules

EXAMPLE = """\
func @main(%x: float32[2, n], %p: bool[]) -> float32[2] attrs(rate=nan, axes=(1, (2.0,))) {
  %0: float32[2, n] = test_add(%x, const float32[2] [1.0, 2.5])  # /home/me/lenet.py:12
  %t = (%0, %x)
  %1 = %t.1
  %f = fn(%a: float32[2, n]) -> float32[2] {
    %2: float32[2] = test_sum(%a, axis=(1,))
    return %2
  }
  %3 = if %p {
    %4 = %f(%1)
    yield %4
  } else {
    %5 = @helper(%1)
    yield %5
  }
  return %3
}

func @helper(%x: float32[2, n]) -> float32[2] {
  %0: float32[2] = test_sum(%x)
  return %0
}"""


def same(a: Module, b: Module) -> None:
    """Assert that two modules are the same, names and spans included."""
    assert first_difference(a, b) is None
    assert structural_equal(a, b)
    assert text(a) == text(b)
    for name, function in a.functions.items():
        spans = [b.span for b in bindings(function)]
        assert spans == [b.span for b in bindings(b.functions[name])]


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(modules())
def test_round_trip(module: Module) -> None:
    """1,000 programs with every node kind, as JSON and as text."""
    printed = text(module)
    from_text = parse(printed)
    assert structural_equal(from_text, module)
    written = to_json(module)
    again = from_json(written)
    assert structural_equal(again, module)
    assert text(again) == printed
    assert to_json(again) == written


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(modules())
def test_round_trip_with_tensors_apart(module: Module) -> None:
    tensors: dict[str, torch.Tensor] = {}
    written = to_json(module, constants=tensors)
    assert "base64" not in written
    same(from_json(written, tensors), module)
    verify(from_json(written, tensors))


def test_what_it_looks_like() -> None:
    document = json.loads(to_json(parse(EXAMPLE)))
    assert document["functions"]["main"]["body"]["bindings"][0] == {
        "var": 2,
        "name": "0",
        "type": "float32[2, n]",
        "value": {"call": {"op": "test_add"}, "args": [{"var": 0}, {"constant": 0}]},
        "span": ["/home/me/lenet.py", 12],
    }
    assert document["functions"]["main"]["attrs"] == {
        "rate": {"float": "nan"},
        "axes": [1, [2.0]],
    }
    assert document["constants"] == [{"type": "float32[2]", "base64": "AACAPwAAIEA="}]


def test_one_constant_stays_one() -> None:
    constant = Constant(torch.arange(3.0))
    module = Module({"main": Function((), Block((), Tuple((constant, constant))))})
    found = from_json(to_json(module)).main.body.result
    assert isinstance(found, Tuple)
    assert found.fields[0] is found.fields[1]


def test_tensors_apart_are_the_given_ones_and_get_free_names() -> None:
    data = torch.arange(3.0)
    tensors = {"w": data, "constant.2": torch.zeros(1)}
    other = Constant(torch.ones(2))
    module = Module({"main": Function((), Block((), Tuple((Constant(data), other))))})
    written = to_json(module, constants=tensors)
    assert list(tensors) == ["w", "constant.2", "constant.3"]
    found = from_json(written, tensors).main.body.result
    assert isinstance(found, Tuple)
    assert next(f.data for f in found.fields if isinstance(f, Constant)) is data


def x_program(value: Any) -> Module:
    x = Var("x")
    return Module({"main": Function((x,), Block((Binding(Var(""), value),), x))})


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (x_program(Call(Op("o"), (object(),))), "an argument is a object"),
        (x_program(Call(Op("o"), (Call(Op("o"), ()),))), "a Call stands where an atom"),
        (x_program(Var("free")), "'free' is not bound"),
        (x_program(Constant(torch.zeros(1, dtype=torch.complex64))), "complex64"),
        (Module({"main": Function((), Block((), Tuple(())), None, {"a": []})}), "not a literal"),
    ],
)
def test_what_cannot_be_written(module: Module, message: str) -> None:
    with pytest.raises(IRError, match=message):
        to_json(module)


def test_nesting_is_limited() -> None:
    deep: Any = Tuple(())
    for _ in range(100):
        deep = Tuple((deep,))
    with pytest.raises(IRError, match="nested"):
        to_json(Module({"main": Function((), Block((), deep))}))
    p = Var("p")
    block = Block((), p)
    for _ in range(100):
        var = Var("")
        block = Block((Binding(var, If(p, block, block)),), var)
    with pytest.raises(IRError, match="nested"):
        to_json(Module({"main": Function((p,), block)}))


# The path of what is changed, its new value, and the beginning of the message; M and main. are
# functions["main"].
DAMAGED: list[tuple[tuple[Any, ...], Any, str]] = [
    (("schema",), "other", "the document: this is no program"),
    (("version",), 1, "version: version 1 is not known"),
    (("version",), True, "version: a bool is found"),
    (("extra",), 1, "the document: unknown key 'extra'"),
    (("functions",), [], "functions: a list is found"),
    (("constants", 0, "type"), "float32[n]", "constants[0].type: float32[n] is not"),
    (("constants", 0, "type"), "float32[3]", "constants[0].base64: 12 bytes are needed, 9"),
    (("constants", 0, "type"), "float32[9999999999999]", "constants[0].base64: 3999"),
    (("constants", 0, "base64"), "????????????", "constants[0].base64: not base64"),
    (("constants", 0, "type"), "float33[2]", "constants[0].type: 'float33[2]' is no type"),
    (("constants", 0), {"type": "float32[2]", "tensor": "w"}, "constants[0].tensor: there is no"),
    (("M", "result_type"), 3, "main.result_type: a int"),
    (("M", "attrs", "axes", 1, 0), {}, 'main.attrs["axes"][1][0]: the'),
    (("M", "params", 0, "var"), -1, "main.params[0].var: -1 is out"),
    (("M", "params", 1, "var"), 0, "main.params[1].var: the variable 0"),
    (
        ("M", "body", "bindings", 0, "value", "args", 0, "var"),
        2,
        "main.body.bindings[0].value.args[0].var: the variable 2",
    ),
    (
        ("M", "body", "bindings", 0, "value", "args", 1, "constant"),
        1,
        "main.body.bindings[0].value.args[1].constant: 1 is",
    ),
    (
        ("M", "body", "bindings", 0, "value", "args"),
        None,
        "main.body.bindings[0].value.args: a NoneType",
    ),
    (
        ("M", "body", "bindings", 0, "value", "call", "op"),
        "test_ad",
        "main.body.bindings[0].value.call.op: there is no",
    ),
    (
        ("M", "body", "bindings", 0, "value", "call"),
        {},
        "main.body.bindings[0].value.call: a dict is found",
    ),
    (
        ("M", "body", "bindings", 0, "span", 1),
        10**9,
        "main.body.bindings[0].span: 1000000000 is out of range",
    ),
    (("M", "body", "bindings", 0, "span"), ["a"], "main.body.bindings[0].span: 1 items"),
    (
        ("M", "body", "bindings", 2, "value", "field"),
        -1,
        "main.body.bindings[2].value.field: -1 is out of range",
    ),
    (
        ("M", "body", "bindings", 4, "value", "else", "result", "var"),
        6,
        "main.body.bindings[4].value.else.result.var: the",
    ),
    (("M", "body", "result"), {"global": "g"}, "main.body.result.global: there is no"),
    (("M", "body", "result"), {"name": 1}, "main.body.result.name: this is no kind"),
]


@pytest.mark.parametrize(("path", "value", "message"), DAMAGED, ids=str)
def test_what_is_refused(path: tuple[Any, ...], value: Any, message: str) -> None:
    document = json.loads(to_json(parse(EXAMPLE)))
    place = document
    if path[0] == "M":
        path = ("functions", "main", *path[1:])
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(FormatError) as caught:
        from_json(json.dumps(document))
    assert caught.value.what.replace('functions["main"].', "main.").startswith(message)


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"a": NaN}', "NaN is no JSON"),
        ('{"a": 1, "a": 2}', "key 'a' twice"),
        (f'{{"a": {"1" * 5000}}}', "more than 100 digits"),
        ("null", "no program"),
    ],
)
def test_what_is_no_document(damaged: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        from_json(damaged)


def test_a_tensor_of_another_type_is_refused() -> None:
    tensors: dict[str, torch.Tensor] = {}
    written = to_json(parse(EXAMPLE), tensors)
    for wrong in (torch.zeros(3), torch.zeros(2, dtype=torch.int32), torch.zeros(2).cfloat()):
        with pytest.raises(FormatError, match=r"the tensor 'constant\.0' is"):
            from_json(written, dict.fromkeys(tensors, wrong))


def test_deep_documents_are_refused() -> None:
    document = json.loads(to_json(parse(EXAMPLE)))
    body = document["functions"]["main"]["body"]
    deep: Any = {"tuple": []}
    for _ in range(100):
        deep = {"tuple": [deep]}
    with pytest.raises(FormatError, match="tuples are nested"):
        body["result"] = deep
        from_json(json.dumps(document))
    nested = {"bindings": [], "result": {"tuple": []}}
    for _ in range(100):
        other = {"bindings": [], "result": {"tuple": []}}
        value = {"if": {"tuple": []}, "then": nested, "else": other}
        binding = {"var": 0, "name": "", "type": None, "value": value}
        nested = {"bindings": [binding], "result": {"tuple": []}}
    with pytest.raises(FormatError, match="blocks are nested"):
        document["functions"]["main"]["body"] = nested
        from_json(json.dumps(document))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a JSON value."""
    found, stack = [], [value]
    while stack:
        container = stack.pop()
        for key in list(container) if isinstance(container, dict) else range(len(container)):
            found.append((container, key))
            if isinstance(container[key], dict | list):
                stack.append(container[key])
    return found


DOCUMENT: dict[str, Any] = {}
scalars = st.none() | st.booleans() | st.integers(-3, 12) | st.floats(allow_nan=False) | st.text()
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["var", "constant", "global", "op", "tuple", "float", "call", "args"])
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_document_is_read_or_refused(data: st.DataObject) -> None:
    """Changed, moved and removed pieces give a module or a FormatError, and never anything else."""
    if not DOCUMENT:
        DOCUMENT.update(json.loads(to_json(parse(EXAMPLE))))
    document = copy.deepcopy(DOCUMENT)
    for _ in range(data.draw(st.integers(1, 3))):
        all_places = places(document)
        container, key = data.draw(st.sampled_from(all_places))
        match data.draw(st.sampled_from(["replace", "move", "remove"])):
            case "replace":
                container[key] = data.draw(anything)
            case "move":
                other, other_key = data.draw(st.sampled_from(all_places))
                container[key] = copy.deepcopy(other[other_key])
            case "remove":
                del container[key]
        if not document:
            break
    try:
        module = from_json(json.dumps(document))
        verify(module)
    except (FormatError, IRError):
        return
    same(from_json(to_json(module)), module)


@given(st.data())
def test_any_text_is_read_or_refused(data: st.DataObject) -> None:
    written = to_json(parse(EXAMPLE))
    at = data.draw(st.integers(0, len(written)))
    end = data.draw(st.integers(at, min(len(written), at + 20)))
    noise = data.draw(st.text(alphabet='{}[]",:0123456789ntfe.-\\ué', max_size=6))
    try:
        verify(from_json(written[:at] + noise + written[end:]))
    except (FormatError, IRError):
        return
