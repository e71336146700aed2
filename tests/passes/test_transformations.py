"""Every pass on small programs: what goes in and what comes out, as text."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import partial

import pytest

import meta
from meta.base.device import CPU
from meta.base.errors import GradientError, IRError, TypeInferError
from meta.ir import Module, bindings, first_difference, parse, structural_equal, verify
from meta.passes import (
    autodiff,
    dead_code,
    dispatch,
    eliminate_common_subexpressions,
    fold_constant,
    infer_type,
    simplify,
)

MODULES = [
    importlib.import_module(f"meta.passes.{m.name}")
    for m in pkgutil.iter_modules(importlib.import_module("meta.passes").__path__)
]


def test_every_pass_has_an_example() -> None:
    for module in MODULES:
        name = module.__name__.rpartition(".")[2]
        if name in meta.passes.__all__:  # others are what passes are made of
            assert ">>> " in getattr(module, name).__doc__, name


def main(text: str) -> Module:
    """Return the module of a main with the parameters %x and %y, float32[2, 3]."""
    return parse(f"func @main(%x: float32[2, 3], %y: float32[2, 3]) {text}")


def becomes(step: Callable[[Module], Module], before: str, after: str, typed: bool = True) -> None:
    """Assert that a pass makes one program of the other; then that it finds nothing more to do."""
    found, expected = step(main(before)), main(after)
    assert structural_equal(found, expected), f"{first_difference(found, expected)}\n{found}"
    verify(found, typed=typed)
    again = step(found)
    assert structural_equal(again, found), f"a second run changes it to\n{again}"


# infer_type


def test_types_are_filled_in() -> None:
    becomes(
        infer_type,
        """{
          %a = matmul_nt(%x, %y)
          %t = split(%x, 3, 1)
          %b = %t.0
          %u = (%a, %b)
          return (%u, %a)
        }""",
        """-> ((float32[2, 2], float32[2, 1]), float32[2, 2]) {
          %a: float32[2, 2] = matmul_nt(%x, %y)
          %t: (float32[2, 1], float32[2, 1], float32[2, 1]) = split(%x, 3, 1)
          %b: float32[2, 1] = %t.0
          %u: (float32[2, 2], float32[2, 1]) = (%a, %b)
          return (%u, %a)
        }""",
    )


def test_wrong_types_are_corrected() -> None:
    becomes(
        infer_type,
        """-> float64[7] {
          %a: float64[7] = relu(%x)
          return %a
        }""",
        """-> float32[2, 3] {
          %a: float32[2, 3] = relu(%x)
          return %a
        }""",
    )


def test_types_in_branches_and_closures() -> None:
    before = """{
      %s = sum(%x)
      %c = less(%s, 0.0)
      %a = if %c {
        %b = exp(%x)
        yield %b
      } else {
        yield %y
      }
      return %a
    }"""
    found = infer_type(main(before))
    verify(found, typed=True)
    types = {b.var.name: str(b.var.type) for b in bindings(found.main)}
    assert types == {
        "s": "float32[]", "c": "bool[]", "a": "float32[2, 3]", "b": "float32[2, 3]",
    }  # fmt: skip


def test_types_that_do_not_fit_are_errors_of_the_line() -> None:
    with pytest.raises(TypeInferError) as caught:
        infer_type(main("{\n  %a = matmul(%x, %y)  # model.py:7\n  return %a\n}"))
    assert str(caught.value.span) == "model.py:7"
    assert "matmul: the inner extents 3 and 2 differ" in str(caught.value)
    with pytest.raises(IRError, match="parameter 'x' of @main has no type"):
        infer_type(parse("func @main(%x) {\n  return %x\n}"))
    with pytest.raises(IRError, match="known"):
        infer_type(main("{\n  %a = shape(%x)\n  return %a\n}"))


# dead_code


def test_unused_bindings_go() -> None:
    becomes(
        dead_code,
        """-> float32[2, 3] {
          %a: float32[2, 3] = exp(%x)
          %b: float32[2, 3] = exp(%a)
          %t: (float32[2, 3], float32[2, 3]) = (%a, %b)
          %c: float32[2, 3] = relu(%a)
          %d: (float32[2, 3], bool[2, 3], uint8[0]) = dropout_train(%x, 0.5)
          return %c
        }""",
        """-> float32[2, 3] {
          %a: float32[2, 3] = exp(%x)
          %c: float32[2, 3] = relu(%a)
          return %c
        }""",
    )


def test_writes_stay_and_so_does_what_they_use() -> None:
    text = """-> float32[2, 3] {
      %d: float32[2, 3] = exp(%x)
      %0: () = sgd(%x, %d, %y, 0.1, 0.0)
      return %x
    }"""
    becomes(dead_code, text, text)


def test_branches_with_a_write_inside_stay() -> None:
    text = """-> float32[2, 3] {
      %s: float32[] = sum(%x)
      %c: bool[] = less(%s, 0.0)
      %a: float32[] = if %c {
        %b: float32[] = if %c {
          %0: () = sgd(%x, %x, %y, 0.1, 0.0)
          yield %s
        } else {
          yield %s
        }
        yield %s
      } else {
        yield %s
      }
      return %x
    }"""
    kept = dead_code(main(text))
    assert "sgd" in str(kept)


def test_branches_are_cleaned_inside_and_dropped_if_unused() -> None:
    becomes(
        dead_code,
        """-> float32[2, 3] {
          %s: float32[] = sum(%x)
          %c: bool[] = less(%s, 0.0)
          %a: float32[2, 3] = if %c {
            %b: float32[2, 3] = exp(%x)
            %d: float32[2, 3] = relu(%x)
            yield %b
          } else {
            yield %y
          }
          %unused: float32[2, 3] = if %c {
            yield %x
          } else {
            yield %y
          }
          return %a
        }""",
        """-> float32[2, 3] {
          %s: float32[] = sum(%x)
          %c: bool[] = less(%s, 0.0)
          %a: float32[2, 3] = if %c {
            %b: float32[2, 3] = exp(%x)
            yield %b
          } else {
            yield %y
          }
          return %a
        }""",
    )


# simplify. The results go through another operator: what leaves a program is never aliased.


@pytest.mark.parametrize(
    "call",
    [
        "subtract(%x, 0)",
        "subtract(%x, 0.0)",
        "multiply(%x, 1)",
        "multiply(1.0, %x)",
        "divide(%x, 1.0)",
        'astype(%x, "float32")',
        "broadcast_to(%x, (2, 3))",
        "reshape(%x, (2, 3))",
        "reshape(%x, (2, -1))",
        "batch_flatten(%x)",
        "permute_dims(%x, (0, 1))",
        "permute_dims(%x, (-2, -1))",
    ],
)
def test_identities(call: str) -> None:
    becomes(
        simplify,
        f"-> float32[2, 3] {{\n %a: float32[2, 3] = {call}\n %b: float32[2, 3] = exp(%a)\n"
        " return %b\n}",
        "-> float32[2, 3] {\n %b: float32[2, 3] = exp(%x)\n return %b\n}",
    )


@pytest.mark.parametrize(
    "call",
    [
        "add(%x, 0.0)",
        "add(%x, 0)",
        "subtract(%x, -0.0)",
        "subtract(0.0, %x)",
        "multiply(%x, 0.0)",
        "multiply(%x, True)",
        "divide(1.0, %x)",
        "relu(%x)",
        "subtract(%x, 0.0, otherwise=%y, where=%y)",
    ],
)
def test_no_identities(call: str) -> None:
    text = (
        f"-> float32[2, 3] {{\n %a: float32[2, 3] = {call}\n %b: float32[2, 3] = exp(%a)\n"
        " return %b\n}"
    )
    becomes(simplify, text, text, typed="out" not in call)


def test_what_changes_dtype_or_shape_is_no_identity() -> None:
    text = """-> (float64[2, 3], float32[1, 2, 3], float32[]) {
      %a: float64[2, 3] = astype(%x, "float64")
      %b: float32[1, 2, 3] = broadcast_to(%x, (1, 2, 3))
      %c: float32[3, 2] = permute_dims(%x)
      %d: float32[] = sum(%c)
      return (%a, %b, %d)
    }"""
    becomes(simplify, text, text)


def test_chains_of_views_and_transpositions() -> None:
    becomes(
        lambda m: dead_code(simplify(m)),
        """-> (float32[6, 1], float32[2, 3]) {
          %a: float32[3, 2] = reshape(%x, (3, 2))
          %b: float32[1, 3, 2] = expand_dims(%a, 0)
          %c: float32[6, 1] = reshape(%b, (-1, 1))
          %d: float32[3, 2] = permute_dims(%y)
          %e: float32[2, 3] = permute_dims(%d, (1, 0))
          %f: float32[2, 3] = exp(%e)
          return (%c, %f)
        }""",
        """-> (float32[6, 1], float32[2, 3]) {
          %c: float32[6, 1] = reshape(%x, (6, 1))
          %f: float32[2, 3] = exp(%y)
          return (%c, %f)
        }""",
    )


def test_fields_of_known_tuples_and_renamings() -> None:
    becomes(
        lambda m: dead_code(simplify(m)),
        """-> float32[2, 3] {
          %t: (float32[2, 3], float32[2, 3]) = (%x, %y)
          %a: float32[2, 3] = %t.1
          %b: float32[2, 3] = %a
          %c: float32[2, 3] = add(%a, %b)
          return %c
        }""",
        """-> float32[2, 3] {
          %c: float32[2, 3] = add(%y, %y)
          return %c
        }""",
    )


@pytest.mark.parametrize(
    "text",
    [
        # a result must be a new array
        "%a: float32[2, 3] = multiply(%x, 1.0)\n return %a",
        "%a: float32[2, 3] = multiply(%x, 1.0)\n %b: float32[2, 3] = reshape(%a, (2, 3))\n"
        " return %a",
        # what is written must not be something else
        "%a: float32[2, 3] = multiply(%x, 1.0)\n %0: () = sgd(%a, %x, %y, 0.1, 0.0)\n"
        " %b: float32[2, 3] = exp(%a)\n return %b",
        "%a: float32[2, 3] = multiply(%x, 1.0)\n %0: () = sgd(%x, %y, %y, 0.1, 0.0)\n"
        " %b: float32[2, 3] = exp(%a)\n return %b",
    ],
)
def test_buffers_are_not_merged(text: str) -> None:
    found = simplify(main(f"-> float32[2, 3] {{\n {text}\n}}"))
    assert "multiply" in str(found)


# fold_constant

C = "const float32[2, 3] [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]"


def test_constants_are_folded() -> None:
    becomes(
        lambda m: dead_code(fold_constant(m)),
        f"""-> float32[2, 3] {{
          %a: float32[2, 3] = add({C}, 1.0)
          %b: float32[3] = sum(%a, 0)
          %z: float32[3] = zeros((3,), "float32")
          %c: float32[6] = concat((%b, %z))
          %d: float32[2, 3] = reshape(%c, (2, 3))
          %e: float32[2, 3] = add(%x, %d)
          return %e
        }}""",
        """-> float32[2, 3] {
          %e: float32[2, 3] = add(%x, const float32[2, 3] [7.0, 9.0, 11.0, 0.0, 0.0, 0.0])
          return %e
        }""",
    )


def test_what_is_not_folded() -> None:
    x = "float32[2, 3]"
    text = f"""-> ({x}, {x}, float32[100, 1000], {x}, {x}) {{
      %r: (float32[2, 3], bool[2, 3], uint8[0]) = dropout_train({C}, 0.5)
      %a: float32[2, 3] = %r.0
      %s: (float32[1, 3], float32[1, 3]) = split({C}, 2, 0)
      %z: float32[2, 3] = zeros((2, 3), "float32")
      %0: () = sgd(%z, %y, %y, 0.1, 0.0)
      %big: float32[100, 1000] = full((100, 1000), 0.5, "float32")
      %v: float32[6] = zeros((6,), "float32")
      %w: float32[2, 3] = reshape(%v, (2, 3))
      %1: () = sgd(%x, %y, %w, 0.1, 0.0)
      return (%a, %z, %big, %x, %w)
    }}"""
    becomes(fold_constant, text, text)


def test_folding_runs_on_torch_whatever_is_preferred() -> None:
    module = main(f"-> float32[2, 3] {{\n %a: float32[2, 3] = exp({C})\n return %a\n}}")
    with meta.dialect.only("tvm"):
        assert not fold_constant(module).main.body.bindings


# dispatch


def test_operators_get_their_dialect() -> None:
    becomes(
        partial(dispatch, device=CPU),
        """-> float32[6] {
          %a: float32[2, 3] = exp(%x)
          %b: float32[6] = reshape(%a, (6,))
          %t: (float32[3], float32[3]) = split(%b, 2, 0)
          %c: float32[3] = %t.0
          %d: float32[6] = concat((%c, %c), 0)
          return %d
        }""",
        """-> float32[6] {
          %a: float32[2, 3] = torch.exp(%x)
          %b: float32[6] = reshape(%a, (6,))
          %t: (float32[3], float32[3]) = torch.split(%b, 2, 0)
          %c: float32[3] = %t.0
          %d: float32[6] = torch.concat((%c, %c), 0)
          return %d
        }""",
    )


def test_nobody_accepts() -> None:
    text = "-> float32[2, 3] {\n %a: float32[2, 3] = exp(%x)  # model.py:3\n return %a\n}"
    with meta.dialect.exclude("torch"), pytest.raises(meta.errors.DispatchError) as caught:
        dispatch(main(text), device=CPU)
    assert str(caught.value.span) == "model.py:3"


# autodiff


def differentiated(before: str, after: str, wrt: list[int], dys: int = 1) -> None:
    """Assert what autodiff makes of a main; the new parameters are called %d0, %d1, ..."""
    found = autodiff(main(before), wrt=wrt)
    verify(found, typed=True)
    added = ", ".join(f"%d{i}: float32[2, 3]" for i in range(dys))
    expected = parse(f"func @main({added}, %x: float32[2, 3], %y: float32[2, 3]) {after}")
    assert structural_equal(found, expected), f"{first_difference(found, expected)}\n{found}"


def test_gradients_add_up() -> None:
    differentiated(
        """-> float32[2, 3] {
          %a: float32[2, 3] = exp(%x)
          %b: float32[2, 3] = multiply(%a, %x)
          return %b
        }""",
        """-> (float32[2, 3], (float32[2, 3], float32[2, 3])) {
          %a: float32[2, 3] = exp(%x)
          %b: float32[2, 3] = multiply(%a, %x)
          %0: float32[2, 3] = multiply(%d0, %x)
          %1: float32[2, 3] = multiply(%d0, %a)
          %2: float32[2, 3] = multiply(%0, %a)
          %3: float32[2, 3] = add(%1, %2)
          %4: float32[2, 3] = zeros_like(%y)
          return (%b, (%3, %4))
        }""",
        wrt=[0, 1],
    )


def test_one_dy_per_floating_point_result() -> None:
    differentiated(
        """-> ((float32[2, 3], int64[]), float32[2, 3], float32[2, 3]) {
          %a: float32[2, 3] = tanh(%x)
          %b: int64[] = argmax(%x)
          return ((%a, %b), %x, %y)
        }""",
        """-> (((float32[2, 3], int64[]), float32[2, 3], float32[2, 3]), (float32[2, 3],)) {
          %a: float32[2, 3] = tanh(%x)
          %b: int64[] = argmax(%x)
          %0: float32[2, 3] = tanh_dx(x=None, y=%a, dy=%d0)
          %1: float32[2, 3] = add(%d1, %0)
          return (((%a, %b), %x, %y), (%1,))
        }""",
        wrt=[0],
        dys=3,
    )


def test_results_that_are_not_used_get_zeros() -> None:
    found = autodiff(
        main("""-> float32[1, 3] {
          %t: (float32[1, 3], float32[1, 3]) = split(%x, 2, 0)
          %a: float32[1, 3] = %t.1
          return %a
        }"""),
        wrt=[0],
    )
    verify(found, typed=True)
    assert "zeros_like" in str(found)


def test_tuples_in_between() -> None:
    found = autodiff(
        main("""-> (float32[2, 3], float32[4, 3]) {
          %t: (float32[2, 3], float32[2, 3]) = (%x, %y)
          %u: ((float32[2, 3], float32[2, 3]), float32[2, 3]) = (%t, %x)
          %v: (float32[2, 3], float32[2, 3]) = %u.0
          %a: float32[2, 3] = %v.1
          %b: float32[4, 3] = concat(%v, 0)
          return (%a, %b)
        }"""),
        wrt=[0, 1],
    )
    verify(found, typed=True)
    ones = [meta.array([[1.0] * 3] * n) for n in (2, 4, 2, 2)]
    _, (dx, dy) = meta.vm.compile(found, *ones)(*ones)
    assert dx.numpy().tolist() == [[1.0] * 3] * 2
    assert dy.numpy().tolist() == [[2.0] * 3] * 2


def test_gradients_do_not_pass_through_integers() -> None:
    found = autodiff(
        main("""-> float32[2, 3] {
          %i: int32[2, 3] = astype(%x, "int32")
          %f: float32[2, 3] = astype(%i, "float32")
          %b: float32[2, 3] = add(%f, %y)
          return %b
        }"""),
        wrt=[0, 1],
    )
    (_, (dx, _)) = found.main.body.result.fields[0], found.main.body.result.fields[1].fields
    value = next(b.value for b in bindings(found.main) if b.var is dx)
    assert value.callee.name == "zeros_like"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("-> float32[2, 3] {\n return %y\n}", "does not depend"),
        ("-> int64[] {\n %a: int64[] = argmax(%x)\n return %a\n}", "does not depend"),
    ],
)
def test_what_has_no_gradient(text: str, says: str) -> None:
    with pytest.raises(GradientError, match=says):
        autodiff(main(text), wrt=[0])


def test_new_bindings_have_the_line_of_the_forward_code() -> None:
    text = "-> float32[2, 3] {\n %a: float32[2, 3] = tanh(%x)  # model.py:3\n return %a\n}"
    found = autodiff(main(text), wrt=[0])
    assert [str(b.span) for b in bindings(found.main)] == ["model.py:3"] * 2


# eliminate_common_subexpressions


def test_the_second_of_two_equal_calls_goes() -> None:
    becomes(
        eliminate_common_subexpressions,
        """{
          %a: float32[2, 3] = exp(%x)
          %b: float32[2, 3] = exp(%x)
          %c: float32[2, 3] = add(%a, %b)
          %d: float32[2, 3] = add(%b, %a)
          %e: float32[2, 3] = multiply(%c, %d)
          return %e
        }""",
        """{
          %a: float32[2, 3] = exp(%x)
          %c: float32[2, 3] = add(%a, %a)
          %e: float32[2, 3] = multiply(%c, %c)
          return %e
        }""",
        typed=False,
    )


@pytest.mark.parametrize(
    "body",
    [
        # Two results are two arrays.
        """{
          %a: float32[2, 3] = exp(%x)
          %b: float32[2, 3] = exp(%x)
          return (%a, %b)
        }""",
        # 1 and 1.0 are different arguments.
        """{
          %a: float32[2, 3] = multiply(%x, 1)
          %b: float32[2, 3] = multiply(%x, 1.0)
          %c: float32[2, 3] = add(%a, %b)
          return %c
        }""",
        # The argument is written in between.
        """{
          %a: float32[2, 3] = exp(%x)
          %u: () = sgd(%x, %y, %y, 0.1, 0.9)
          %b: float32[2, 3] = exp(%x)
          %c: float32[2, 3] = add(%a, %b)
          return %c
        }""",
        # Each draw is another one.
        """{
          %a: (float32[2, 3], bool[2, 3], uint8[0]) = dropout_train(%x, 0.5, None)
          %b: (float32[2, 3], bool[2, 3], uint8[0]) = dropout_train(%x, 0.5, None)
          %c: float32[2, 3] = %a.0
          %d: float32[2, 3] = %b.0
          %e: float32[2, 3] = add(%c, %d)
          return %e
        }""",
    ],
)
def test_what_is_not_common(body: str) -> None:
    becomes(eliminate_common_subexpressions, body, body, typed=False)


def test_a_branch_sees_what_is_before_it_and_not_its_sibling() -> None:
    becomes(
        eliminate_common_subexpressions,
        """{
          %a: float32[2, 3] = exp(%x)
          %s: float32[] = sum(%a)
          %p: bool[] = greater(%s, 0.0)
          %r: float32[2, 3] = if %p {
            %b: float32[2, 3] = exp(%x)
            %c: float32[2, 3] = tanh(%b)
            %d: float32[2, 3] = relu(%c)
            yield %d
          } else {
            %e: float32[2, 3] = tanh(%a)
            %f: float32[2, 3] = negative(%e)
            yield %f
          }
          return %r
        }""",
        """{
          %a: float32[2, 3] = exp(%x)
          %s: float32[] = sum(%a)
          %p: bool[] = greater(%s, 0.0)
          %r: float32[2, 3] = if %p {
            %c: float32[2, 3] = tanh(%a)
            %d: float32[2, 3] = relu(%c)
            yield %d
          } else {
            %e: float32[2, 3] = tanh(%a)
            %f: float32[2, 3] = negative(%e)
            yield %f
          }
          return %r
        }""",
        typed=False,
    )
