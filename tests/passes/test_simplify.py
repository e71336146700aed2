"""Every rule of `simplify`: the program before and after, and that both compute the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.dtype import TO_TORCH
from meta.ir import Module, TensorType, Var, first_difference, parse, structural_equal, verify
from meta.passes import dead_code, infer_type, simplify
from meta.passes.rewrite import rewrite
from meta.passes.simplify import Rules
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret

SPECIAL = [0.0, -0.0, 1.0, -2.5, float("inf"), -float("inf"), float("nan"), 1e-40, 3e38, -1.0]
PARAMS = """%x: float32[2, 3], %y: float32[2, 3], %i: int32[2, 3], %u: uint8[2, 3],
    %h: float16[2, 3], %b: bool[2, 3], %s: float32[3], %t: float32[2, 4, 3]"""


def program(text: str) -> Module:
    """Return a main over `PARAMS` that binds %r by ``text`` and returns a copy of it."""
    return infer_type(parse(f"func @main({PARAMS}) {{\n{text}\n %o = copy(%r)\n return %o\n}}"))


def inputs(module: Module) -> list[meta.ndarray]:
    """Return arrays for the parameters, of special values where they are floating point."""
    torch.manual_seed(0)
    made = []
    for param in module.main.params:
        assert isinstance(param.type, TensorType)
        shape, dtype = param.type.static_shape, TO_TORCH[param.type.dtype]
        picks = torch.randint(len(SPECIAL), shape)
        values = torch.tensor(SPECIAL)[picks] if dtype.is_floating_point else picks * 37 - 100
        made.append(meta.array(values.to(dtype)))
    return made


def bits(result: Any) -> list[Any]:
    """Return what distinguishes results: NaNs are alike, zeros have a sign."""
    values = result.torch().double().reshape(-1).tolist()
    return [result.dtype, result.shape, *map(str, values)]


def becomes(before: str, after: str) -> None:
    """Assert what is left of a program, that this is final, and that both results are equal."""
    given = program(before)
    found, expected = dead_code(simplify(given)), dead_code(renamed(program(after)))
    assert structural_equal(found, expected), f"{first_difference(found, expected)}\n{found}"
    verify(found, typed=True)
    assert structural_equal(dead_code(simplify(found)), found)
    arrays = inputs(given)
    assert bits(run(given, arrays)) == bits(run(found, arrays))


def run(module: Module, arrays: list[meta.ndarray]) -> Any:
    """Return what the interpreter returns."""
    return interpret(module_program(module), *arrays)


def renamed(module: Module) -> Module:
    """Return a program without the bindings that only give a variable another name."""
    return rewrite(module, lambda b: b.value if isinstance(b.value, Var) else b)


# An argument that the result is, and what it was.
ATOMS = {
    "x": [
        "subtract(%x, 0)", "subtract(%x, 0.0)", "add(%x, -0.0)", "add(-0.0, %x)",
        "multiply(%x, 1)", "multiply(1.0, %x)", "divide(%x, 1.0)", "pow(%x, 1.0)",
        "maximum(%x, %x)", "minimum(%x, %x)", "copy(%x)",
        "where(%b, %x, %x)", 'astype(%x, "float32")', "cast_like(%x, %y)",
        "reshape_like(%x, %y)", "broadcast_to(%x, (2, 3))", "broadcast_to_like(%x, %y)",
        "collapse_sum_like(%x, %y)", "sum(%x, ())", "max(%x, (), True)", "mean(%x, ())",
        "strided_slice(%x, (0, 0), (2, 3))",
        "strided_slice(%x, (0,), (9,))", "strided_slice(%x, 0, -1, slice_mode=\"size\")",
        "repeat(%x, 1, 0)", "tile(%x, (1, 1))", "pad(%x, 0)", "flip(%x, ())", "roll(%x, 0)",
        "permute_dims(%x, (0, 1))", "permute_dims(%x, (-2, -1))", "permute_dims_dx(%x, (0, 1))",
        "swapaxes(%x, 1, -1)", "concat((%x,), 1)", "reshape(%x, (2, -1))",
        "batch_flatten(%x)",
    ],
    "i": ["add(%i, 0)", "add(0, %i)", "subtract(%i, 0)", "multiply(1, %i)", "bitwise_or(%i, %i)"],
    "b": ["logical_and(%b, %b)", "logical_or(%b, %b)", "bitwise_and(%b, %b)"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "call"), [(n, c) for n, calls in ATOMS.items() for c in calls])
def test_calls_that_are_their_argument(name: str, call: str) -> None:
    becomes(f"%r = {call}", f"%r = %{name}")


# Two calls that are one argument.
PAIRS = [
    ("negative(%x)", "negative(%a)", "%x"),
    ("negative(%u)", "negative(%a)", "%u"),
    ("bitwise_invert(%i)", "bitwise_invert(%a)", "%i"),
    ("logical_not(%b)", "logical_not(%a)", "%b"),
    ("flip(%x, 1)", "flip(%a, 1)", "%x"),
    ("flip(%x)", "flip(%a)", "%x"),
    ("flip(%x, (0, 1))", "flip(%a, (0, 1))", "%x"),
    ("permute_dims(%x)", "permute_dims(%a)", "%x"),
    ("permute_dims(%x)", "swapaxes(%a, 0, 1)", "%x"),
    ("permute_dims(%t, (1, 2, 0))", "permute_dims_dx(%a, (1, 2, 0))", "%t"),
    ("reshape(%x, (6,))", "reshape_like(%a, %y)", "%x"),
    ("expand_dims(%x, 0, 2)", "squeeze(%a)", "%x"),
    ("zeros_like(%x)", "subtract(%x, %a)", "%x"),
    ("ones_like(%s)", "multiply(%a, %x)", "%x"),
    ("ones_like(%y)", "divide(%x, %a)", "%x"),
    ('full((3,), 1.0, "int32")', "multiply(%i, %a)", "%i"),
    ("full_like(%y, 1.0)", "pow(%x, %a)", "%x"),
    ('ones((2, 3), "bool")', "where(%a, %x, %y)", "%x"),
    ('zeros((3,), "float32")', "where(%a, %x, %y)", "%y"),
    ('astype(%h, "float32")', 'astype(%a, "float16")', "%h"),
    ('astype(%u, "float16")', 'astype(%a, "uint8")', "%u"),
    ('astype(%i, "float64")', 'astype(%a, "int32")', "%i"),
    ('astype(%b, "bfloat16")', 'astype(%a, "bool")', "%b"),
]


@pytest.mark.parametrize(("first", "second", "left"), PAIRS)
def test_two_calls_that_are_an_argument(first: str, second: str, left: str) -> None:
    becomes(f"%a = {first}\n %r = {second}", f"%r = {left}")


# Programs whose last call becomes another one.
CALLS = [
    ("%r = pow(%x, 2)", "%r = multiply(%x, %x)"),
    ("%r = pow(%x, 0.0)", "%r = ones_like(%x)"),
    ("%r = multiply(%x, -1.0)", "%r = negative(%x)"),
    ("%r = divide(%x, -1)", "%r = negative(%x)"),
    ("%r = divide(%x, 8)", "%r = multiply(%x, 0.125)"),
    ("%r = divide(%x, -0.5)", "%r = multiply(%x, -2.0)"),
    ("%r = divide(%h, 4)", "%r = multiply(%h, 0.25)"),
    ("%a = negative(%y)\n %r = add(%x, %a)", "%r = subtract(%x, %y)"),
    ("%a = negative(%y)\n %r = add(%a, %x)", "%r = subtract(%x, %y)"),
    ("%a = negative(%y)\n %r = subtract(%x, %a)", "%r = add(%x, %y)"),
    (
        "%a = negative(%x)\n %b_ = negative(%s)\n %r = multiply(%a, %b_)",
        "%r = multiply(%x, %s)",
    ),
    ("%a = negative(%x)\n %c = negative(%y)\n %r = divide(%a, %c)", "%r = divide(%x, %y)"),
    ("%a = negative(%x)\n %r = abs(%a)", "%r = abs(%x)"),
    *(
        (f"%a = {op}(%x)\n %r = {op}(%a)", f"%r = {op}(%x)")
        for op in ("relu", "abs", "floor", "ceil", "round", "trunc", "sign", "triu", "tril")
    ),
    ('%a = astype(%h, "float32")\n %r = astype(%a, "float64")', '%r = astype(%h, "float64")'),
    ('%a = astype(%i, "int64")\n %r = astype(%a, "uint8")', '%r = astype(%i, "uint8")'),
    ('%a = astype(%u, "float32")\n %r = astype(%a, "int16")', '%r = astype(%u, "int16")'),
    ("%a = reshape(%x, (3, 2))\n %r = expand_dims(%a, 1)", "%r = reshape(%x, (3, 1, 2))"),
    (
        "%a = permute_dims(%t, (1, 2, 0))\n %r = permute_dims(%a, (1, 2, 0))",
        "%r = permute_dims(%t, (2, 0, 1))",
    ),
    (
        "%a = reshape(%x, (2, 1, 3))\n %c = permute_dims(%a, (1, 0, 2))\n %r = exp(%c)",
        "%c = reshape(%x, (1, 2, 3))\n %r = exp(%c)",
    ),
    (
        "%a = broadcast_to(%s, (2, 3))\n %r = broadcast_to(%a, (4, 2, 3))",
        "%r = broadcast_to(%s, (4, 2, 3))",
    ),
    ('%c = ones((2, 3), "bool")\n %r = where(%c, %s, %x)', "%r = broadcast_to(%s, (2, 3))"),
    ("%a = permute_dims(%x)\n %r = matmul(%x, %a)", "%r = dense(%x, %x)"),
    ("%a = permute_dims(%x)\n %r = matmul(%a, %x)", "%r = matmul_tn(%x, %x)"),
    ("%a = permute_dims(%x)\n %r = matmul_nt(%a, %a)", "%r = matmul_tn(%x, %x)"),
    ("%a = permute_dims(%x)\n %r = matmul_tt(%a, %x)", "%r = dense(%x, %x)"),
    (
        "%a = permute_dims(%t, (0, 2, 1))\n %r = batch_matmul(%t, %a)",
        "%r = batch_matmul_nt(%t, %t)",
    ),
    ("%a = matmul_nt(%x, %y)\n %r = permute_dims(%a)", "%r = dense(%y, %x)"),
    ("%a = matmul_tn(%x, %y)\n %r = swapaxes(%a, 0, 1)", "%r = matmul_tn(%y, %x)"),
    (
        "%a = batch_matmul_tn(%t, %t)\n %c = exp(%a)\n %d = batch_matmul_nt(%t, %c)\n"
        " %r = permute_dims(%d, (0, 2, 1))",
        "%a = batch_matmul_tn(%t, %t)\n %c = exp(%a)\n %r = batch_matmul_nt(%c, %t)",
    ),
    (
        "%a = reshape(%x, (2, 1, 3))\n %c = reshape(%y, (2, 1, 3))\n %r = concat((%a, %c, %a), 1)",
        "%r = stack((%x, %y, %x), 1)",
    ),
    ("%a = stack((%x,), 0)\n %r = exp(%a)", "%a = reshape(%x, (1, 2, 3))\n %r = exp(%a)"),
]


@pytest.mark.parametrize(("before", "after"), CALLS)
def test_calls_that_become_another(before: str, after: str) -> None:
    becomes(before, after)


# What looks like one of the above and is not.
KEPT = [
    "%r = add(%x, 0.0)",
    "%r = multiply(%x, 0.0)",
    "%r = pow(%x, 0.5)",
    "%r = subtract(%x, %x)",
    "%r = divide(%x, 3.0)",
    "%r = divide(%x, 1e-40)",
    "%r = divide(%h, 32768)",  # 1 / 32768 is not normal in float16
    "%r = divide(%i, 2)",
    "%r = divide(%i, 1)",  # a float
    "%a = zeros_like(%x)\n %r = add(%a, %x)",
    "%a = full_like(%x, 0.5)\n %r = multiply(%a, %x)",
    "%a = negative(%u)\n %r = abs(%a)",
    "%a = negative(%i)\n %c = negative(%i)\n %r = divide(%a, %c)",
    "%a = logical_not(%x)\n %r = logical_not(%a)",
    "%r = logical_and(%x, %x)",
    "%a = flip(%x, 0)\n %r = flip(%a, 1)",
    '%a = astype(%x, "float16")\n %r = astype(%a, "float32")',
    '%a = astype(%i, "float32")\n %r = astype(%a, "int32")',
    '%a = astype(%x, "int32")\n %r = astype(%a, "float32")',
    '%a = astype(%i, "float64")\n %r = astype(%a, "uint8")',
    "%r = where(%b, %x, %y)",
    "%r = strided_slice(%x, (1, 0), (-3, 3), (-1, 1))",
    "%a = permute_dims(%t, (0, 2, 1))\n %c = permute_dims(%t, (1, 0, 2))\n"
    " %r = concat((%c, %c), 0)",
    "%a = dense(%x, %y)\n %c = permute_dims(%a)\n %r = add(%c, %a)",  # is read twice
    "%a = batch_matmul_tn(%t, %t)\n %r = permute_dims(%a, (1, 0, 2))",
    "%a = reshape(%x, (2, 1, 3))\n %c = reshape(%y, (2, 1, 3))\n %r = concat((%a, %c), 0)",
]


@pytest.mark.parametrize("text", KEPT)
def test_what_stays(text: str) -> None:
    given = dead_code(program(text))
    assert structural_equal(simplify(given), given), simplify(given)


# Splits and concatenations.


def test_parts_joined_in_order_are_the_whole() -> None:
    becomes(
        """%p = split(%t, (1, 3), 1)
           %a = %p.0
           %c = %p.1
           %d = %p.2
           %r = concat((%a, %c, %d), -2)""",
        "%r = %t",
    )


def test_parts_of_what_was_joined_are_the_tensors() -> None:
    becomes(
        """%j = concat((%x, %s_, %y), 0)
           %p = split(%j, (2, 3), -2)
           %a = %p.0
           %c = %p.2
           %r = add(%a, %c)""".replace("%s_", "%z").replace(
            "%j =", "%z = reshape(%s, (1, 3))\n %j ="
        ),
        "%r = add(%x, %y)",
    )


@pytest.mark.parametrize(
    "text",
    [
        "%p = split(%x, 3, 1)\n %a = %p.0\n %c = %p.1\n %r = concat((%a, %c), 1)",
        "%p = split(%x, 3, 1)\n %a = %p.0\n %c = %p.1\n %d = %p.2\n %r = concat((%a, %d, %c), 1)",
        "%p = split(%x, 3, 1)\n %a = %p.0\n %c = %p.1\n %d = %p.2\n %r = concat((%a, %c, %d), 0)",
        "%j = concat((%x, %y), 0)\n %p = split(%j, (1,), 0)\n %r = %p.1",
        "%j = concat((%x, %y), 0)\n %p = split(%j, 3, 1)\n %r = %p.1",
    ],
)
def test_other_parts_stay(text: str) -> None:
    given = dead_code(program(text))
    assert structural_equal(simplify(given), given), simplify(given)


# What is written in between.


def test_what_was_written_since_is_not_read_again() -> None:
    kept = main_of(
        """%a: float32[3, 2] = permute_dims(%x)
           %0: () = sgd(%x, %y, %v, 0.1, 0.0)
           %r: float32[2, 2] = matmul(%y, %a)"""
    )
    assert structural_equal(simplify(kept), kept)
    moved = main_of(
        """%a: float32[3, 2] = permute_dims(%x)
           %r: float32[2, 2] = matmul(%y, %a)
           %0: () = sgd(%x, %y, %v, 0.1, 0.0)"""
    )
    assert "dense(%y, %x)" in str(simplify(moved))


def test_a_view_of_an_argument_does_not_leave() -> None:
    kept = parse(
        """func @main(%x: float32[2, 1, 3]) -> float32[1, 2, 3] {
          %r: float32[1, 2, 3] = permute_dims(%x, (1, 0, 2))
          return %r
        }"""
    )
    assert structural_equal(simplify(kept), kept)


def test_a_closure_does_not_read_again_what_may_be_written_before_it_runs() -> None:
    kept = parse(
        """func @main(%x: float32[2, 3], %y: float32[2, 3], %v: float32[2, 3]) -> float32[2, 2] {
          %a: float32[3, 2] = permute_dims(%x)
          %f = fn () -> float32[2, 2] {
            %m: float32[2, 2] = matmul(%y, %a)
            return %m
          }
          %0: () = sgd(%x, %y, %v, 0.1, 0.0)
          %r: float32[2, 2] = %f()
          return %r
        }"""
    )
    assert "matmul(%y, %a)" in str(simplify(kept))


def main_of(text: str) -> Module:
    """Return a main of three matrices that returns %r."""
    params = "%x: float32[2, 3], %y: float32[2, 3], %v: float32[2, 3]"
    return parse(f"func @main({params}) -> float32[2, 2] {{\n{text}\n return %r\n}}")


def test_a_rule_is_for_operators_that_there_are() -> None:
    with pytest.raises(meta.errors.UnknownName, match="did you mean 'multiply'"):
        Rules().rule(meta.op.mutliply)
    with pytest.raises(meta.errors.ArgumentError, match="a rule is for operators"):
        Rules().rule("multiply")  # type: ignore[arg-type]


# Results that are two permutations which cancel each other.
RESULTS = [
    "%m = exp(%x)\n%p = permute_dims(%m)\n%r = permute_dims(%p)\nreturn %r",
    "%m = exp(%x)\n%p = permute_dims(%m)\n%r = permute_dims(%p)\n%q = negative(%m)\n"
    "return (%r, %q)",
    "%a = split(%x, 3, 1)\n%m = %a.1\n%p = permute_dims(%m)\n%r = permute_dims(%p)\nreturn %r",
]


def of_results(text: str) -> Module:
    return infer_type(parse(f"func @main({PARAMS}) {{\n{text}\n}}"))


@pytest.mark.parametrize("text", RESULTS)
def test_a_result_is_what_was_computed(text: str) -> None:
    before = of_results(text)
    after = dead_code(simplify(before))
    assert "permute_dims" not in str(after)
    arrays = inputs(before)
    found, wanted = run(after, arrays), run(before, arrays)
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    assert all(bits(a) == bits(b) for a, b in pairs)


@pytest.mark.parametrize(
    "text",
    [
        "%p = permute_dims(%x)\n%r = permute_dims(%p)\nreturn %r",  # an argument
        "%m = exp(%x)\n%p = permute_dims(%m)\n%r = permute_dims(%p)\nreturn (%r, %m)",
        "%m = exp(%x)\n%r = copy(%m)\nreturn %r",  # asked for
        "%m = exp(%x)\n%p = permute_dims(%m)\n%r = permute_dims(%p)\n"
        "%w = assign(%m, %y)\nreturn %r",
    ],
)
def test_results_that_stay_arrays_of_their_own(text: str) -> None:
    before = of_results(text)
    after = dead_code(simplify(before))
    assert ("permute_dims" in str(after)) or ("copy" in str(after))
    arrays = inputs(before)
    results = run(after, arrays)
    assert not isinstance(results, tuple) or len({r.torch().data_ptr() for r in results}) == 2


def test_two_results_are_two_arrays() -> None:
    text = "%m = exp(%x)\n%p = permute_dims(%m)\n%r = permute_dims(%p)\n%q = permute_dims(%p)"
    after = dead_code(simplify(of_results(f"{text}\nreturn (%r, %q)")))
    r, q = run(after, inputs(after))
    assert r.torch().data_ptr() != q.torch().data_ptr()
    assert bits(r) == bits(q)
