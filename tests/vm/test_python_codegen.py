"""Straight-line programs as one Python function: what it names, and what it must not lose."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.base.errors import BackendError
from meta.dialect.core import OpEnv, prefer
from meta.runtime.num_threads import Pool
from meta.vm.compiler.bytecode import Invoke, ViewTensor
from meta.vm.run.observers import observed
from meta.vm.run.python_codegen import ROOMY_FRAME


@meta.model.trace
def stages(x, w):
    y = (x @ w).reshape((2, 2, 3))
    return meta.softmax(y, axis=-1), y.sum(axis=0)


def compiled(function, *args):
    with prefer("torch"):
        return meta.vm.compile(function, *args)


def test_results_are_those_of_the_interpreter() -> None:
    x, w = meta.random.normal((4, 5)), meta.random.normal((5, 3))
    exe = compiled(stages, x, w)
    assert any(isinstance(i, ViewTensor) for i in exe.code.functions["main"].instructions())
    for found, expected in zip(exe(x, w), stages(x, w), strict=True):
        torch.testing.assert_close(found.torch(), expected.torch())


@meta.model.trace
def flat(x):
    return x.reshape((6,))


@meta.model.trace
def two_of_one(x):
    y = meta.exp(x)
    return y, y.reshape((6,))


def test_a_view_of_an_argument_counts_writes_to_it() -> None:
    x = meta.ones((2, 3))
    y = compiled(flat, x)(x)
    assert y.torch().data_ptr() == x.torch().data_ptr()
    before = x.torch()._version
    y.torch().add_(1)
    assert x.torch()._version > before


def test_results_that_share_memory_count_writes_together() -> None:
    x = meta.ones((2, 3))
    first, second = compiled(two_of_one, x)(x)
    assert first.torch().data_ptr() == second.torch().data_ptr()
    before = second.torch()._version
    first.torch().add_(1)
    assert second.torch()._version > before


def test_an_error_of_a_kernel_names_it_and_the_line() -> None:
    x = meta.ones((2, 3))
    exe = compiled(two_of_one, x)

    def fail(site, run, values):
        raise RuntimeError("out of luck")

    exe._runs = Pool([observed(exe.program, fail)])
    with pytest.raises(BackendError, match="out of luck") as found:
        exe(x)
    assert found.value.op == "exp"
    assert "test_python_codegen.py" in str(found.value.span)


def test_a_kernel_is_called_by_its_function_alone() -> None:
    x = meta.ones((2, 3))
    exe = compiled(two_of_one, x)
    names = exe._linked.run.__globals__
    kernels = {i.kernel for i in exe.code.functions["main"].instructions() if isinstance(i, Invoke)}
    for k in kernels:
        env = exe.envs[k]
        assert isinstance(env, OpEnv)
        assert names[f"k{k}"] is env.run


@pytest.mark.parametrize(("count", "roomy"), [(5, False), (120, True)])
def test_a_program_of_many_launches_has_a_frame_with_room_behind_it(count, roomy) -> None:
    """Else each of its launches may be the first call of a chunk of CPython's stack."""

    @meta.model.trace
    def products(x):
        for _ in range(count):
            x = x @ x
        return x

    x = meta.array(torch.eye(4))
    exe = compiled(products, x)
    assert (exe._linked.run.__code__.co_stacksize >= ROOMY_FRAME) is roomy
    torch.testing.assert_close(exe(x).torch(), products(x).torch())
