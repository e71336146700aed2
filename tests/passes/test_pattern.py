"""Patterns in operator call syntax: what they match, what is refused and why, what is done then."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

from meta import op
from meta.base.device import CPU
from meta.base.errors import ArgumentError
from meta.ir import Module, parse
from meta.passes import dispatch
from meta.passes.pattern import (
    Pattern,
    constant,
    explain,
    match,
    named,
    operator,
    pattern,
    refusals,
    rewrite,
    wildcard,
)


def main(text: str) -> Module:
    """Return the module of a main with float32[2, 2] parameters %x, %y, %z and a bool %p."""
    params = "%x: float32[2, 2], %y: float32[2, 2], %z: float32[2, 2], %p: bool[]"
    return parse(f"func @main({params}) {text}")


def matched(what: Pattern, text: str, **options: Any) -> list[list[str]]:
    """Return the names of the members of each match in a main."""
    found = match(what, main(text).main, **options)
    return [[m.var.name for m in one.members] for one in found]


def reasons(what: Pattern, text: str) -> list[str]:
    return [r.reason for r in refusals(what, main(text).main)]


LINEAR = """{
  %a: float32[2, 2] = matmul(%x, %y)
  %b: float32[2, 2] = add(%a, %z)
  %c: float32[2, 2] = relu(%b)
  return %c
}"""


@pattern
def linear_relu(x: Any, w: Any, b: Any) -> Any:
    return op.relu(op.matmul(x, w) + b)


def test_captures_have_the_parameters_names() -> None:
    function = main(LINEAR).main
    [found] = match(linear_relu, function)
    assert found.captures == dict(zip("xwb", function.params, strict=False))
    assert found.root.var.name == "c"
    assert found.types["x"].shape == (2, 2)


CASES = {
    "commutative": (
        pattern(lambda x, y: op.matmul(x, y) + x),
        """{
          %a: float32[2, 2] = matmul(%x, %y)
          %b: float32[2, 2] = add(%x, %a)
          return %b
        }""",
        [["a", "b"]],
    ),
    "not commutative": (
        pattern(lambda x, y: op.matmul(x, y) - x),
        """{
          %a: float32[2, 2] = matmul(%x, %y)
          %b: float32[2, 2] = subtract(%x, %a)
          return %b
        }""",
        [],
    ),
    "one value twice": (
        pattern(lambda x: x * op.sigmoid(x)),
        """{
          %a: float32[2, 2] = sigmoid(%x)
          %b: float32[2, 2] = multiply(%a, %x)
          %c: float32[2, 2] = sigmoid(%b)
          %d: float32[2, 2] = multiply(%c, %x)
          return (%b, %d)
        }""",
        [["a", "b"]],
    ),
    "a node used twice": (
        pattern(lambda x: (lambda e: e / (e + 1.0))(op.exp(x))),
        """{
          %a: float32[2, 2] = exp(%x)
          %b: float32[2, 2] = add(1.0, %a)
          %c: float32[2, 2] = divide(%a, %b)
          return %c
        }""",
        [["a", "b", "c"]],
    ),
    "an attribute that is given": (
        pattern(lambda x: op.softmax(x, axis=0)),
        """{
          %a: float32[2, 2] = softmax(%x, axis=0)
          %b: float32[2, 2] = softmax(%x, axis=1)
          return (%a, %b)
        }""",
        [["a"]],
    ),
    "an attribute that is left out has its default": (
        pattern(lambda x: op.softmax(x)),
        """{
          %a: float32[2, 2] = softmax(%x, axis=0)
          %b: float32[2, 2] = softmax(%x)
          return (%a, %b)
        }""",
        [["b"]],
    ),
    "any attribute": (
        pattern(lambda x: op.softmax(x, ...)),
        """{
          %a: float32[2, 2] = softmax(%x, axis=0)
          %b: float32[2, 2] = softmax(%x)
          return (%a, %b)
        }""",
        [["a"], ["b"]],
    ),
    "alternatives, the longer one": (
        pattern(lambda x, y, z: (lambda m: op.relu(m + z) | op.relu(m))(op.matmul(x, y))),
        """{
          %a: float32[2, 2] = matmul(%x, %y)
          %b: float32[2, 2] = add(%a, %z)
          %c: float32[2, 2] = relu(%b)
          %d: float32[2, 2] = matmul(%c, %y)
          %e: float32[2, 2] = relu(%d)
          return %e
        }""",
        [["a", "b", "c"], ["d", "e"]],
    ),
    "the last match is taken": (
        pattern(lambda x: op.relu(op.relu(x))),
        """{
          %a: float32[2, 2] = relu(%x)
          %b: float32[2, 2] = relu(%a)
          %c: float32[2, 2] = relu(%b)
          return %c
        }""",
        [["b", "c"]],
    ),
    "one of several operators": (
        pattern(lambda x: operator(op.relu, op.tanh)(op.exp(x))),
        """{
          %a: float32[2, 2] = exp(%x)
          %b: float32[2, 2] = tanh(%a)
          %c: float32[2, 2] = exp(%b)
          %d: float32[2, 2] = sigmoid(%c)
          return %d
        }""",
        [["a", "b"]],
    ),
    "an operator with a property": (
        pattern(lambda x: operator(where=lambda o: o.name.endswith("max"))(x, ...)),
        """{
          %a: float32[2, 2] = softmax(%x, axis=0)
          %b: float32[2, 2] = log_softmax(%a)
          %c: float32[2, 2] = relu(%b)
          return %c
        }""",
        [["a"], ["b"]],
    ),
    "constants": (
        pattern(lambda x, k=constant(): x * k),
        """{
          %a: float32[2, 2] = multiply(%x, %y)
          %b: float32[2, 2] = multiply(const float32[] 3.0, %a)
          %c: float32[2, 2] = multiply(%b, 3.0)
          return %c
        }""",
        [["b"], ["c"]],
    ),
    "a specific value": (
        pattern(lambda x: x * 2.0),
        """{
          %a: float32[2, 2] = multiply(%x, const float32[2] [2.0, 2.0])
          %b: float32[2, 2] = multiply(const float32[] 3.0, %a)
          %c: float32[2, 2] = multiply(%b, 2)
          %d: float32[2, 2] = multiply(%c, const float32[2] [2.0, 1.0])
          return %d
        }""",
        [["a"], ["c"]],
    ),
    "negative zero": (
        pattern(lambda x: x + constant(-0.0)),
        """{
          %a: float32[2, 2] = add(%x, 0.0)
          %b: float32[2, 2] = add(%a, -0.0)
          return %b
        }""",
        [["b"]],
    ),
    "fields of a tuple": (
        pattern(lambda x: (lambda s: s[0] * op.sigmoid(s[1]))(op.split(x, 2, 1))),
        """{
          %t: (float32[2, 1], float32[2, 1]) = split(%x, 2, 1)
          %a: float32[2, 1] = %t.0
          %b: float32[2, 1] = %t.1
          %c: float32[2, 1] = sigmoid(%b)
          %d: float32[2, 1] = multiply(%a, %c)
          return %d
        }""",
        [["t", "a", "b", "c", "d"]],
    ),
    "a split that others read, too": (
        pattern(lambda x: (lambda s: op.reshape(s[0], ...) * op.sigmoid(s[1]))(op.split(x, 2, 1))),
        """{
          %t: (float32[2, 1], float32[2, 1]) = split(%x, 2, 1)
          %a: float32[2, 1] = %t.0
          %b: float32[2, 1] = %t.1
          %v: float32[2, 1] = reshape(%a, (2, 1))
          %c: float32[2, 1] = sigmoid(%b)
          %d: float32[2, 1] = multiply(%v, %c)
          %e: float32[2, 1] = exp(%v)
          return (%d, %e)
        }""",
        [["t", "a", "b", "v", "c", "d"]],
    ),
    "a tuple as an argument": (
        pattern(lambda x, y: op.concat((op.relu(x), y), 1)),
        """{
          %a: float32[2, 2] = relu(%x)
          %b: float32[2, 4] = concat((%a, %y), axis=1)
          %c: float32[2, 6] = concat((%a, %y, %z), axis=1)
          return %b
        }""",
        [],
    ),
    "a tuple that is bound": (
        pattern(lambda x, y: op.concat((op.relu(x), y), 1)),
        """{
          %a: float32[2, 2] = relu(%x)
          %t: (float32[2, 2], float32[2, 2]) = (%a, %y)
          %b: float32[2, 4] = concat(%t, axis=1)
          return %b
        }""",
        [["a", "t", "b"]],
    ),
    "conditions on types": (
        pattern(lambda x=wildcard(ndim=1, where=lambda t: t.shape[0] > 3): op.relu(x)),
        """{
          %a: float32[2, 2] = relu(%x)
          %b: float32[4] = reshape(%a, (4,))
          %c: float32[4] = relu(%b)
          return %c
        }""",
        [["c"]],
    ),
    "inside of blocks": (
        pattern(lambda x: op.relu(op.exp(x))),
        """{
          %t: float32[2, 2] = if %p {
            %a: float32[2, 2] = exp(%x)
            %b: float32[2, 2] = relu(%a)
            yield %b
          } else {
            yield %x
          }
          %f: fn() -> float32[2, 2] = fn() -> float32[2, 2] {
            %c: float32[2, 2] = exp(%x)
            %d: float32[2, 2] = relu(%c)
            return %d
          }
          return %t
        }""",
        [["a", "b"], ["c", "d"]],
    ),
    "not from block to block": (
        pattern(lambda x: op.relu(op.exp(x))),
        """{
          %a: float32[2, 2] = exp(%x)
          %t: float32[2, 2] = if %p {
            %b: float32[2, 2] = relu(%a)
            yield %b
          } else {
            yield %x
          }
          return %t
        }""",
        [],
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_matches(case: str) -> None:
    what, text, expected = CASES[case]
    assert matched(what, text) == expected


def test_what_an_alternative_leaves_out_is_none() -> None:
    either = pattern(lambda x, y, b: (lambda m: m + b | op.relu(m))(op.matmul(x, y)))
    function = main(
        "{ %a: float32[2, 2] = matmul(%x, %y) %b: float32[2, 2] = relu(%a) return %b }"
    ).main
    [found] = match(either, function)
    assert list(found.captures) == ["x", "y", "b"]
    assert found.captures["b"] is None


REFUSED = {
    "used outside": (
        """{
          %a: float32[2, 2] = matmul(%x, %y)
          %b: float32[2, 2] = add(%a, %z)
          %c: float32[2, 2] = relu(%b)
          %d: float32[2, 2] = exp(%b)
          return (%c, %d)
        }""",
        "%b is also used by %d",
    ),
    "a result": (
        """{
          %a: float32[2, 2] = matmul(%x, %y)
          %b: float32[2, 2] = add(%a, %z)
          %c: float32[2, 2] = relu(%b)
          return (%a, %c)
        }""",
        "%a is also used as a result",
    ),
    "structure": (
        """{
          %a: float32[2, 2] = exp(%y)
          %b: float32[2, 2] = add(%a, %z)
          %c: float32[2, 2] = relu(%b)
          return %c
        }""",
        "%a is the result of exp, not of matmul",
    ),
    "a write in between": (
        """{
          %a: float32[2, 2] = matmul(%x, %y)
          %b: float32[2, 2] = add(%a, %z)
          %s: () = sgd(%x, %y, %z, 0.1, 0.9)
          %c: float32[2, 2] = relu(%b)
          return %c
        }""",
        "what the match reads is written in between, by %s",
    ),
    "a write through a view": (
        """{
          %v: float32[4] = reshape(%x, (4,))
          %a: float32[2, 2] = matmul(%x, %y)
          %b: float32[2, 2] = add(%a, %z)
          %s: () = sgd(%v, %v, %v, 0.1, 0.9)
          %c: float32[2, 2] = relu(%b)
          return %c
        }""",
        "what the match reads is written in between",
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_is_refused(case: str) -> None:
    text, reason = REFUSED[case]
    assert matched(linear_relu, text) == []
    assert [r[: len(reason)] for r in reasons(linear_relu, text)] == [reason]


def test_a_random_call_stays() -> None:
    what = pattern(lambda x: op.relu(op.dropout_train(x, ...)[0]))
    text = """{
      %t = dropout_train(%x, 0.5)
      %a: float32[2, 2] = %t.0
      %b: float32[2, 2] = relu(%a)
      return %b
    }"""
    assert matched(what, text) == []
    assert reasons(what, text) == ["%t is random or writes an argument"]


def test_a_check_refuses_with_a_reason() -> None:
    def small_only(x: Any, match: Any) -> str | None:
        assert match.root.var.name == "c"
        return None if x.size > 100 else f"{x} is too small"

    what = pattern(lambda x, w, b: op.relu(op.matmul(x, w) + b), check=small_only)
    assert matched(what, LINEAR) == []
    assert reasons(what, LINEAR) == ["float32[2, 2] is too small"]
    assert explain(what, main(LINEAR).main) == (
        "pattern: 0 matched, 1 refused\n"
        "  refused  %c: float32[2, 2] = relu(%b)\n"
        "    float32[2, 2] is too small"
    )


def test_a_check_returns_a_reason_or_none() -> None:
    with pytest.raises(ArgumentError, match="returns False"):
        matched(pattern(lambda x: op.relu(x), check=lambda: False), LINEAR)


def test_shared_values_are_matched_where_allowed() -> None:
    text, _ = REFUSED["a result"]
    assert matched(linear_relu, text, shared=True) == [["a", "b", "c"]]


def test_a_base_operator_is_also_its_dialects() -> None:
    module = dispatch(main(LINEAR), device=CPU)
    assert len(match(linear_relu, module.main)) == 1
    assert len(match(pattern(lambda x: op.torch.relu(x)), module.main)) == 1
    assert len(match(pattern(lambda x: op.tvm.relu(x)), module.main)) == 0
    assert len(match(pattern(lambda x: op.torch.relu(x)), main(LINEAR).main)) == 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pattern(lambda x: x), "result of an operator"),
        (lambda: pattern(lambda x, y: op.relu(x)), "'y' is no node"),
        (lambda: pattern(lambda x: op.relu(named("x", op.exp(x)))), "two nodes"),
        (lambda: pattern(lambda match: op.relu(match)), "cannot be named 'match'"),
        (lambda: pattern(lambda x: op.relu(x, x)), "takes 1 arguments"),
        (lambda: pattern(lambda x: op.relu(object())), "cannot stand in a pattern"),
        (lambda: pattern(lambda x: op.softmax(x, axis="last")), "does not fit"),
        (lambda: pattern(lambda x: op.split(x, 2, 1)["a"]), "is field i of a tuple"),
        (lambda: pattern(lambda x: op.add(*op.split(x, 2, 1))), "how many fields"),
        (lambda: pattern(lambda x, y="text": op.add(x, y)), "a str cannot stand"),
        (lambda: rewrite(main(LINEAR), linear_relu, lambda y: y), "captures no 'y'"),
    ],
)
def test_what_is_no_pattern(build: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build()


def test_the_page_about_patterns_is_true() -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "pattern.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
    test = doctest.DocTestParser().get_doctest(code, {}, page.name, str(page), 0)
    assert len(test.examples) > 10
    assert doctest.DocTestRunner().run(test).failed == 0
