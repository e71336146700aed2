"""What is done with the matches of a pattern: other code in their place, functions of their own."""

from __future__ import annotations

import pytest

from meta import op
from meta.base.errors import IRError
from meta.ir import Module, first_difference, parse, structural_equal, verify
from meta.passes import dead_code
from meta.passes.pattern import named, partition, pattern, refusals, rewrite
from tests.passes.test_pattern import CASES, LINEAR, REFUSED, linear_relu, main


def becomes(found: Module, expected: str) -> None:
    wanted = main(expected)
    assert structural_equal(found, wanted), f"{first_difference(found, wanted)}\n{found}"
    verify(found)


def test_a_match_becomes_what_the_replacement_computes() -> None:
    found = rewrite(main(LINEAR), linear_relu, lambda x, w, b: op.dense(x, w) * 2.0 + b)
    becomes(
        found,
        """{
          %a: float32[2, 2] = dense(%x, %y)
          %b: float32[2, 2] = multiply(%a, 2.0)
          %c: float32[2, 2] = add(%b, %z)
          return %c
        }""",
    )
    assert found.main.body.result.name == "c"


def test_a_match_becomes_a_captured_value() -> None:
    what = pattern(lambda x: op.negative(op.negative(x)))
    text = """{{
      %a: float32[2, 2] = exp(%x)
      %b: float32[2, 2] = negative(%a)
      %c: float32[2, 2] = negative(%b)
      %d: float32[2, 2] = relu({})
      return %d
    }}"""
    expected = "{ %a: float32[2, 2] = exp(%x) %d: float32[2, 2] = relu(%a) return %d }"
    becomes(rewrite(main(text.format("%c")), what, lambda x: x), expected)


def test_a_result_stays_apart_from_an_argument() -> None:
    what = pattern(lambda x: op.negative(op.negative(x)))
    text = """{
      %b: float32[2, 2] = negative(%x)
      %c: float32[2, 2] = negative(%b)
      return %c
    }"""
    becomes(rewrite(main(text), what, lambda x: x), text)
    becomes(rewrite(main(text), what, lambda x: op.reshape(x, x.shape)), text)


def test_what_is_written_stays_apart() -> None:
    what = pattern(lambda x: op.negative(op.negative(x)))
    text = """{
      %b: float32[2, 2] = negative(%x)
      %c: float32[2, 2] = negative(%b)
      %s: () = sgd(%c, %y, %z, 0.1, 0.9)
      %d: float32[2, 2] = relu(%c)
      return %d
    }"""
    becomes(rewrite(main(text), what, lambda x: x), text)


def test_shared_values_stay_beside_the_replacement() -> None:
    text, _ = REFUSED["used outside"]
    becomes(
        rewrite(main(text), linear_relu, lambda x, w, b: op.dense(x, w), shared=True),
        """{
          %a: float32[2, 2] = matmul(%x, %y)
          %b: float32[2, 2] = add(%a, %z)
          %c: float32[2, 2] = dense(%x, %y)
          %d: float32[2, 2] = exp(%b)
          return (%c, %d)
        }""",
    )


def test_a_captured_inner_value_may_be_used() -> None:
    what = pattern(lambda x: op.relu(named("e", op.exp(x))))
    text = """{
      %a: float32[2, 2] = exp(%x)
      %b: float32[2, 2] = relu(%a)
      return %b
    }"""
    becomes(
        rewrite(main(text), what, lambda e: op.tanh(e)),
        "{ %a: float32[2, 2] = exp(%x) %b: float32[2, 2] = tanh(%a) return %b }",
    )


def test_rewriting_reaches_into_blocks() -> None:
    _, text, _ = CASES["inside of blocks"]
    what = pattern(lambda x: op.relu(op.exp(x)))
    becomes(
        rewrite(main(text), what, lambda x: op.exp(x)),
        """{
          %t: float32[2, 2] = if %p {
            %a: float32[2, 2] = exp(%x)
            yield %a
          } else {
            yield %x
          }
          %f: fn() -> float32[2, 2] = fn() -> float32[2, 2] {
            %c: float32[2, 2] = exp(%x)
            return %c
          }
          return %t
        }""",
    )


def test_another_type_is_an_error() -> None:
    with pytest.raises(IRError, match="another type"):
        rewrite(main(LINEAR), linear_relu, lambda x: op.sum(x))


def test_a_tuple_becomes_a_tuple() -> None:
    what = pattern(lambda x: op.split(x, 2, 1))
    text = """{
      %t: (float32[2, 1], float32[2, 1]) = split(%x, 2, 1)
      %a: float32[2, 1] = %t.0
      return %a
    }"""
    halves = rewrite(
        main(text),
        what,
        lambda x: (
            op.strided_slice(x, (0, 0), (2, 1), (1, 1)),
            op.strided_slice(x, (0, 1), (2, 2), (1, 1)),
        ),
    )
    verify(halves)
    assert [str(b.var.type) for b in halves.main.body.bindings] == [
        "float32[2, 1]", "float32[2, 1]", "(float32[2, 1], float32[2, 1])", "float32[2, 1]",
    ]  # fmt: skip


# partition


def test_equal_matches_share_a_function() -> None:
    text = """{
      %a: float32[2, 2] = matmul(%x, %y)
      %b: float32[2, 2] = add(%a, %z)
      %c: float32[2, 2] = relu(%b)
      %d: float32[2, 2] = matmul(%c, %y)
      %e: float32[2, 2] = add(%d, %z)
      %f: float32[2, 2] = relu(%e)
      %g: float32[2, 2] = matmul(%f, %y)
      %h: float32[2, 2] = add(%g, 1.0)
      %i: float32[2, 2] = relu(%h)
      return %i
    }"""
    found = partition(main(text), linear_relu, "layer", {"fused": "torch"})
    assert list(found.functions) == ["main", "layer", "layer_2"]
    assert [str(b.value) for b in found.main.body.bindings] == [
        "@layer(%x, %y, %z)",
        "@layer(%c, %y, %z)",
        "@layer_2(%f, %y)",
    ]
    assert [p.name for p in found.functions["layer"].params] == ["x", "w", "b"]
    verify(found, typed=False)
    again = partition(found, pattern(lambda x: op.relu(x)), "again", {"fused": "torch"})
    assert structural_equal(again, found)


def test_partitions_do_not_stand_in_the_way_of_others() -> None:
    text = """{
      %a: float32[2, 2] = matmul(%x, %y)
      %b: float32[2, 2] = exp(%x)
      %c: float32[2, 2] = tanh(%b)
      %d: float32[2, 2] = relu(%a)
      %e: float32[2, 2] = add(%d, %c)
      return %e
    }"""
    first = partition(main(text), pattern(lambda x: op.tanh(op.exp(x))), "first")
    what = pattern(lambda x, w: op.relu(op.matmul(x, w)))
    assert refusals(what, first.main)[0].reason.startswith("what the match reads is written")
    second = partition(first, what, "second")
    assert [str(b.value) for b in second.main.body.bindings] == [
        "@first(%x)", "@second(%x, %y)", "add(%d, %c)",
    ]  # fmt: skip


def test_a_function_that_writes_stands_in_the_way() -> None:
    module = parse("""
    func @main(%x: float32[2], %y: float32[2]) -> float32[2] {
      %a: float32[2] = exp(%x)
      %b: float32[2] = @step(%x, %y)
      %c: float32[2] = relu(%a)
      return %c
    }
    func @step(%x: float32[2], %y: float32[2]) -> float32[2] {
      %a: float32[2] = exp(%y)
      %s: () = sgd(%x, %y, %a, 0.1, 0.9)
      return %a
    }""")
    what = pattern(lambda x: op.relu(op.exp(x)))
    assert structural_equal(partition(module, what), module)


def test_constants_become_parameters() -> None:
    text = """{
      %a: float32[2, 2] = matmul(%x, const float32[2, 2] [1.0, 2.0, 3.0, 4.0])
      %b: float32[2, 2] = add(%a, const float32[] 1.0)
      %c: float32[2, 2] = relu(%b)
      return %c
    }"""
    found = partition(main(text), linear_relu)
    assert [str(p.type) for p in found.functions["linear_relu"].params] == [
        "float32[2, 2]", "float32[2, 2]", "float32[]",
    ]  # fmt: skip
    assert len(dead_code(found).main.body.bindings) == 1


def test_partition_reaches_into_blocks() -> None:
    _, text, _ = CASES["inside of blocks"]
    found = partition(main(text), pattern(lambda x: op.relu(op.exp(x))))
    assert str(found).count("@pattern(%x)") == 2
    verify(found)
