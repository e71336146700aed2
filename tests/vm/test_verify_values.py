"""META_VERIFY: a compiled program's values at its first call, against the interpreter's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base import config
from meta.base.errors import IRError
from meta.dialect.core import OpEnv
from meta.ir import Call, bindings, parse_type
from meta.model import BatchNorm, Conv2d, Dropout, Linear, Model, ReLU, Sequential, trace
from meta.optim import with_adamw
from meta.passes import PassRecord
from meta.testing import check
from meta.vm.compiler.bytecode import AllocateTensor
from meta.vm.executable import Executable
from meta.vm.run.verify_values import difference


@pytest.fixture(autouse=True)
def verifying() -> Iterator[None]:
    with config.override(META_VERIFY=True):
        yield


def data(*shape: int, seed: int = 0) -> meta.ndarray:
    return meta.array(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


def layers(x: Any, w: Any) -> Any:
    first = op.matmul(x, w)
    second = op.tanh(first) * first
    third = op.matmul(second, w)
    return op.exp(third) + second, op.sum(third, 1)


def spoiled(executable: Executable, name: str) -> None:
    """Let the kernels of an operator, or the fused ones that have it, give other values."""
    envs = []
    for kernel, env in zip(executable.code.kernels, executable.envs, strict=True):
        function = executable.module.functions.get(kernel.name.rpartition(".")[2])
        inside = () if function is None else bindings(function)
        names = [b.value.callee.name for b in inside if isinstance(b.value, Call)]
        if name in kernel.name or any(name in n for n in names):
            env = OpEnv(wrong(env.run), env.allocates, env.strided, env.dialect_op)
        envs.append(env)
    assert any(a is not b for a, b in zip(envs, executable.envs, strict=True))
    executable.program = replace(executable.program, kernels=tuple(envs))
    executable._linked = meta.vm.run.link.link(executable.program)


def wrong(run: Any) -> Any:
    def other(*values: Any) -> Any:
        result = run(*values)
        out = values[-1] if result is None else result
        out.view(-1)[1] += 0.25
        return result

    return other


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["tanh", "exp", "matmul", "sum"])
def test_a_wrong_kernel_is_named(name: str, level: int) -> None:
    x, w = data(5, 17), data(17, 17, seed=1)
    executable = meta.vm.compile(trace(layers), x, w, opt_level=level)
    spoiled(executable, name)
    with pytest.raises(IRError, match="of a compiled program is wrong") as caught:
        executable(x, w)
    assert "elements of result" in str(caught.value) and "differ" in str(caught.value)
    assert caught.value.span is not None and caught.value.span.file == __file__
    with config.override(META_VERIFY=False):
        executable(x, w)


def test_a_wrong_fused_kernel_is_named() -> None:
    x, w = data(5, 17), data(17, 17, seed=1)
    with meta.dialect.only("tvm"):
        executable = meta.vm.compile(trace(layers), x, w)
        assert any("fused" in name for name in executable.kernels())
        executable(x, w)
        executable = meta.vm.compile(trace(layers), x, w)
        spoiled(executable, "tanh")
        with pytest.raises(IRError, match=r"tvm\.fused_.*tanh.* is wrong") as caught:
            executable(x, w)
    assert caught.value.span is not None and caught.value.span.file == __file__


def test_a_wrong_pass_is_named() -> None:
    x = data(4, 4)
    good = meta.vm.compile(trace(lambda x: op.exp(x) + 1.0), x)
    bad = meta.vm.compile(trace(lambda x: op.exp(x) + 2.0), x)
    bad.history = [good.history[0], good.history[1], PassRecord("improve", 0.0, bad.module)]
    with pytest.raises(IRError, match="differ from the interpreter's") as caught:
        bad(x)
    assert "the pass improve made a program of other values" in str(caught.value)


def test_a_wrong_memory_plan_is_named() -> None:
    x, w = data(5, 17), data(17, 17, seed=1)
    right = meta.vm.compile(trace(layers), x, w, opt_level=2)
    assert (
        len({i.offset for i in right.code.functions[right.code.entry].instructions() if planned(i)})
        > 1
    )
    blocks = tuple(
        tuple(replace(i, offset=0) if planned(i) else i for i in block)
        for block in right.code.functions[right.code.entry].blocks
    )
    functions = {
        **right.code.functions,
        right.code.entry: replace(right.code.functions[right.code.entry], blocks=blocks),
    }
    program = replace(right.program, code=replace(right.code, functions=functions))
    executable = Executable(program, right.arrays, right.convention, right.history)
    with pytest.raises(IRError, match=r"write its result over|was overwritten") as caught:
        executable(x, w)
    assert "register" in str(caught.value)


def planned(i: Any) -> bool:
    return isinstance(i, AllocateTensor) and i.storage is not None


def test_the_first_call_of_each_shape_is_compared() -> None:
    executable = meta.vm.compile(trace(lambda x: op.tanh(x) * 2.0), parse_type("float32[n, 3]"))
    executable(data(4, 3))
    spoiled(executable, "tanh")
    executable(data(4, 3))  # not compared again
    with pytest.raises(IRError, match="is wrong"):
        executable(data(5, 3))


class Network(Model):
    def build(self) -> None:
        self.body = Sequential(Conv2d(3, 4, 3), BatchNorm(4), ReLU(), Dropout(0.4))
        self.head = Linear(4 * 36, 5)

    @trace
    def forward(self, x: Any, labels: Any) -> Any:
        return op.cross_entropy(self.head(op.reshape(self.body(x), (-1, 4 * 36))), labels)


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_training_in_place_with_dropout(dtype: str | None) -> None:
    """Written arrays and random numbers are no difference, and the call counts once."""
    x, labels = data(4, 3, 8, 8), meta.array([0, 1, 2, 3])
    losses = []
    for verify in (True, False):
        meta.random.seed(7)
        model = Network()
        step: Any = with_adamw(1e-2)(model)
        step = step if dtype is None else meta.amp.autocast(step, dtype)
        with config.override(META_VERIFY=verify):
            executable = meta.vm.compile(step, meta.array(1.0), x, labels)
            losses.append([executable(meta.array(1.0), x, labels).item() for _ in range(3)])
    check(torch.tensor(losses[0]), torch.tensor(losses[1]), 1e-6, 1e-6)


def test_draws_that_nobody_needs() -> None:
    def draws(x: Any) -> Any:
        op.dropout(x, 0.5)
        return op.dropout(x, 0.5)

    x = data(40)
    assert meta.vm.compile(trace(draws), x)(x).shape == (40,)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounding_is_no_difference(dtype: str) -> None:
    """Sums in another order, where nearly all cancels; a decision near a tie."""
    x = meta.array(data(33, 257).numpy(), dtype)

    def cancelling(x: Any) -> Any:
        y = op.exp(x) * 100.0
        centred = y - op.mean(y, 1, keepdims=True)
        return op.sum(centred, 1), op.argmax(centred * 0.5 + 1.0, 1), op.sign(op.sum(centred, 1))

    for level in (0, 2, 3):
        meta.vm.compile(trace(cancelling), x, opt_level=level)(x)


def test_loops_branches_and_dynamic_extents() -> None:
    x = data(3, 4)

    def loop(x: Any) -> Any:
        def body(state: Any) -> Any:
            i, y = state
            return i + 1.0, meta.cond(i > 1.0, lambda: op.tanh(y), lambda: y * 0.5)

        return meta.while_loop(lambda state: state[0] < 4.0, body, (meta.array(0.0), x))

    found = meta.vm.compile(trace(loop), x)(x)
    check(found[1], trace(loop)(x)[1])
    flat = trace(lambda x: op.relu(op.reshape(x, (x.shape[0] * 4,))))
    executable = meta.vm.compile(flat, parse_type("float32[n, 4]"))
    for n in (1, 3, 17):
        assert executable(data(n, 4)).shape == (n * 4,)


@pytest.mark.parametrize(
    ("found", "expected", "says"),
    [
        ([1.0, 2.0], [1.0, 2.0], None),
        ([1.0, 2.00001], [1.0, 2.0], None),
        ([1.0, 2.1], [1.0, 2.0], "1 of 2 elements of result 0 differ"),
        ([float("nan"), 2.0], [float("nan"), 2.0], None),
        ([float("nan"), 2.0], [1.0, 2.0], "nan and not 1.0 at [0]"),
        ([float("inf"), 2.0], [float("inf"), 2.0], None),
        ([float("-inf"), 2.0], [float("inf"), 2.0], "-inf and not inf"),
    ],
)
def test_what_differs(found: list[float], expected: list[float], says: str | None) -> None:
    reason = difference([torch.tensor(found)], [torch.tensor(expected)], lambda: ())
    assert reason is None if says is None else says in str(reason)
    moved = [[torch.tensor(np.float32(expected) * 1.01)]]
    if says is not None and "1 of 2" in says:  # a rounding moves it as far
        assert difference([torch.tensor(found)], [torch.tensor(expected)], lambda: moved) is None
