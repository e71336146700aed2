"""Data types and references in the IR: text, equality, and what the verifier refuses."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import meta
from meta.base.errors import IRError, TraceError, TypeInferError
from meta.ir import (
    ConstructorDefinition,
    DataType,
    Function,
    Module,
    Primitive,
    RefType,
    TensorType,
    TupleType,
    TypeDefinition,
    first_difference,
    parse,
    parse_type,
    structural_equal,
    structural_hash,
    text,
    to_dot,
    verify,
)
from meta.op.core.tracing import BlockTrace, FunctionTrace, Symbol, Trace, Value

PROGRAM = """type List {
  Nil()
  Cons(float32[], type List)
}

type "a b" {
  "odd\\n"(ref(type List), fn(float32[]) -> (int64[],))
}

func @main(%x: float32[], %l: type List, %o: type "a b") -> float32[] {
  %0: type List = construct Nil() -> type List
  %1: type List = construct Cons(%x, %0) -> type List
  %2: bool[] = is_variant Cons(%l)  # model.py:3
  %3: float32[] = if %2 {
    %4: float32[] = get_field Cons.0(%l) -> float32[]
    %r: ref(float32[]) = make_ref(%4)
    %5: () = write_ref(%r, %x)
    %6: float32[] = read_ref(%r)
    yield %6
  } else {
    %7: float32[] = fail "no case \\"fits\\""() -> float32[]
    yield %7
  }
  %8: ref(type List) = get_field "odd\\n".0(%o) -> ref(type List)
  return %3
}"""


def test_text_is_read_back() -> None:
    module = parse(PROGRAM)
    verify(module, typed=True)
    assert text(module) == PROGRAM
    assert "get_field Cons.0(_)" in to_dot(module)


@pytest.mark.parametrize(
    "type_", ["type List", 'type "float32[3]"', "ref((float32[n], type A))", "(ref(int64[]),)"]
)
def test_types_are_text(type_: str) -> None:
    assert str(parse_type(type_)) == type_


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Cons.0(%l)", "Cons.0(%1)"),
        ("Cons(%l)", "Nil(%l)"),
        ('"no case', '"No case'),
        ("write_ref(%r, %x)", "write_ref(%r, %4)"),
        ("  Nil()\n", "  Nil()\n  Another()\n"),
    ],
)
def test_equality_sees_every_part(old: str, new: str) -> None:
    one, two = parse(PROGRAM), parse(PROGRAM.replace(old, new))
    assert not structural_equal(one, two) and first_difference(one, two) is not None
    assert structural_hash(one) != structural_hash(two)
    assert structural_equal(one, parse(PROGRAM))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("Cons(%x, %0)", "Cons(%x)", "Cons has 2 fields and is given 1"),
        ("Cons(%x, %0)", "Cons(%x, %x)", "field 1 has type float32[]"),
        ("Cons(%x, %0)", "Cns(%x, %0)", "type List has no constructor Cns"),
        ("Nil() -> type List", "Nil() -> type Lost", "there is no data type Lost"),
        ("Nil() -> type List", "Nil() -> bool[]", "makes a value of type bool[]"),
        ("Nil() -> type List", "Nil()", "construct says its type"),
        ("make_ref(%4)", "make_ref(%4, %4)", "make_ref is given 2 operands"),
        ("get_field Cons.0", "get_field Cons", "the details of get_field"),
        ("is_variant Cons(%l)", "is_variant Cons(%x)", "a constructor is asked of a value of type"),
        ("is_variant Cons(%l)", "is_variant Cs(%l)", "no constructor Cs"),
        ("Cons.0(%l)", "Cons.2(%l)", "there is no field 2 of Cons"),
        ("Cons.0(%l) -> float32[]", "Cons.0(%l) -> int64[]", "is said to have type int64[]"),
        ("write_ref(%r, %x)", "write_ref(%r, %l)", "a value of type type List is written"),
        ("write_ref(%r, %x)", "write_ref(%x, %x)", "a value of type float32[] is no reference"),
        ("= read_ref(%r)", "= read_ref(%l)", "a value of type type List is no reference"),
        ("make_ref(%4)", "make_ref(%l)", "the value has type ref(type List)"),
        ("%5: ()", "%5: (bool[],)", "the value has type ()"),
        ('fits\\""() -> float32[]', 'fits\\""() -> int64[]', "the value has type int64[]"),
        ("Cons(float32[], type List)", "Cons(float32[], type Lost)", "the data type List: there"),
    ],
)
def test_what_the_verifier_refuses(old: str, new: str, what: str) -> None:
    assert PROGRAM.count(old) == 1
    with pytest.raises(IRError) as caught:
        verify(parse(PROGRAM.replace(old, new)))
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("types", "what"),
    [
        ({"A": TypeDefinition("B", ())}, "stored under another name"),
        ({"A": TypeDefinition("A", (ConstructorDefinition("C", ()),) * 2)}, "two constructors"),
    ],
)
def test_definitions_that_are_refused(types: dict[str, TypeDefinition], what: str) -> None:
    with pytest.raises(IRError, match=what):
        verify(Module({}, types))


@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("type A { B() B() }", "constructors with different names"),
        ("type A { }\ntype A { }", "one data type of each name"),
        ("type 3 { }", "a data type's name"),
        ("func @f(%x: type A) { %y = get_field B.-1(%x) -> bool[] return %y }", "0 or more"),
        ("func @f(%x: type A) { %y = construct 3(%x) return %y }", "a name or '('"),
    ],
)
def test_texts_that_are_refused(program: str, what: str) -> None:
    with pytest.raises(IRError) as caught:
        parse(program)
    assert what in str(caught.value)


# Tracing.

SCALAR = TensorType((), "float32")
LIST = TypeDefinition(
    "List",
    (ConstructorDefinition("Nil", ()), ConstructorDefinition("Cons", (SCALAR, DataType("List")))),
)


def test_values_of_a_trace() -> None:
    trace = Trace()
    type_ = trace.define(LIST)
    assert trace.define(LIST) == type_
    _, x = trace.parameter(SCALAR, "x")
    nil = trace.emit(Primitive("construct", (), ("Nil",), type_), type_)
    ref = trace.emit(Primitive("make_ref", (x.atom,)), RefType(SCALAR))
    assert isinstance(nil, Value) and not isinstance(nil, Symbol)
    assert isinstance(trace.emit(Primitive("read_ref", (ref.atom,)), SCALAR), Symbol)
    assert trace.emit(Primitive("write_ref", (ref.atom, x.atom)), TupleType(())) == ()
    var, pair = trace.parameter(TupleType((SCALAR, type_)), "pair")
    assert [p.type for p in pair] == [SCALAR, type_] and var.type == TupleType((SCALAR, type_))
    block, function = BlockTrace(trace), FunctionTrace(trace)
    assert block.types is trace.types and block.lift(nil) is nil
    assert function.lift(nil) is function.lift(nil) and function.lift(nil).type == type_
    assert list(function.captured) == [nil.atom]
    with pytest.raises(TypeInferError, match="no tensor"):
        trace.run(meta.op.relu, nil)
    with pytest.raises(TraceError, match="Python decides"):
        bool(ref)
    with pytest.raises(TraceError, match="two data types"):
        trace.define(TypeDefinition("List", ()))


def test_inlining_brings_the_data_types_along() -> None:
    module = parse("""
    type List { Nil() Cons(float32[], type List) }
    func @main(%x: float32[]) -> float32[] {
      %l: type List = construct Nil() -> type List
      %y: float32[] = @f(%l, %x)
      return %y
    }
    func @f(%l: type List, %x: float32[]) -> float32[] { return %x }""")
    trace = Trace()
    _, x = trace.parameter(SCALAR, "x")
    result = trace.inline(module, [x.atom])
    assert trace.types == module.types and result.type == SCALAR


def test_inlining_renames_data_types_of_one_name() -> None:
    module = parse("""
    type List { Nil() Cons(float32[], type List) }
    func @main(%x: float32[]) -> float32[] {
      %l: type List = construct Nil() -> type List
      %m: (type List, float32[]) = @f(%l, %x)
      %y: float32[] = %m.1
      return %y
    }
    func @f(%l: type List, %x: float32[]) -> (type List, float32[]) {
      %m: type List = construct Cons(%x, %l) -> type List
      %t: type List = get_field Cons.1(%m) -> type List
      return (%t, %x)
    }""")
    trace = Trace()
    var, x = trace.parameter(SCALAR, "x")
    other = TypeDefinition("List", ())
    trace.define(other)
    body = trace.finish(trace.inline(module, [x.atom]))
    (name,) = trace.types.keys() - {"List"}
    assert trace.types["List"] == other
    cons = trace.types[name].constructor("Cons")
    assert cons is not None and cons.fields == (SCALAR, DataType(name))
    main = Function((var,), body, SCALAR)
    whole = Module({"main": main, **trace.functions}, trace.types)
    verify(whole, typed=True)
    assert name in str(whole.functions["f"]) and "type List " not in str(whole.functions["f"])


def test_no_pass_forgets_the_data_types() -> None:
    """A module is made by readers and tracers; whatever changes one says `with_functions`.

    What `vm/run/preparation.py` makes computes one tensor of others; `testing/run.py` wraps a
    function; `model/gradient.py` and `model/custom_rule.py` take along those of the trace that they
    differentiate a part of.
    What `vm/benchmark/` makes is of one kernel, which takes tensors. `passes/distributed/
    tensor_parallel.py` and `passes/batching/` write a program anew, and take its data types along.
    What `passes/autodiff/transposed_rule.py` makes is of one call of an operator.
    """
    makers = {"ir/expr.py", "ir/parser.py", "model/trace.py"}
    makers |= {"vm/run/preparation.py", "testing/run.py", "model/gradient.py"}
    makers |= {"model/custom_rule.py"}
    makers |= {"passes/distributed/tensor_parallel.py", "passes/batching/__init__.py"}
    makers |= {"passes/autodiff/transposed_rule.py"}
    makers |= {f"vm/benchmark/{name}.py" for name in ("gradient", "isolated", "workload")}
    folders = ("ir", "op", "passes", "analysis", "vm", "model", "optim", "amp", "grad", "testing")
    root = Path(meta.__file__).parent
    found = set()
    for file in (f for folder in folders for f in (root / folder).rglob("*.py")):
        calls = (n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call))
        if any(isinstance(c.func, ast.Name) and c.func.id == "Module" for c in calls):
            found.add(file.relative_to(root).as_posix())
    assert found == makers
