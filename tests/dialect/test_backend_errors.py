"""What a backend raises becomes a BackendError with operator, types, dialect and line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import meta
from meta.base.bounded_cache import bounded_insert
from meta.base.errors import BackendError, OutOfMemory
from meta.base.registry import OPERATORS
from meta.dialect.core import DIALECTS, HANDWRITTEN, CompiledKernel, Deferred, Dialect, OpEnv
from meta.dialect.core.preference import DECISIONS, forget
from meta.dialect.core.preference import current as preference


def _fails(error: BaseException) -> Callable[..., Any]:
    def run(*_: Any) -> Any:
        raise error

    return run


def _compiler(error: Exception) -> Callable[..., list[CompiledKernel]]:
    return _fails(error)


FAULTS = [KeyError("boom"), RuntimeError("CUDNN_STATUS_EXECUTION_FAILED"), ZeroDivisionError("0")]
MAKERS: dict[str, Callable[[Exception], Callable[[Any], OpEnv]]] = {
    "prepare a kernel": _fails,
    "compile kernels": lambda e: lambda call: OpEnv(Deferred(1, _compiler(e)), allocates=True),
    "run a kernel": lambda e: lambda call: OpEnv(_fails(e), allocates=True),
}


@pytest.fixture
def mine() -> Iterator[Dialect]:
    made = Dialect("failing", devices=("cpu",), plevel=HANDWRITTEN)
    before = list(OPERATORS["tan"].aspects.dialect_ops)
    try:
        yield made
    finally:
        OPERATORS["tan"].aspects.dialect_ops[:] = before
        DIALECTS.remove("failing")
        forget()


def _eager(x: Any) -> Any:
    return meta.tan(x)


def _interpreted(x: Any) -> Any:
    return meta.model.trace(lambda x: meta.tan(x + 1.0))(x)


def _compiled(x: Any) -> Any:
    return meta.vm.compile(meta.model.trace(lambda x: meta.tan(x + 1.0)), x)(x)


@pytest.mark.parametrize("executor", [_eager, _interpreted, _compiled])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("doing", MAKERS)
def test_faults(doing: str, fault: Exception, executor: Any, mine: Dialect) -> None:
    mine.op(OPERATORS["tan"])(MAKERS[doing](fault))
    with pytest.raises(BackendError, match=f"tan: the dialect 'failing' cannot {doing}") as caught:
        executor(meta.array([1.0, 2.0]))
    error = caught.value
    assert error.__cause__ is fault and type(fault).__name__ in str(error.found)
    assert error.span is not None and error.span.file == __file__
    if doing != "compile kernels":
        assert "float32[2]" in str(error.found)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_kernel_that_was_decided_before_runs_once_when_it_fails(
    fault: Exception, mine: Dialect
) -> None:
    runs = []

    def run(x: torch.Tensor) -> torch.Tensor:
        runs.append(x)
        if len(runs) == 4:
            raise fault
        return torch.tan(x)

    mine.op(OPERATORS["tan"])(lambda call: OpEnv(run, allocates=True))
    x = meta.array([1.0, 2.0])
    for _ in range(3):
        meta.tan(x)
    with pytest.raises(BackendError, match="tan: the dialect 'failing' cannot run a k") as caught:
        meta.tan(x)
    assert len(runs) == 4
    assert caught.value.__cause__ is fault and "float32[2]" in str(caught.value.found)
    assert caught.value.span is not None and caught.value.span.file == __file__


@pytest.mark.parametrize("error", [meta.errors.DeviceError("mine"), UserWarning("w")], ids=str)
def test_what_passes(error: Exception, mine: Dialect) -> None:
    mine.op(OPERATORS["tan"])(MAKERS["run a kernel"](error))
    for executor in (_eager, _interpreted, _compiled):
        with pytest.raises(type(error)) as caught:
            executor(meta.array([1.0]))
        assert caught.value is error


def test_what_ends_a_program_passes(mine: Dialect) -> None:
    mine.op(OPERATORS["tan"])(lambda call: OpEnv(_fails(KeyboardInterrupt()), allocates=True))
    with pytest.raises(KeyboardInterrupt):
        _eager(meta.array([1.0]))


def test_memory_is_no_fault(mine: Dialect) -> None:
    mine.op(OPERATORS["tan"])(MAKERS["run a kernel"](MemoryError("none left")))
    for executor in (_eager, _compiled):
        with pytest.raises(OutOfMemory):
            executor(meta.array([1.0]))


def test_a_users_own_code_raises_what_it_raises() -> None:
    def program(x: Any) -> Any:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        meta.model.trace(program)(meta.array([1.0]))


def test_caches_have_a_bound() -> None:
    cache: dict[int, int] = {}
    for i in range(1000):
        assert bounded_insert(cache, i, i, 10) == i and len(cache) <= 10
    assert 999 in cache and 0 not in cache


def test_attributes_without_end_leave_the_memory_as_it_is() -> None:
    x = meta.array(torch.arange(6.0).reshape(2, 3))
    with meta.dialect.only("torch"):
        for i in range(DECISIONS + 100):
            found = meta.roll(x, i, 1)
        own = preference()
        assert len(own.plans) <= DECISIONS and len(own.envs) <= DECISIONS
    assert torch.equal(found.torch(), torch.roll(x.torch(), i, 1))
