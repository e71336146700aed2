"""The interpreter and the VM give the same, on programs that try the machine's corners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.ir import parse
from meta.model import Model, trace
from meta.testing import check
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret


def f32(*shape: int, seed: int = 0) -> meta.ndarray:
    return meta.array(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


def add_and_view(x: Any) -> Any:
    return op.reshape(op.reshape(x + 1.0, (2, 3)), (6,)) * 2.0


def view_of_argument(x: Any) -> Any:
    y = op.reshape(x, (2, 3))
    return op.exp(y), y


def view_of_result(x: Any) -> Any:
    y = op.exp(x)
    return op.reshape(y, (3, 2)), op.expand_dims(y, 0), y


def many_results(x: Any) -> Any:
    a, b, c = op.split(x, 3, 0)
    return b, op.concat((c, a, b), 0), (a, (b, op.stack((a, b), 1)))


def same_twice(x: Any) -> Any:
    y = op.exp(x)
    return y, y, x, x


def constants(x: Any) -> Any:
    a = op.full((6,), 2.0, "float32")
    return a, op.reshape(a, (2, 3)), x + a, op.arange(0.0, 3.0, 1.0, "int32")


def long_lives(x: Any) -> Any:
    kept = [op.tanh(x * float(i)) for i in range(8)]
    total = kept[0]
    for k in kept[1:]:
        total = total + k
    for k in reversed(kept):
        total = total * k
    return total


def numbers(x: Any) -> Any:
    return 1.0 - x, x / 3, 2.0**x, op.where(op.less(x, 0.5), x, -1.0), op.add(x, True)


def dtypes(x: Any) -> Any:
    half, double = op.astype(x, "float16"), op.astype(x, "float64")
    again = op.astype(half, "float32")
    return half, double * 2, op.argmax(x), op.greater(x, again), op.astype(x, "bool")


def empty(x: Any) -> Any:
    none = x[:0]
    return none, op.exp(none), op.concat((none, x), 0), op.sum(none)


def scalars(x: Any) -> Any:
    s = op.sum(x)
    return s, op.exp(s) * s, op.reshape(s, (1, 1)), op.reshape(s, ()) + x


def through_views_into_kernels(x: Any) -> Any:
    y = op.reshape(op.exp(x), (2, 3))
    return op.matmul(y, op.reshape(op.tanh(x), (3, 2))), op.permute_dims(y)


PROGRAMS = [
    add_and_view, view_of_argument, view_of_result, many_results, same_twice, constants, long_lives,
    numbers, dtypes, empty, scalars, through_views_into_kernels,
]  # fmt: skip


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_eager_interpreter_and_vm_agree(function: Any) -> None:
    x = f32(6)
    expected = function(x)
    traced = trace(function)
    compiled = meta.vm.compile(traced, x)
    for found in (traced(x), compiled(x), compiled(x)):
        check(found, expected, 1e-6, 1e-6)
        assert _dtypes(found) == _dtypes(expected)


def _dtypes(result: Any) -> Any:
    return [a.dtype for a in meta.op.core.tree.flatten(result)[0]]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_results_survive_the_next_call(function: Any) -> None:
    x, y = f32(6), f32(6, seed=1)
    compiled = meta.vm.compile(trace(function), x)
    first = meta.op.core.tree.flatten(compiled(x))[0]
    copies = [a.numpy() for a in first]
    second = meta.op.core.tree.flatten(compiled(y))[0]
    for array, copy in zip(first, copies, strict=True):
        np.testing.assert_array_equal(array.numpy(), copy)
    places = {_place(a) for a in second if a.size} - {_place(x), _place(y)}
    assert not places & {_place(a) for a in first}


def _place(array: meta.ndarray) -> int:
    return array.torch().untyped_storage().data_ptr()


def test_an_identity_is_still_a_new_array() -> None:
    @trace
    def f(x: Any) -> Any:
        return (
            x * 1.0,
            op.astype(x, "float32"),
            op.reshape(op.permute_dims(op.permute_dims(x)), (6,)),
        )

    x = f32(2, 3)
    compiled = meta.vm.compile(f, x)
    for run in (f, compiled):
        results = run(x)
        assert _place(x) not in {_place(r) for r in results}


# In-place operators.


def test_arguments_are_written() -> None:
    @trace
    def f(x: Any, dx: Any, v: Any) -> Any:
        op.sgd(x, dx, v, 0.5, 0.9)
        return x + 0.0

    results = []
    for compiled in (False, True):
        x, dx, v = f32(2, 3), f32(2, 3, seed=1), f32(2, 3, seed=2)
        run = meta.vm.compile(f, x, dx, v) if compiled else f
        results.append([run(x, dx, v), x, v])
    check(results[0], results[1], 0, 0)
    assert not np.array_equal(results[0][1].numpy(), f32(2, 3).numpy())


@pytest.mark.parametrize("compiled", [False, True])
def test_a_strided_argument_is_written(compiled: bool) -> None:
    @trace
    def f(x: Any, dx: Any, v: Any) -> Any:
        op.sgd(x, dx, v, 1.0, 0.0)
        return x

    base = torch.zeros(3, 2)
    x, ones, v = meta.ndarray(base.T), meta.array(np.ones((2, 3), "float32")), f32(2, 3)
    run = meta.vm.compile(f, x, ones, v) if compiled else f
    run(x, ones, v)
    assert (base == -1).all()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_created_array_is_new_at_every_run(compiled: bool) -> None:
    """A constant that is written must not be folded: it would keep what the last run wrote."""

    @trace
    def f(dx: Any) -> Any:
        x, v = op.zeros((2,), "float32"), op.zeros((1, 2), "float32")
        op.sgd(x, dx, op.reshape(v, (2,)), 1.0, 0.5)
        return x, v

    dx = meta.array([1.0, 2.0])
    run = meta.vm.compile(f, dx) if compiled else f
    for _ in range(3):
        x, v = run(dx)
        assert x.numpy().tolist() == [-1.0, -2.0]
        assert v.numpy().tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_snapshot_taken_before_a_write(compiled: bool) -> None:
    @trace
    def f(x: Any, dx: Any) -> Any:
        before = x * 1.0
        op.sgd(x, dx, op.zeros((2,), "float32"), 1.0, 0.0)
        return before + 0.0, op.exp(x)

    x, dx = meta.array([1.0, 2.0]), meta.array([1.0, 2.0])
    run = meta.vm.compile(f, x, dx) if compiled else f
    before, after = run(x, dx)
    assert before.numpy().tolist() == [1.0, 2.0]
    assert after.numpy().tolist() == [1.0, 1.0]


def test_an_intermediate_is_written() -> None:
    @trace
    def f(x: Any, dx: Any) -> Any:
        y = op.exp(x)
        z = op.tanh(x)
        op.sgd(op.reshape(y, (3, 2)), op.reshape(dx, (3, 2)), op.reshape(z, (3, 2)), 0.5, 0.5)
        return y * 1.0, z, op.exp(z)

    x, dx = f32(6), f32(6, seed=1)
    check(meta.vm.compile(f, x, dx)(x, dx), f(x, dx), 1e-6, 1e-6)
    v = 0.5 * x.torch().tanh() + dx.torch()
    check(f(x, dx)[0], x.torch().exp() - 0.5 * v)


def test_parameters_are_those_of_the_model() -> None:
    class Counts(Model):
        def build(self) -> None:
            self.total, self.v = meta.array([0.0]), meta.array([0.0])

        @trace
        def forward(self, x: Any) -> Any:
            op.sgd(self.total, x, self.v, -1.0, 0.0)
            return self.total

    model = Counts()
    x = meta.array([2.0])
    compiled = meta.vm.compile(model, x)
    model(x)
    compiled(x)
    assert compiled(x).item() == model.total.item() == 6.0


# Programs from text.


def run_both(text: str, *args: Any) -> Any:
    module = parse(text)
    found = interpret(module_program(module), *args)
    check(meta.vm.compile(module, *args)(*args), found, 0, 0)
    return found


def test_tuples_that_are_bound() -> None:
    x = f32(2)
    result = run_both(
        """
        func @main(%x: float32[2]) -> ((float32[2], float32[2]), float32[4], float32[2]) {
          %a: float32[2] = exp(%x)
          %t: (float32[2], float32[2]) = (%a, %x)
          %u: ((float32[2], float32[2]), float32[2]) = (%t, %a)
          %v: (float32[2], float32[2]) = %u.0
          %b: float32[2] = %v.1
          %c: float32[4] = concat(%t)
          return (%v, %c, %b)
        }""",
        x,
    )
    check(result[2], x, 0, 0)


def test_a_constant_as_the_result() -> None:
    text = "func @main() -> float32[2] {\n  return const float32[2] [1.0, 2.0]\n}"
    compiled = meta.vm.compile(parse(text))
    for run in (compiled, lambda: interpret(module_program(parse(text)))):
        run().update([0.0, 0.0])
        assert run().numpy().tolist() == [1.0, 2.0]
    compiled().update([0.0, 0.0])
    assert compiled().numpy().tolist() == [1.0, 2.0]


def test_only_side_effects() -> None:
    text = """
    func @main(%x: float32[1], %v: float32[1]) -> () {
      %0: () = sgd(%x, const float32[1] [1.0], %v, 1.0, 0.0)
      return ()
    }"""
    x, v = meta.array([5.0]), meta.array([0.0])
    assert meta.vm.compile(parse(text), x, v)(x, v) == ()
    assert x.item() == 4.0
    assert interpret(module_program(parse(text)), x, v) == ()
    assert x.item() == 3.0


def test_writing_to_a_constant_is_refused() -> None:
    text = """
    func @main(%x: float32[1]) -> () {
      %0: () = sgd(const float32[1] [1.0], %x, %x, 1.0, 0.0)
      return ()
    }"""
    with pytest.raises(meta.errors.IRError, match="writes to a constant"):
        meta.vm.compile(parse(text), f32(1))


def test_a_module_is_no_program() -> None:
    module = parse("func @main(%x: float32[3]) -> float32[3] { return %x }")
    with pytest.raises(meta.errors.ArgumentError, match=r"found:    Module[\s\S]*vm.compile"):
        interpret(module, f32(3))  # type: ignore[arg-type]
