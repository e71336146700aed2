"""Calling an executable: which arguments it takes, threads, and what it says of itself."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.errors import ArgumentError, DeviceError, TypeInferError
from meta.ir import parse
from meta.model import Linear, Model, Sequential, trace
from meta.testing import check


def compiled(*shape: int) -> Any:
    return meta.vm.compile(trace(lambda x: op.exp(op.tanh(x)) * 2.0), zeros(*shape))


def zeros(*shape: int, dtype: str = "float32") -> meta.ndarray:
    return meta.array(np.zeros(shape), dtype)


@pytest.mark.parametrize(
    ("argument", "found"),
    [(zeros(3), "float32[3]"), (zeros(2, dtype="float64"), "float64[2]"), (zeros(), "float32[]")],
)
def test_an_argument_of_another_type(argument: meta.ndarray, found: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        compiled(2)(argument)
    assert "argument %x is not of the type compiled for" in str(caught.value)
    assert "expected: float32[2]" in str(caught.value)
    assert f"found:    {found}" in str(caught.value)


def test_the_number_of_arguments() -> None:
    run = compiled(2)
    for args in ((), (zeros(2), zeros(2))):
        with pytest.raises(ArgumentError):
            run(*args)
    module = parse("func @main(%x: float32[2]) -> float32[2] {\n  return %x\n}")
    for args in ((), (zeros(2), zeros(2))):
        with pytest.raises(ArgumentError, match="main cannot be called like this"):
            meta.vm.compile(module)(*args)
    with pytest.raises(ArgumentError, match="main cannot be called like this"):
        meta.vm.compile(module, zeros(2), zeros(2))


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match="cuda:63"):
        meta.vm.compile(trace(lambda x: op.exp(x)), zeros(2), device="cuda:63")


def test_anything_that_is_an_array() -> None:
    run = compiled(2, 3)
    values = np.arange(6, dtype="float32").reshape(2, 3)
    expected = np.exp(np.tanh(values)) * 2
    strided = torch.from_numpy(values.T.copy()).T
    for argument in (values, torch.from_numpy(values), strided, meta.ndarray(strided), values[::1]):
        check(run(argument), expected)
    reversed_ = values[::-1, ::-1]
    check(run(reversed_), np.exp(np.tanh(reversed_)) * 2)


def test_a_parameter_that_is_not_compact() -> None:
    model = Linear(2, 3, bias=False)
    model.weight = meta.ndarray(torch.randn(2, 3).T)
    x = meta.random.normal((1, 2))
    check(meta.vm.compile(model, x)(x), model(x))

    class Writes(Model):
        def build(self) -> None:
            self.v = meta.ndarray(torch.zeros(2, 3).T)

        @trace
        def forward(self, x: Any) -> Any:
            op.sgd(x, x, self.v, 1.0, 0.0)
            return x

    with pytest.raises(ArgumentError, match="not contiguous"):
        meta.vm.compile(Writes(), zeros(3, 2))(zeros(3, 2))


def test_results_have_no_tape() -> None:
    model = Linear(2, 2)
    x = zeros(1, 2)
    assert model(x).requires_grad
    assert not meta.vm.compile(model, x)(x).requires_grad


def test_a_type_error_while_compiling_is_at_the_user_s_line() -> None:
    module = parse("""
    func @main(%x: float32[2]) -> float32[2] {
      %y: float32[2] = softmax(%x, axis=3)  # model.py:12
      return %y
    }""")
    with pytest.raises(TypeInferError) as caught:
        meta.vm.compile(module, zeros(2))
    assert str(caught.value.span) == "model.py:12"


def test_no_dialect_while_compiling() -> None:
    with meta.dialect.exclude("torch"), pytest.raises(meta.errors.DispatchError) as caught:
        meta.vm.compile(trace(lambda x: op.exp(x)), zeros(2))
    assert caught.value.span.file == __file__
    assert "excluded by exclude()" in str(caught.value)


def test_what_it_says_of_itself() -> None:
    run = compiled(64, 64)
    assert run.kernels() == {"torch.tanh": 1, "torch.exp": 1, "torch.multiply": 1}
    names = [r.name for r in run.history]
    assert names[0] == "input"
    assert names[-2:] == ["configure", "plan_memory"]
    assert "torch.tanh" in str(run.module)
    assert repr(run).startswith("<executable on cpu: 3 kernels, arena ")
    assert run.device == "cpu"


def test_the_arena_is_as_large_as_two_buffers_of_a_chain() -> None:
    def chain(x: Any) -> Any:
        for i in range(20):
            x = x * float(i) - 1.0
        return x

    run = meta.vm.compile(trace(chain), zeros(16, 16))
    assert run.arena_bytes <= 2 * 16 * 16 * 4


def test_a_long_program_compiles_in_linear_time() -> None:
    def chain(x: Any) -> Any:
        for _ in range(2000):
            x = x + 1.0
        return x

    run = meta.vm.compile(trace(chain), zeros(2))
    assert run(zeros(2)).numpy().tolist() == [2000.0, 2000.0]


def test_several_threads_call_one_executable() -> None:
    model = Sequential(*(Linear(16, 16) for _ in range(4)))
    inputs = [meta.random.normal((8, 16)) for _ in range(4)]
    expected = [model(x).numpy() for x in inputs]
    run = meta.vm.compile(model, inputs[0])
    wrong = []

    def work(i: int) -> None:
        for _ in range(50):
            if not np.allclose(run(inputs[i]).numpy(), expected[i], 1e-5, 1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_several_threads_call_operators_and_models() -> None:
    model = Linear(4, 4)
    results: list[Any] = []

    def work(size: int) -> None:
        with meta.dialect.only("torch"):
            x = meta.array(np.ones((size, 4), "float32"))
            for _ in range(20):
                y = op.softmax(model(x))
            results.append((size, y.shape, float(op.sum(y))))

    threads = [threading.Thread(target=work, args=(i + 1,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(r[:2] for r in results) == [(i, (i, 4)) for i in range(1, 5)]
    assert all(abs(total - size) < 1e-4 for size, _, total in results)
