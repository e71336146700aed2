"""The program of an operator's gradient: what it computes, and that it is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.registry import OPERATORS
from meta.dialect import HANDWRITTEN
from meta.ir import TensorType
from meta.testing import check
from meta.vm.benchmark.gradient import GradientProgram, gradient_program
from meta.vm.benchmark.workload import call_workload, gradients_like, random_arguments
from meta.vm.eager.example_calls import example_calls
from tests.vm.fakes import Fakes

X = TensorType((8, 4), "float32")
D = TensorType((6, 5), "float64")


@pytest.fixture(autouse=True)
def torch_kernels() -> None:
    """All dialects take part here."""


def program_of(
    op: Any, *args: Any, results: Callable[..., Any], **kwargs: Any
) -> tuple[GradientProgram | None, list[torch.Tensor], list[torch.Tensor]]:
    """Return the program, the values of the arguments, and the gradients of the results."""
    (example,) = example_calls("measure", op, args, kwargs)
    values = random_arguments(call_workload(example))
    found = results(*values)
    outs = list(found) if isinstance(found, tuple) else [found]
    dys = gradients_like(outs)
    return gradient_program(example.call, values, outs, dys), values, dys


CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], Callable[..., Any]]] = {
    "of the result": (meta.tanh, (D,), {}, torch.tanh),
    "of an argument": (meta.square, (D,), {}, torch.square),
    "two": (meta.matmul, (D, TensorType((5, 3), "float64")), {}, torch.matmul),
    "broadcast": (meta.add, (D, TensorType((5,), "float64")), {}, torch.add),
    "a number": (meta.multiply, (D, 2.5), {}, torch.multiply),
    "a tuple": (meta.concat, ((D, D),), {"axis": 0}, lambda a, b: torch.cat((a, b))),
    "several results": (meta.split, (D,), {"indices_or_sections": 2}, lambda x: x.split(3)),
    "with indices": (
        *(meta.take, (D, TensorType((7,), "int64")), {"axis": 0}),
        lambda x, i: x.index_select(0, i),
    ),
    "with types only": (meta.sum, (D,), {"axis": 1}, lambda x: x.sum(1)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_gradient(name: str) -> None:
    op, args, kwargs, oracle = CASES[name]
    program, values, dys = program_of(op, *args, results=oracle, **kwargs)
    assert program is not None
    found = program.compiled("torch", "cpu").on_tensors(list(program.inputs))
    floats = [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]
    for value in floats:
        value.requires_grad = True
    y = oracle(*values)
    expected = torch.autograd.grad(y, floats, dys if isinstance(y, tuple) else dys[0])
    check(tuple(found), tuple(expected), 1e-9, 1e-9)
    assert program.bytes == sum(g.nbytes for g in expected)


def test_what_has_no_gradient_has_no_program() -> None:
    ints = TensorType((3, 3), "int32")
    for op, args, kwargs in (
        (meta.floor_divide, (X, X), {}),
        (meta.argmax, (X,), {}),
        (meta.add, (ints, ints), {}),
        (meta.astype, (X, "int32"), {}),
    ):
        dtype = torch.int64 if op is meta.argmax else torch.int32
        program, _, _ = program_of(
            op, *args, results=lambda *_, t=dtype: torch.zeros(3, 3, dtype=t), **kwargs
        )
        assert program is None, op
    square = TensorType((3, 3), "float64")
    qr = OPERATORS["linalg_qr"]
    wide = TensorType((4, 3), "float64")
    assert program_of(qr, square, results=torch.linalg.qr)[0] is not None
    complete = program_of(
        qr, wide, "complete", results=lambda x, *_: tuple(torch.linalg.qr(x, "complete"))
    )
    assert complete[0] is None, "the rule refuses these attributes"


@pytest.mark.parametrize("how", ["graph", "eager"])
def test_both_directions_are_timed(how: str) -> None:
    costs = meta.measure(meta.softmax, X, backward=True, how=how, iters=5)
    found = {cost.dialect: cost for cost in costs if not cost.refused}
    assert {"tvm", "torch"} <= set(found)
    for cost in found.values():
        assert cost.forward is not None and cost.backward is not None
        assert cost.backward.count == 5 and cost.backward.median > 0
        assert cost.bytes["gradients"] == 128
    with meta.dialect.only("torch"):
        (cost,) = (c for c in meta.measure(meta.argmax, X, backward=True, iters=1) if not c.refused)
        assert cost.backward is None and cost.bytes["gradients"] == 0
        (cost,) = (c for c in meta.measure(meta.tanh, X, backward=True, iters=0) if not c.refused)
        assert cost.forward is None and cost.backward is None
        assert cost.bytes["gradients"] == 128


def test_statistics_that_are_written_have_no_gradient() -> None:
    channels = TensorType((4,), "float32")
    with meta.dialect.only("torch"):
        found = meta.measure(
            *(OPERATORS["batch_norm_train"], X, channels, channels, channels, channels),
            backward=True,
            iters=2,
        )
    (cost,) = (c for c in found if not c.refused)
    assert cost.backward is not None
    assert cost.bytes["weights"] == 32 and cost.bytes["inputs"] == 128 + 32
    assert cost.bytes["gradients"] == 128 + 32, "of x, w and b"


def test_a_wrong_gradient_is_refused(fakes: Fakes) -> None:
    dialect = fakes.kernel(meta.tanh, "fake", HANDWRITTEN + 1, 1.0, torch.tanh)

    @dialect.kernel(OPERATORS["tanh_dx"], plevel=1)
    def tanh_dx(x: Any, y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        return dy * (1 - y)

    second = fakes.kernel(meta.tanh, "fake_failing", HANDWRITTEN + 1, 1.0, torch.tanh)

    @second.kernel(OPERATORS["tanh_dx"], plevel=1)
    def failing_dx(x: Any, y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no memory")

    fakes.kernel(meta.tanh, "fake_first", HANDWRITTEN + 2, 1.0, torch.tanh)
    names = ("fake_first", "torch", "fake", "fake_failing")
    with meta.dialect.only(*names):
        costs = meta.measure(meta.tanh, X, backward=True, iters=2)
    found = {cost.dialect: cost for cost in costs if cost.dialect in names}
    assert found["fake_first"].backward is not None, "another dialect has its gradient"
    assert found["torch"].backward is not None
    assert "the gradient is wrong, if fake_first is right" in found["fake"].refused
    assert "no memory" in found["fake_failing"].refused
    assert found["fake"].forward is found["fake_failing"].forward is None


def test_programs_of_gradients_are_not_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("META_PROGRAM_CACHE", "1")
    with meta.dialect.only("torch"):
        meta.measure(meta.tanh, X, backward=True, iters=1)
        assert not (tmp_path / "programs").exists()
        x = meta.array(np.ones((2, 2), "float32"))
        meta.vm.compile(meta.model.trace(lambda x: meta.tanh(x)), x)
        assert [p for p in tmp_path.iterdir() if p.is_dir()], "others are"
