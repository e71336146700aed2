"""What is too large is an error at once: before a backend, an allocator or a loop sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import ArgumentError, MetaError, OutOfMemory, TypeInferError
from meta.base.number import MAX_AXES, MAX_RESULTS
from meta.base.registry import OPERATORS
from meta.ir import Type
from meta.op.core.call import array_type, map_tensors
from meta.op.core.check import array_limit_error
from meta.runtime.ndarray import as_array, ndarray
from tests.op.records import CASES

SECONDS = 3.0
"""More than any refusal takes, also where other processes use the same cores."""
LARGE = (2**31, 2**40, 10**15, 2**62, 2**63 - 1, 2**63, 10**30, -(2**31), -(2**62), -(2**63))


def bound_samples() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Return one sample per operator, the first that binds, with the types of its tensors."""
    seen: set[str] = set()
    for case in CASES:
        for one in case.samples:
            if case.op in seen:
                break
            op = OPERATORS[case.op]
            args, kwargs = one.make(next(iter(case.dtypes), "float32"))
            bound = op.schema.bind(args, kwargs, as_array)
            seen.add(case.op)
            yield op, map_tensors(op, bound, lambda a: array_type(a.key))


def with_large_numbers(op: Any, bound: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Return the arguments with each int attribute, and each int of one, made large."""
    for i, slot in enumerate(op.schema.slots):
        value = bound[i]
        if slot.kind != "attribute":
            continue
        for large in LARGE:
            changed: list[Any] = []
            if type(value) is int or (value is None and "int" in slot.accepts):
                changed.append(large)
            if isinstance(value, tuple) and value and all(type(v) is int for v in value):
                changed += [(large,) * len(value), (*value[:-1], large), (large, *value[1:])]
            for new in changed:
                yield f"{op.name}({slot.name}={new})", (*bound[:i], new, *bound[i + 1 :])


SAMPLES = {op.name: (op, bound) for op, bound in bound_samples()}


@pytest.mark.parametrize("name", SAMPLES)
def test_type_functions_bound_every_number(name: str) -> None:
    """Each either gives types that arrays can have, or refuses; and it does not take long."""
    op, bound = SAMPLES[name]
    for text, args in with_large_numbers(op, bound):
        start = time.process_time()
        try:
            read = op.schema.bind(args, {}, lambda t: t)
            result = op.infer(read)
        except MetaError as error:
            assert len(str(error)) < 10_000
        else:
            fields = getattr(result, "fields", (result,))
            assert not isinstance(result, Type) or array_limit_error(fields) is None, text
        assert time.process_time() - start < SECONDS, text


x = meta.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
empty = meta.array(torch.zeros(0, 3))
one = meta.array([1.0])
column = meta.array(torch.zeros(1 << 20, 1, 1))
CALLS: dict[str, tuple[Callable[[], Any], type[MetaError]]] = {
    "new axes": (lambda: meta.expand_dims(x, 0, num_newaxis=10**8), TypeInferError),
    "65 axes": (lambda: meta.expand_dims(x, 0, num_newaxis=63), TypeInferError),
    "axes of reshape": (lambda: meta.reshape(x, (1,) * 65 + (6,)), TypeInferError),
    "axes of broadcast_to": (lambda: meta.broadcast_to(one, (1,) * 65), TypeInferError),
    "parts of nothing": (lambda: meta.split(empty, 10**6), TypeInferError),
    "many parts of nothing": (lambda: meta.split(empty, 10**18), TypeInferError),
    "elements": (lambda: meta.zeros((2**62, 4)), TypeInferError),
    "elements that wrap to few": (lambda: meta.zeros((2**32, 2**32)), TypeInferError),
    "nothing of much": (lambda: meta.zeros((0, 2**62, 4)), TypeInferError),
    "bytes": (lambda: meta.zeros((2**62,)), TypeInferError),
    "beyond int64": (lambda: meta.zeros((2**63,)), TypeInferError),
    "beyond all": (lambda: meta.zeros((10**400,)), TypeInferError),
    "memory": (lambda: meta.zeros((2**45,)), OutOfMemory),
    "full": (lambda: meta.full((2**50,), 1.0), OutOfMemory),
    "broadcast": (lambda: meta.broadcast_to(one, (2**40, 2**40)), TypeInferError),
    "broadcast beyond memory": (lambda: meta.broadcast_to(one, (2**40,)), OutOfMemory),
    "tile": (lambda: meta.tile(x, (2**40, 2**40)), TypeInferError),
    "tile beyond memory": (lambda: meta.tile(x, (2**40, 1)), OutOfMemory),
    "repeat": (lambda: meta.repeat(x, 10**18, 0), TypeInferError),
    "repeat beyond memory": (lambda: meta.repeat(x, 2**40, 0), OutOfMemory),
    "arange": (lambda: meta.arange(0, 10**18, 1), OutOfMemory),
    "arange beyond": (lambda: meta.arange(0, 2**62, 1), TypeInferError),
    "one_hot": (lambda: meta.one_hot(meta.array([1, 2]), 10**15, 1.0, 0.0), OutOfMemory),
    "pad": (lambda: meta.pad(x, ((0, 2**62), (0, 0))), TypeInferError),
    "pad beyond memory": (lambda: meta.pad(x, ((0, 2**42), (0, 0))), OutOfMemory),
    "outer product": (
        lambda: meta.add(column, meta.array(torch.zeros(1, 1 << 20, 1 << 4))),
        OutOfMemory,
    ),
    "an attribute beyond floats": (lambda: meta.leaky_relu(x, 10**400), MetaError),
}  # fmt: skip


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, dialect: str) -> None:
    call, error = CALLS[name]
    start = time.process_time()
    with meta.dialect.prefer(dialect), pytest.raises(error):
        call()
    assert time.process_time() - start < SECONDS


def test_what_is_just_within() -> None:
    assert meta.expand_dims(x, 0, num_newaxis=MAX_AXES - 2).ndim == MAX_AXES
    with meta.dialect.only("torch"):  # one kernel of so many results is long to generate
        assert len(meta.split(meta.zeros((0, 2)), 1000)) == 1000
    assert meta.zeros((0, 2**20)).shape == (0, 2**20)


def test_arrays_of_others_have_as_many_axes() -> None:
    with pytest.raises(ArgumentError, match="too many axes"):
        meta.array(torch.zeros([1] * (MAX_AXES + 1)))


@pytest.mark.parametrize("shape", [(2**62, 4), (2**40, 2**40), (1,) * 65])
def test_traced_programs(shape: tuple[int, ...]) -> None:
    @meta.model.trace
    def program(a: Any) -> Any:
        return meta.broadcast_to(a, shape)

    with pytest.raises(TypeInferError):
        meta.vm.compile(program, one)


def test_results_are_counted() -> None:
    wide = meta.zeros((MAX_RESULTS + 1,))
    with pytest.raises(TypeInferError):
        meta.split(wide, MAX_RESULTS + 1)
    assert isinstance(wide, ndarray)


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
def test_an_empty_array_of_an_extent_beyond_32_bits(dialect: str) -> None:
    with meta.dialect.prefer(dialect):
        x = meta.zeros((0, 2**59))
        assert meta.negative(x).shape == meta.add(x, x).shape == (0, 2**59)
        assert meta.sum(x, axis=(1,)).shape == (0,)
