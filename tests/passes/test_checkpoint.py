"""Functions that are called again for their gradients: what `autodiff` makes of them, and that no
pass merges the second computation with the first.
"""

from __future__ import annotations

import pytest

from meta.base.device import CPU
from meta.base.errors import GradientError
from meta.dialect.core.ir_calls import base_op
from meta.ir import bindings, first_difference, parse, structural_equal, verify
from meta.passes import autodiff, dead_code, eliminate_common_subexpressions, inline, simplify
from meta.vm.compiler.pipeline import pipeline

BLOCK = """
func @main(%x: float32[4], %w: float32[4]) -> float32[4] {
  %y: float32[4] = @block(%x, %w)
  %z: float32[4] = @block(%y, %w)
  return %z
}

func @block(%x: float32[4], %w: float32[4]) -> float32[4] attrs(checkpoint="nothing") {
  %a: float32[4] = exp(%x)
  %b: float32[4] = multiply(%a, %w)
  return %b
}
"""


def test_the_function_is_called_again_after_the_gradients() -> None:
    found = dead_code(autodiff(parse(BLOCK), wrt=["x", "w"]))
    expected = parse("""
func @main(%dy: float32[4], %x: float32[4], %w: float32[4])
    -> (float32[4], (float32[4], float32[4])) {
  %y: float32[4] = @block(%x, %w)
  %z: float32[4] = @block(%y, %w)
  %0: (float32[4], float32[4]) = @block_backward(%dy, %y, %w)
  %1: float32[4] = %0.0
  %2: float32[4] = %0.1
  %3: (float32[4], float32[4]) = @block_backward(%1, %x, %w)
  %4: float32[4] = %3.0
  %5: float32[4] = %3.1
  %6: float32[4] = add(%2, %5)
  return (%z, (%4, %6))
}

func @block(%x: float32[4], %w: float32[4]) -> float32[4] attrs(checkpoint="nothing") {
  %a: float32[4] = exp(%x)
  %b: float32[4] = multiply(%a, %w)
  return %b
}

func @block_backward(%dy: float32[4], %x: float32[4], %w: float32[4])
    -> (float32[4], float32[4]) {
  %x_1: float32[4] = optimization_barrier(%x, (%dy,))
  %w_1: float32[4] = optimization_barrier(%w, (%dy,))
  %a: float32[4] = exp(%x_1)
  %0: float32[4] = multiply(%dy, %w_1)
  %1: float32[4] = multiply(%dy, %a)
  %2: float32[4] = multiply(%0, %a)
  return (%2, %1)
}
""")
    verify(found, typed=True)
    assert structural_equal(found, expected), f"{first_difference(found, expected)}\n{found}"


def test_what_the_function_writes_is_copied_before_it_is_called() -> None:
    module = parse("""
func @main(%x: float32[4], %m: float32[4], %v: float32[4]) -> float32[4] {
  %y: float32[4] = @block(%x, %m, %v)
  return %y
}

func @block(%x: float32[4], %m: float32[4], %v: float32[4]) -> float32[4]
attrs(checkpoint="nothing") {
  %0: () = sgd(%m, %x, %v, learning_rate=0.5, mu=0.0)
  %1: float32[4] = multiply(%x, %m)
  return %1
}
""")
    found = autodiff(module, wrt=["x"])
    verify(found, typed=True)
    written = [b for b in bindings(found.main) if base_op(getattr(b.value, "callee", None))]
    copied = [b.value.args[0].name for b in written if b.value.callee.name == "copy"]
    assert copied == ["m", "v"]
    call = found.main.body.bindings[2].value
    assert call.callee.name == "block", "the call itself writes to the arrays"
    again = next(b.value for b in found.main.body.bindings if "backward" in str(b.value.callee))
    assert [a.name for a in again.args[1:]] == ["x", *(b.var.name for b in written[:2])]


def exps(module, name: str = "exp") -> int:  # type: ignore[no-untyped-def]
    """Return how often an operator is called, in fused functions too."""
    every = [b for f in module.functions.values() for b in bindings(f)]
    found = [base_op(getattr(b.value, "callee", None)) for b in every]
    return sum(1 for operator in found if operator is not None and operator.name == name)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_no_pass_merges_the_two(level: int) -> None:
    module = autodiff(parse(BLOCK), wrt=["x", "w"])
    compiled = pipeline(CPU, level)(module)
    assert exps(compiled) == (2 if level < 2 else 4)
    plain = autodiff(parse(BLOCK.replace(' attrs(checkpoint="nothing")', "")), wrt=["x", "w"])
    assert exps(pipeline(CPU, 2)(plain)) == 2


def test_a_checkpointed_function_is_inlined_whatever_its_size() -> None:
    long = "\n".join(f"  %{i}: float32[4] = exp(%{i - 1})" for i in range(1, 40))
    head = 'func @block(%0: float32[4]) -> float32[4] attrs(checkpoint="nothing") {'
    block = f"{head}\n{long}\n  return %39\n}}"
    main = """
func @main(%x: float32[4]) -> float32[4] {
  %y: float32[4] = @block(%x)
  %z: float32[4] = @block(%y)
  return %z
}
"""
    found = dead_code(inline(parse(f"{main}\n{block}")))
    assert list(found.functions) == ["main"] and exps(found) == 78


def test_memory_that_is_given_twice() -> None:
    module = parse("""
func @main(%x: float32[4], %m: float32[4], %v: float32[4]) -> float32[4] {
  %view: float32[2, 2] = reshape(%m, shape=(2, 2))
  %y: float32[4] = @block(%x, %m, %v, %view)
  return %y
}

func @block(%x: float32[4], %m: float32[4], %v: float32[4], %r: float32[2, 2]) -> float32[4]
    attrs(checkpoint="nothing") {
  %0: () = sgd(%m, %x, %v, learning_rate=0.5, mu=0.0)
  %1: float32[4] = reshape(%r, shape=(4,))
  %2: float32[4] = multiply(%x, %1)
  return %2
}
""")
    with pytest.raises(GradientError, match="memory that it is given twice"):
        autodiff(module, wrt=["x"])


def test_products_are_kept() -> None:
    module = parse("""
func @main(%x: float32[4, 4], %w: float32[4, 4]) -> float32[4, 4] {
  %y: float32[4, 4] = @block(%x, %w)
  %z: float32[4, 4] = @block(%y, %w)
  return %z
}

func @block(%x: float32[4, 4], %w: float32[4, 4]) -> float32[4, 4] attrs(checkpoint="products") {
  %a: float32[4, 4] = exp(%x)
  %b: float32[4, 4] = matmul(%a, %w)
  %c: float32[4, 4] = sin(%b)
  %d: float32[4, 4] = matmul(%c, %w)
  %e: float32[4, 4] = cos(%d)
  return %e
}
""")
    found = autodiff(module, wrt=["x", "w"])
    verify(found, typed=True)
    assert str(parse(str(found))) == str(found)
    again = dead_code(found).functions["block_backward"]
    assert [p.name for p in again.params] == ["dy", "b", "d", "x", "w"]
    names = [
        base_op(b.value.callee).name for b in again.body.bindings if hasattr(b.value, "callee")
    ]
    assert "matmul" not in names and names.count("matmul_nt") == 2, "only those of the gradients"
    assert names.count("exp") == 1 and names.count("optimization_barrier") == 4
    flat = dead_code(eliminate_common_subexpressions(simplify(inline(found, max_bindings=99))))
    assert list(flat.functions) == ["main"]
    assert [exps(flat, name) for name in ("matmul", "exp", "sin", "cos")] == [4, 4, 6, 4]
