"""A long program is no deep program: 10^5 bindings go through everything, each within seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from meta.base.source import Span
from meta.ir import (
    BlockBuilder,
    Call,
    Function,
    Module,
    TensorType,
    Var,
    free_vars,
    parse,
    structural_equal,
    structural_hash,
    substitute,
    text,
    verify,
    with_fresh_vars,
)
from tests.ir.programs import ADD, SUM

COUNT = 100_000


@contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    start = time.process_time()
    yield
    spent = time.process_time() - start
    print(f"{what}: {spent:.2f} s")
    assert spent < seconds, what


@pytest.mark.long
def test_long_program() -> None:
    type_ = TensorType((3, 4), "float32")
    x = Var("x", type_)
    with within(10, "build"):
        builder, last = BlockBuilder(), x
        for i in range(COUNT):
            value = Call(ADD, (last, x)) if i % 2 else Call(SUM, (last, i, False))
            last = builder.emit(value, type_, "x" if i % 3 else "", Span("model.py", i))
        module = Module({"main": Function((x,), builder.finish(last), type_)})
    with within(10, "print"):
        printed = text(module)
    with within(10, "parse"):
        again = parse(printed)
    with within(10, "verify"):
        verify(again, typed=True)
    with within(10, "hash"):
        assert structural_hash(again) == structural_hash(module)
    with within(10, "compare"):
        assert structural_equal(again, module)
    with within(10, "rewrite"):
        assert free_vars(substitute(module.main.body, {x: Var("z")}))
        with_fresh_vars(module.main)
    assert text(again) == printed
