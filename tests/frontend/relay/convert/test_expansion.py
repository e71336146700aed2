"""Functions that call one another so often that no run ends are an error before it begins."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import meta
from meta.base.errors import IRError
from meta.frontend import relay
from meta.frontend.relay.errors import RelayError

T = "Tensor[(2,), float32]"
X = meta.array([-1.0, 2.0])


def of_globals(count: int) -> str:
    first = f"def @f0(%x: {T}) -> {T} {{ nn.relu(%x) }}"
    rest = [
        f"def @f{i}(%x: {T}) -> {T} {{ @f{i - 1}(@f{i - 1}(%x)) }}" for i in range(1, count + 1)
    ]
    return "\n".join([first, *rest, f"def @main(%x: {T}) {{ @f{count}(%x) }}"])


def of_literals(count: int, attribute: str = "") -> str:
    first = f"let %f0 = fn (%y: {T}{attribute}) -> {T} {{ nn.relu(%y) }};"
    rest = [
        f"let %f{i} = fn (%y: {T}{attribute}) -> {T} {{ %f{i - 1}(%f{i - 1}(%y)) }};"
        for i in range(1, count + 1)
    ]
    return "\n".join([f"def @main(%x: {T}) {{", first, *rest, f"%f{count}(%x) }}"])


def of_hints(count: int) -> str:
    return of_literals(count, ", Primitive=1")


@pytest.mark.parametrize("text", [of_globals, of_literals, of_hints])
def test_a_chain_that_doubles(text: Callable[[int], str]) -> None:
    assert relay.load(text(3))(X).tolist() == [0.0, 2.0]
    model, start = relay.load(text(30)), time.perf_counter()
    for run in (model, lambda x: meta.vm.compile(model, x)):
        with pytest.raises((IRError, RelayError), match="call one another too often") as caught:
            run(X)
        assert "<text>:" in str(caught.value)
    assert time.process_time() and time.perf_counter() - start < 30  # not the hours of a run


def test_branches_count_once() -> None:
    """One of two branches runs: a chain of them is as long as it is."""
    lines = [f"def @f0(%c: bool, %x: {T}) -> {T} {{ nn.relu(%x) }}"]
    lines += [
        f"def @f{i}(%c: bool, %x: {T}) -> {T} "
        f"{{ if (%c) {{ @f{i - 1}(%c, %x) }} else {{ @f{i - 1}(%c, exp(%x)) }} }}"
        for i in range(1, 31)
    ]
    lines.append(f"def @main(%c: bool, %x: {T}) {{ @f30(%c, %x) }}")
    assert relay.load("\n".join(lines))(meta.array(True), X).tolist() == [0.0, 2.0]


def test_a_function_that_calls_itself_is_not_counted() -> None:
    text = f"""
        def @f(%n: int32, %x: {T}) -> {T} {{
          if (greater(%n, 0)) {{ @f(subtract(%n, 1), @f(0, %x)) }} else {{ nn.relu(%x) }}
        }}
        def @main(%n: int32, %x: {T}) {{ @f(%n, %x) }}"""
    assert relay.load(text)(meta.array(3, "int32"), X).tolist() == [0.0, 2.0]
