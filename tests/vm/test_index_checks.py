"""Indices in compiled programs: who looks at them, when, and when nobody needs to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import array, op
from meta.base import config
from meta.base.device import CPU, Device
from meta.base.errors import FormatError, IndexOutOfRange
from meta.dialect import only
from meta.ir import parse_type
from meta.model import trace
from meta.op.core.indices import checks_indices
from meta.vm.compiler.bytecode import CheckIndices
from meta.vm.graphs import capture
from meta.vm.run import compiled_program
from meta.vm.save import code_json
from tests.vm.recorder import TapeRecorder

X = np.arange(12, dtype="float32").reshape(3, 4)
EVERY_LEVEL = pytest.mark.parametrize("level", [0, 1, 2, 3])


def looks(executable: Any) -> list[str]:
    """Return the instructions that look at indices."""
    code = executable.code
    found = (i for f in code.functions.values() for i in f.instructions())
    return [str(i) for i in found if isinstance(i, CheckIndices)]


def line_of(function: Callable[..., Any], text: str) -> int:
    """Return the number of the line of a function in this file that has a text in it."""
    first = function.__code__.co_firstlineno
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()[first - 1 :]
    return first + next(n for n, line in enumerate(lines) if text in line)


# Indices that a program computes ------------------------------------------------------------------


def computed(x: Any, i: Any) -> Any:
    a = op.exp(x)
    b = op.take(a, op.add(op.astype(i, "int64"), 1), 0)  # first
    j = op.broadcast_to(op.reshape(op.subtract(i, 1), (1, 2)), (3, 2))
    c = op.take_along_axis(op.tanh(x), j, 1)  # second
    return op.multiply(b, 2.0), op.sum(c)


@EVERY_LEVEL
@pytest.mark.parametrize("dialect", ["tvm", "torch"])
def test_indices_computed_beside_their_use(dialect: str, level: int) -> None:
    with only(dialect):
        run = meta.vm.compile(trace(computed), array(X), array([0, 1], "int32"), opt_level=level)
        for good in ([0, 1], [1, 0]):
            for found, wanted in zip(
                run(array(X), array(good, "int32")),
                computed(array(X), array(good, "int32")),
                strict=True,
            ):
                torch.testing.assert_close(found.torch(), wanted.torch())
        for bad, name, text in (([2, 0], "take", "first"),
                                ([-4, 1], "take_along_axis", "second")):  # fmt: skip
            with pytest.raises(IndexOutOfRange) as caught:
                run(array(X), array(bad, "int32"))
            assert caught.value.op == name
            assert caught.value.span.line == line_of(computed, f"# {text}")


def test_two_uses_of_one_kernel_tell_their_own_lines() -> None:
    def twice(x: Any, i: Any, j: Any) -> Any:
        a = op.exp(op.take(x, i, 0))  # one
        b = op.exp(op.take(x, j, 0))  # other
        return op.concat((a, b), 0)

    with only("tvm"):
        run = meta.vm.compile(trace(twice), array(X), array([0]), array([0]))
        assert len(looks(run)) == 2
        for indices, text in (((5, 0), "one"), ((0, 5), "other")):
            with pytest.raises(IndexOutOfRange) as caught:
                run(array(X), *(array([i]) for i in indices))
            assert caught.value.span.line == line_of(twice, f"# {text}")


IN_RANGE: dict[str, Callable[[Any, Any], Any]] = {
    "argmax": lambda x, i: op.take(x, op.argmax(x, 1), 1),
    "argmin over all": lambda x, i: op.take(x, op.argmin(x)),
    "argsort": lambda x, i: op.take_along_axis(x, op.argsort(x, 1), 1),
    "topk": lambda x, i: op.take_along_axis(x, op.topk(x, 2, 1)[1], 1),
    "topk of indices": lambda x, i: op.take_along_axis(
        x, op.topk.plain(x, 2, 1, True, "indices"), 1
    ),
    "clip": lambda x, i: op.embedding(op.clip(i, 0, 2), x),
    "remainder": lambda x, i: op.embedding(op.remainder(i, 3), x),
    "arange": lambda x, i: op.index_select(x, 1, op.arange(0, 4, 1, "int64")),
    "moved": lambda x, i: op.take(x, op.reshape(op.permute_dims(op.argsort(x, 0)), (-1,)), 0),
    "astype": lambda x, i: op.take(x, op.astype(op.argmax(x, 1), "int32"), 1),
    "sum": lambda x, i: op.take(x, op.add(op.clip(i, 0, 1), op.clip(i, -2, 1)), 0),
    "product": lambda x, i: op.take(x, op.multiply(op.clip(i, 0, 2), 4)),
    "where": lambda x, i: op.take(x, op.where(op.less(i, 0), 0, op.clip(i, 0, 2)), 0),
    "searchsorted": lambda x, i: op.take(
        x, op.searchsorted(array([1, 2, 3]), i)
    ),
    "constant": lambda x, i: op.take(x, array([0, -3, 2]), 0),
    "clip mode": lambda x, i: op.take(x, i, 0, "clip"),
    "wrap mode": lambda x, i: op.take(x, i, 0, "wrap"),
    "fast mode": lambda x, i: op.take(x, i, 0, "fast"),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_RANGE)
def test_what_is_in_range_is_not_looked_at(name: str) -> None:
    function = IN_RANGE[name]
    indices = array([1, 0, 2])
    run = meta.vm.compile(trace(function), array(X), indices)
    assert not looks(run)
    wanted = function(array(X), indices)
    torch.testing.assert_close(run(array(X), indices).torch(), wanted.torch())


NOT_KNOWN: dict[str, Callable[[Any, Any], Any]] = {
    "argument": lambda x, i: op.take(x, i, 0),
    "other axis": lambda x, i: op.take(x, op.argmax(x, 1), 0),
    "one too many": lambda x, i: op.embedding(op.clip(i, 0, 3), x),
    "negative": lambda x, i: op.embedding(op.clip(i, -1, 2), x),
    "cut at the end": lambda x, i: op.take(x, op.searchsorted(array([1, 2, 3]), i), 0),
    "sum beyond the dtype": lambda x, i: op.take(
        op.zeros((200,), "float32"), op.add(op.astype(op.clip(i, 0, 100), "int8"), 100)
    ),
    "part of an if": lambda x, i: op.take(
        x, meta.cond(op.less(op.sum(x), 0.0), lambda: i, lambda: op.argmax(x, 0)[:3]), 0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_what_may_be_out_of_range_is_looked_at(name: str) -> None:
    run = meta.vm.compile(trace(NOT_KNOWN[name]), array(X), array([1, 0, 2]))
    assert len(looks(run)) == 1


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
def test_constants_are_looked_at_while_compiling(dialect: str) -> None:
    def constant(x: Any) -> Any:
        return op.exp(op.take(x, array([0, 3]), 0))  # here

    def all_constant(x: Any) -> Any:
        return op.add(x, op.take(array(X), array([0, 12])))  # here

    with only(dialect):
        for function, shape in ((constant, (3, 4)), (all_constant, (2,))):
            with pytest.raises(IndexOutOfRange, match=r"at \[1\] of indices") as caught:
                meta.vm.compile(trace(function), array(np.ones(shape, "float32")))
            assert caught.value.span.line == line_of(function, "# here")


# Control flow, extents of the run time, saved programs --------------------------------------------


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
def test_in_a_branch_and_in_a_loop(dialect: str) -> None:
    def branch(x: Any, i: Any) -> Any:
        positive = op.greater(op.sum(x), 0.0)
        return meta.cond(
            positive,
            lambda: op.embedding(i, x),  # branch
            lambda: op.zeros((2, 4), "float32"),
        )

    def loop(x: Any, i: Any) -> Any:
        def body(state: Any) -> Any:
            k, total = state
            return op.add(k, 1), op.add(total, op.take(x, op.add(i, k), 0))  # loop

        start = array(0), op.zeros((2, 4), "float32")
        return meta.while_loop(lambda state: op.less(state[0], 2), body, start)[1]

    with only(dialect):
        x = array(X)
        for function, good, bad in ((branch, [0, 2], [0, 3]), (loop, [0, 1], [0, 2])):
            traced = trace(function)
            for run in (function, traced, meta.vm.compile(traced, x, array(good))):
                run(x, array(good))
                with pytest.raises(IndexOutOfRange) as caught:
                    run(x, array(bad))
                assert caught.value.span.line == line_of(function, f"# {function.__name__}")
        run = meta.vm.compile(trace(branch), x, array([0, 0]))
        run(array(-X), array([7, 7]))  # nobody reads them


def test_a_scan_looks_at_what_its_steps_index() -> None:
    def steps(x: Any, i: Any) -> Any:
        return meta.scan(lambda s, k: (op.add(s, op.embedding(k, x)), s), op.zeros_like(x[0]), i)[0]

    for run in (trace(steps), meta.vm.compile(trace(steps), array(X), array([0, 1, 2]))):
        run(array(X), array([2, 2, 0]))
        with pytest.raises(IndexOutOfRange, match="index 3 at"):
            run(array(X), array([0, 1, 3]))


@pytest.mark.parametrize("dialects", [("torch",), ("tvm", "torch")])
def test_extents_of_the_run_time(dialects: tuple[str, ...]) -> None:
    def rows(x: Any, i: Any) -> Any:
        return op.embedding(i, op.exp(x))  # rows

    types = parse_type("float32[n, 4]"), parse_type("int64[m]")
    with only(*dialects):
        run = meta.vm.compile(trace(rows), *types, dims={"n": (1, 32), "m": (1, 32)})
        for n in (3, 7):
            x = array(np.ones((n, 4), "float32"))
            assert run(x, array([0, n - 1])).shape == (2, 4)
            with pytest.raises(IndexOutOfRange, match=f"index {n} at \\[2\\]") as caught:
                run(x, array([0, 0, n]))
            assert caught.value.span.line == line_of(rows, "# rows")


def test_a_program_that_was_saved_looks(tmp_path: Path) -> None:
    def lookup(table: Any, i: Any, r: Any) -> Any:
        labels = op.cross_entropy(table, i)
        return op.gather_nd(table, r), labels

    x, r = array(X), array([[0, 1], [3, 0]])
    run = meta.vm.compile(trace(lookup), x, array([0, 1, -100]), r)
    assert len(looks(run)) == 3
    run.save(tmp_path / "program")
    again = meta.vm.load(tmp_path / "program")
    assert looks(again) == looks(run)
    again(x, array([0, 1, -100]), r)
    with pytest.raises(IndexOutOfRange, match="index -1 at"):
        again(x, array([0, 1, -1]), r)
    with pytest.raises(IndexOutOfRange, match=r"index 4 at \[1, 1\]"):
        again(x, array([0, 1, 2]), array([[0, 1], [3, 4]]))
    document = code_json.code_to_json(run.code)
    ((block,),) = (f["blocks"] for f in document["functions"].values())
    (first, *_) = (i for i in block if i[0] == "CheckIndices")
    first[2][4] = "5"
    with pytest.raises(FormatError):
        code_json.code_from_json(document, {})


# CUDA ---------------------------------------------------------------------------------------------


def test_on_cuda_a_knob_decides() -> None:
    cuda = Device("cuda:0")
    assert checks_indices(CPU)
    assert not checks_indices(cuda)
    with config.override(META_CHECK_INDICES=True):
        assert checks_indices(CPU)
        assert checks_indices(cuda)


def test_a_program_that_looks_has_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def graphs_for(code: Any, arrays: int, device: Any, wanted: bool | None) -> Any:
        made.append(capture.Graphs(code, arrays, CPU, TapeRecorder(), False))
        return made[-1], ""

    monkeypatch.setattr(compiled_program, "graphs_for", graphs_for)
    run = meta.vm.compile(trace(lambda x, i: op.exp(op.take(x, i, 0))), array(X), array([0]))
    for _ in range(3):
        run(array(X), array([2]))
    assert "META_CHECK_INDICES" in str(run.cuda_graph)
    with pytest.raises(IndexOutOfRange):
        run(array(X), array([3]))
