"""Memory that there is not: eager calls, compiling and running raise OutOfMemory, and go on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.device import CPU
from meta.base.errors import MetaError, OutOfMemory
from meta.ir import parse_type
from meta.model import trace
from meta.runtime.out_of_memory import free_bytes, is_out_of_memory, out_of_memory

TOO_MUCH = 1 << 52


def check_error(error: OutOfMemory, planned: int) -> None:
    assert isinstance(error, MetaError) and isinstance(error, MemoryError)
    assert error.planned == planned
    assert error.free is None or 0 < error.free < TOO_MUCH
    assert error.__context__ is None, "the first error holds the tensors of what failed"
    assert f"{planned:,} bytes" in str(error) and "try:" in str(error)


def broadcast(x: Any) -> Any:
    return op.broadcast_to(x, (TOO_MUCH,))


def test_an_eager_call() -> None:
    x = meta.array([1.0])
    with pytest.raises(OutOfMemory, match="full") as caught:
        op.full((TOO_MUCH,), 1.0, "float32", "cpu")
    check_error(caught.value, 4 * TOO_MUCH)
    assert op.exp(x).shape == (1,), "the process goes on"


def test_a_call_of_the_interpreter() -> None:
    with pytest.raises(OutOfMemory):
        trace(broadcast)(meta.array([1.0]))


def test_a_program_that_allocates_what_it_returns() -> None:
    x = meta.array([1.0])
    run = meta.vm.compile(trace(broadcast), x)
    with pytest.raises(OutOfMemory, match="the program") as caught:
        run(x)
    check_error(caught.value, 4 * TOO_MUCH)
    assert "memory_budget" in str(caught.value)


def test_a_program_with_an_arena() -> None:
    large, small = (parse_type(f"float32[{n}]") for n in (TOO_MUCH, 1))
    chain = trace(lambda x: op.sum(op.tanh(x) * op.exp(x)))
    with pytest.raises(OutOfMemory, match="intermediate results") as caught:
        meta.vm.compile(chain, large)
    assert caught.value.planned is not None and caught.value.planned >= 4 * TOO_MUCH
    assert meta.vm.compile(chain, small)(meta.array([1.0])).shape == ()


def test_copies() -> None:
    large = torch.ones(1).expand(TOO_MUCH)
    for call in (lambda: meta.array(large), lambda: meta.ndarray(large).to(dtype="float64")):
        with pytest.raises(OutOfMemory, match="an array") as caught:
            call()
        check_error(caught.value, caught.value.planned or 0)
        assert caught.value.planned in (4 * TOO_MUCH, 8 * TOO_MUCH)


def test_what_counts() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))  # of a graph, a module
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    found = out_of_memory(
        RuntimeError("CUDA out of memory. Tried to allocate 1.50 GiB."), CPU, "it", hint="less"
    )
    assert found.planned == 3 << 29
    assert (free_bytes(CPU) or 1) > 0
