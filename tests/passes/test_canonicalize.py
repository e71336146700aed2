"""Every spelling of `canonicalize`, and the merging of equal functions and constants."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.ir import Constant, bindings, first_difference, operands, parse, structural_equal, verify
from meta.passes import canonicalize, dead_code, deduplicate, infer_type
from meta.passes.deduplicate import eliminate_common_subexpressions
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret

PARAMS = "%x: float32[2, 3], %y: float32[2, 3], %s: float32[3], %t: float32[2, 3, 3]"


def program(text: str) -> meta.ir.Module:
    """Return a typed main over `PARAMS` that binds %r by ``text`` and returns it."""
    return infer_type(parse(f"func @main({PARAMS}) {{\n{text}\n return %r\n}}"))


def becomes(before: str, after: str) -> None:
    """Assert how a program is spelled, that this is final, and that it computes the same."""
    given, expected = program(before), program(after)
    found = dead_code(canonicalize(given))
    assert structural_equal(found, expected), f"{first_difference(found, expected)}\n{found}"
    verify(found, typed=True)
    assert structural_equal(canonicalize(found), found)
    torch.manual_seed(0)
    arrays = [meta.array(torch.randn(p.type.static_shape)) for p in given.main.params]
    results = [interpret(module_program(m), *arrays).torch() for m in (given, found)]
    torch.testing.assert_close(*results, equal_nan=True)


C = "const float32[3] [2.0, 2.0, 2.0]"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("add(1.0, %x)", "add(%x, 1.0)"),
        ("hypot(const float32[3] [1.0, 2.0, 3.0], %x)",
         "hypot(%x, const float32[3] [1.0, 2.0, 3.0])"),
        ("less(0.0, %x)", "greater(%x, 0.0)"),
        ("greater_equal(0.0, %x)", "less_equal(%x, 0.0)"),
        ("equal(2, %x)", "equal(%x, 2)"),
        ("subtract(1.0, %x)", "subtract(1.0, %x)"),
        (f"multiply({C}, %x)", "multiply(%x, 2.0)"),
        (f"subtract({C}, %x)", "subtract(2.0, %x)"),
        ("divide(%x, const float32[] 8.0)", "divide(%x, 8.0)"),
        (f"multiply({C}, %s)", "multiply(%s, 2.0)"),
        # The constant makes the result larger.
        ("multiply(const float32[1, 3] [2.0, 2.0, 2.0], %s)",
         "multiply(%s, const float32[1, 3] [2.0, 2.0, 2.0])"),
        ("multiply(%x, const float32[3] [0.0, -0.0, 0.0])",
         "multiply(%x, const float32[3] [0.0, -0.0, 0.0])"),
        ("softmax(%x, 1)", "softmax(%x)"),
        ("softmax(%x, -2)", "softmax(%x, 0)"),
        ("layer_norm(%x, %s, %s, 1)", "layer_norm(%x, %s, %s)"),
        ("concat((%x, %y), -1)", "concat((%x, %y), 1)"),
        ("concat((%x, %y), -2)", "concat((%x, %y))"),
        ("stack((%x, %y), -1)", "stack((%x, %y), 2)"),
        ("cumsum(%x, -1)", "cumsum(%x, 1)"),
        ("sum(%x, -1)", "sum(%x, (1,))"),
        ("sum(%x, (1, 0), 1)", "sum(%x, None, True)"),
        ("sum(%x, (1, 0), (1, 0))", "sum(%x, (1, 0), (1, 0))"),
        ("mean(%t, (-1, 1))", "mean(%t, (1, 2))"),
        ("flip(%x, -1)", "flip(%x, (1,))"),
        ("flip(%x, (1, 0))", "flip(%x)"),
        ("permute_dims(%x, (1, 0))", "permute_dims(%x)"),
        ("permute_dims(%t, (0, -1, 1))", "permute_dims(%t, (0, 2, 1))"),
        ("swapaxes(%t, 0, -1)", "permute_dims(%t)"),
        ("permute_dims_dx(%t, (1, 2, 0))", "permute_dims(%t, (2, 0, 1))"),
        ("reshape(%x, (-1,))", "reshape(%x, (6,))"),
        ("expand_dims(%x, -1)", "reshape(%x, (2, 3, 1))"),
        ("batch_flatten(%t)", "reshape(%t, (2, 9))"),
        ("reshape_like(%x, %y)", "reshape(%x, (2, 3))"),
        ("broadcast_to_like(%s, %x)", "broadcast_to(%s, (2, 3))"),
        ("cast_like(%x, %y)", 'astype(%x, "float32")'),
        ("matmul_nt(%x, %y)", "dense(%x, %y)"),
        ("full((2,), 1.0, \"float32\")", "ones((2,), \"float32\")"),
        ("full((2,), 0)", "zeros((2,), \"int64\")"),
        ("full_like(%x, 0)", "zeros_like(%x)"),
        ("full_like(%x, 1, \"int32\")", "ones_like(%x, \"int32\")"),
        ("full_like(%x, -0.0)", "full_like(%x, -0.0)"),
        ("add(%x, %s)", "bias_add(%x, %s)"),
        ("add(%s, %t)", "bias_add(%t, %s, 2)"),
        ("add(%x, %y)", "add(%x, %y)"),
        ("add(%x, %s, %y, const bool[] True)", "add(%x, %s, %y, const bool[] True)"),
        ('einsum("ik,jk->ij", (%x, %y))', "dense(%x, %y)"),
        ('einsum("ki,kj->ij", (%x, %y))', "matmul_tn(%x, %y)"),
        ('einsum("ki,kj->ji", (%x, %y))', 'einsum("ki,kj->ji", (%x, %y))'),
        ('einsum("bij,bjk->bik", (%t, %t))', "batch_matmul(%t, %t)"),
        ('einsum("bij,bkj->bik", (%t, %t))', "batch_matmul_nt(%t, %t)"),
        ('einsum("bji,bjk->bik", (%t, %t))', "batch_matmul_tn(%t, %t)"),
        ('einsum("bji,bkj->bik", (%t, %t))', "batch_matmul_tt(%t, %t)"),
    ],
)  # fmt: skip
def test_spellings(before: str, after: str) -> None:
    becomes(f"%r = {before}", f"%r = {after}")


def test_the_bias_is_the_vector_and_not_a_view_of_it() -> None:
    becomes("%a = reshape(%s, (3, 1))\n %r = add(%t, %a)", "%r = bias_add(%t, %s)")


def test_one_element_is_no_bias() -> None:
    text = "func @main(%x: float32[2, 1], %b: float32[1]) {\n %r = add(%x, %b)\n return %r\n}"
    given = infer_type(parse(text))
    assert structural_equal(canonicalize(given), given)


@pytest.mark.parametrize(("extent", "name"), [("n", "bias_add"), ("?", "add")])
def test_a_bias_whose_extent_is_that_of_the_data(extent: str, name: str) -> None:
    params = f"%x: float32[2, {extent}], %b: float32[{extent}]"
    given = infer_type(parse(f"func @main({params}) {{\n %r = add(%x, %b)\n return %r\n}}"))
    (binding,) = bindings(canonicalize(given).main)
    assert binding.value.callee.name == name


def test_sums_in_another_order_are_common() -> None:
    found = eliminate_common_subexpressions(
        program("%a = add(%x, %y)\n %b = add(%y, %x)\n %c = subtract(%x, %y)\n"
                " %d = subtract(%y, %x)\n %e = multiply(%a, %b)\n %f = multiply(%c, %d)\n"
                " %r = add(%e, %f)")
    )  # fmt: skip
    names = [b.value.callee.name for b in bindings(found.main)]
    assert names.count("add") == 2
    assert names.count("subtract") == 2


# deduplicate


def test_functions_that_call_equal_functions_are_equal() -> None:
    text = """
    func @main(%x: float32[2]) -> float32[2] {
      %a: float32[2] = @f(%x)
      %b: float32[2] = @g(%a)
      return %b
    }
    func @f(%x: float32[2]) -> float32[2] { %a: float32[2] = @p(%x)\n return %a }
    func @g(%y: float32[2]) -> float32[2] { %a: float32[2] = @q(%y)\n return %a }
    func @p(%x: float32[2]) -> float32[2] { %a: float32[2] = exp(%x)\n return %a }
    func @q(%x: float32[2]) -> float32[2] { %a: float32[2] = exp(%x)\n return %a }
    func @o(%x: float32[2]) -> float32[2] { %a: float32[2] = tanh(%x)\n return %a }
    """
    found = deduplicate(parse(text))
    assert list(found.functions) == ["main", "f", "p", "o"]
    verify(found, typed=True)


def test_functions_that_call_themselves() -> None:
    body = """(%n: int64[]) -> int64[] {{
      %c: bool[] = less(%n, {1})
      %r: int64[] = if %c {{
        yield %n
      }} else {{
        %m: int64[] = subtract(%n, 1)
        %s: int64[] = @{0}(%m)
        yield %s
      }}
      return %r
    }}"""
    text = "func @main(%n: int64[]) -> (int64[], int64[]) {\n %a: int64[] = @f(%n)\n"
    text += " %b: int64[] = @g(%n)\n return (%a, %b)\n}\n"
    for name, limit in (("f", 1), ("g", 1), ("h", 2)):
        text += f"func @{name}" + body.format(name, limit) + "\n"
    found = deduplicate(parse(text))
    assert list(found.functions) == ["main", "f", "h"]
    verify(found, typed=True)


def test_equal_constants_are_one() -> None:
    one, negative = "const float32[2] [1.0, 0.0]", "const float32[2] [1.0, -0.0]"
    found = deduplicate(
        parse(f"""func @main(%x: float32[2]) -> float32[2] {{
          %a: float32[2] = add(%x, {one})
          %b: float32[2] = add(%a, {negative})
          %c: float32[2] = multiply(%b, {one})
          %d: float32[2] = multiply(%c, const float32[1, 2] [1.0, 0.0])
          return %d
        }}""")
    )
    constants = [
        a for b in bindings(found.main) for a in operands(b.value) if isinstance(a, Constant)
    ]
    assert len(constants) == 4
    assert constants[0] is constants[2]
    assert len(set(constants)) == 3
