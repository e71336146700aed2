"""The eager tape: right sums over any graph, nothing kept that no rule asks for, clear errors."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.errors import ArgumentError, GradientError
from meta.base.registry import OPERATORS
from meta.grad.core import gradient, not_differentiable
from meta.op.core import Tensor
from meta.op.core import op as define

SHAPE = (3, 4)


def leaf(*shape: int, dtype: str = "float32", seed: int = 0) -> meta.ndarray:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    array = meta.array(values, dtype)
    array.requires_grad = True
    return array


def twin(array: meta.ndarray) -> torch.Tensor:
    return array.detach().torch().clone().requires_grad_()


def equal(found: Any, expected: torch.Tensor | None) -> None:
    assert expected is not None and found is not None
    torch.testing.assert_close(found.torch(), expected, rtol=1e-5, atol=1e-5)


# Each takes the operators of `meta.op` or of torch.
GRAPHS = {
    "chain": lambda f, x, y: f.tanh(f.exp(f.sigmoid(x))),
    "diamond": lambda f, x, y: f.multiply(f.tanh(a := f.exp(x)), f.sigmoid(a)),
    "two leaves": lambda f, x, y: f.add(f.multiply(x, y), f.tanh(y)),
    "one leaf twice": lambda f, x, y: f.multiply(x, x),
    "the same for both": lambda f, x, y: f.add(f.add(x, x), f.add(x, y)),
    "skips": lambda f, x, y: f.add(f.add(x, f.tanh(f.tanh(x))), f.exp(x)),
    "a leaf is the result's neighbour": lambda f, x, y: f.subtract(f.tanh(f.multiply(x, y)), x),
    "an unused branch": lambda f, x, y: (f.exp(y), f.multiply(x, y))[1],
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_gradients_of_graphs(graph: Any) -> None:
    x, y = leaf(*SHAPE), leaf(*SHAPE, seed=1)
    tx, ty = twin(x), twin(y)
    dy = torch.randn(SHAPE)
    result, expected = graph(op, x, y), graph(torch, tx, ty)
    equal(result, expected.detach())
    for _ in range(2):  # gradients add up
        result.backward(dy)
        expected.backward(dy, retain_graph=True)
        for ours, theirs in ((x, tx), (y, ty)):
            assert (ours.grad is None) == (theirs.grad is None)
            if theirs.grad is not None:
                equal(ours.grad, theirs.grad)


def test_several_results_of_which_some_are_used() -> None:
    x = leaf(6, 2)
    tx = twin(x)
    first, _, last = op.split(x, 3, 0)
    (first * last).backward(meta.array(torch.ones(2, 2)))
    t_first, _, t_last = tx.split(2)
    (t_first * t_last).backward(torch.ones(2, 2))
    equal(x.grad, tx.grad)


def test_a_tuple_of_arguments() -> None:
    x, y = leaf(2, 3), leaf(4, 3)
    z = op.concat((x, meta.array(torch.ones(1, 3)), op.exp(y), x), 0)
    tx, ty = twin(x), twin(y)
    tz = torch.cat((tx, torch.ones(1, 3), ty.exp(), tx))
    dy = torch.randn(tz.shape)
    z.backward(dy)
    tz.backward(dy)
    equal(x.grad, tx.grad)
    equal(y.grad, ty.grad)


def test_broadcasting_and_numbers() -> None:
    x, y = leaf(3, 1), leaf(4)
    tx, ty = twin(x), twin(y)
    dy = torch.randn(3, 4)
    (2.0 - x * y / 3.0).backward(dy)
    (2.0 - tx * ty / 3.0).backward(dy)
    equal(x.grad, tx.grad)
    equal(y.grad, ty.grad)


def test_a_cast_gives_each_argument_a_gradient_of_its_own_dtype() -> None:
    x, y = leaf(*SHAPE, dtype="float16"), leaf(*SHAPE, seed=1)
    tx, ty = twin(x), twin(y)
    (op.astype(x, "float32") * y).backward(torch.ones(SHAPE))
    (tx * ty).backward(torch.ones(SHAPE))
    assert x.grad.dtype == "float16"
    assert y.grad.dtype == "float32"
    equal(x.grad, tx.grad)
    equal(y.grad, ty.grad)


def test_an_array_with_one_element_needs_no_gradient_argument() -> None:
    x = leaf(5)
    op.sum(x * x).backward()
    equal(x.grad, 2 * x.torch())
    y = leaf(1, 1)
    (y * 3.0).backward()
    assert y.grad.item() == 3.0


def test_a_leaf_itself() -> None:
    x = leaf(2)
    x.backward([1.0, 2.0])
    x.backward([1.0, 2.0])
    assert x.grad.numpy().tolist() == [2.0, 4.0]


def test_every_leaf_owns_its_gradient() -> None:
    x, y = leaf(2), leaf(2)
    op.reshape(x + y, (2, 1)).backward(meta.array([[1.0], [1.0]]))
    x.grad.update([7.0, 7.0])
    assert y.grad.numpy().tolist() == [1.0, 1.0]


def test_the_gradient_that_was_given_is_not_shared() -> None:
    x, dy = leaf(2), meta.array([1.0, 1.0])
    op.add(x, 1.0).backward(dy)
    dy.update([5.0, 5.0])
    assert x.grad.numpy().tolist() == [1.0, 1.0]


# What is kept.


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_what_no_rule_asks_for_is_freed() -> None:
    x = leaf(*SHAPE)
    inner = x * 2.0
    argument = weakref.ref(inner.tensor)
    y = op.relu(inner)
    del inner
    assert argument() is None, "relu's gradient takes y alone"
    z = op.multiply(y, y)
    kept = weakref.ref(y.tensor)
    del y
    assert kept() is not None, "multiply's gradient takes both factors"
    z.backward(torch.ones(SHAPE))
    equal(x.grad, torch.where(x.torch() > 0, 8 * x.torch(), 0.0))


@pytest.mark.usefixtures("no_collector")
def test_the_graph_is_freed_without_the_collector() -> None:
    x = leaf(*SHAPE)
    y = op.softmax(op.tanh(op.exp(x)))
    z = op.sum(y * y)
    z.backward()
    references = [weakref.ref(v) for v in (y, z)] + [weakref.ref(v.tensor) for v in (y, z)]
    del y, z
    assert [r() for r in references] == [None] * 4


@pytest.mark.usefixtures("no_collector")
def test_the_leaf_is_freed_with_the_graph() -> None:
    x = leaf(*SHAPE)
    reference = weakref.ref(x)
    y = op.exp(x)
    del x
    assert reference() is not None
    y.backward(torch.ones(SHAPE))
    del y
    assert reference() is None


def test_depth_does_not_matter() -> None:
    x = leaf(2)
    y = x
    for _ in range(10_000):
        y = op.add(y, 0.5)
    y.backward([1.0, 2.0])
    assert x.grad.numpy().tolist() == [1.0, 2.0]
    del y  # freed without a recursion either


# What is recorded.


def test_no_grad() -> None:
    x = leaf(*SHAPE)
    with meta.no_grad():
        y = op.exp(x)
    assert not y.requires_grad
    assert y.node is None
    assert op.exp(x).requires_grad


def test_nothing_is_recorded_without_a_leaf() -> None:
    y = op.exp(meta.array([1.0]))
    assert not y.requires_grad
    assert y.node is None


@pytest.mark.parametrize(
    "call",
    [
        lambda x: op.argmax(x),
        lambda x: op.less(x, 0.0),
        lambda x: op.floor_divide(x, 2.0),
        lambda x: op.zeros_like(x),
        lambda x: op.astype(x, "int32"),
    ],
)
def test_results_without_a_gradient_do_not_require_one(call: Any) -> None:
    y = call(leaf(*SHAPE))
    assert not y.requires_grad
    with pytest.raises(GradientError, match="no gradient goes through"):
        y.backward(torch.ones(y.shape))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("floor_divide", lambda x: op.floor_divide(x, 2.0)),
        ("argmax", lambda x: op.argmax(x, 1)),
        ("astype", lambda x: op.astype(x, "int32")),
        ("topk", lambda x: op.topk(x, 2)[1]),
        ("less", lambda x: x < 1.0),
    ],
)
def test_where_a_chain_ends_is_named(name: str, call: Any) -> None:
    """It is not the leaf's fault."""
    x = leaf(*SHAPE)
    first = call(x)
    y = op.sum(op.exp(op.astype(first, "float32") * 0.125) + 1.0)
    assert not first.requires_grad and not y.requires_grad
    assert not y.to(dtype="float64").requires_grad
    for ask in (
        y.backward,
        lambda: meta.grad.grad(y, x),
        lambda: op.sum(op.stack([y, y], 0)).backward(),
        lambda: meta.model.trace(lambda t: op.sum(op.exp(op.astype(call(t), "float32"))))(
            x
        ).backward(),
    ):
        with pytest.raises(GradientError, match=f"no gradient goes through {name}") as caught:
            ask()
        assert caught.value.span is not None and caught.value.span.file == __file__
    (y + op.sum(x)).backward()  # what reaches the leaf another way counts
    equal(x.grad, torch.ones(SHAPE))
    with meta.no_grad():
        assert call(x).node is None
    y.requires_grad = True  # a leaf from here on
    (y * 3.0).backward()
    assert y.grad.item() == 3.0
    y = op.sum(op.astype(call(x), "float32"))
    y.update(2.0)
    with pytest.raises(GradientError, match="not computed from one that requires a gradient"):
        y.backward()


def test_threads_add_to_one_leaf() -> None:
    x = leaf(1000)

    def differentiate() -> None:
        for _ in range(100):
            (x * 1.0).backward(torch.ones(1000))

    threads = [threading.Thread(target=differentiate) for _ in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    equal(x.grad, torch.full((1000,), 400.0))


def test_gradients_stop_at_integers() -> None:
    x = leaf(*SHAPE)
    assert not op.astype(op.astype(x, "int32"), "float32").requires_grad


def test_only_floats_require_gradients() -> None:
    with pytest.raises(GradientError, match="only floating point arrays"):
        meta.array([1, 2]).requires_grad = True


# Errors.


def test_a_result_with_several_elements_needs_a_gradient() -> None:
    with pytest.raises(GradientError) as caught:
        op.exp(leaf(*SHAPE)).backward()
    assert "found:    shape (3, 4)" in str(caught.value)


def test_a_gradient_of_another_shape() -> None:
    with pytest.raises(GradientError) as caught:
        op.exp(leaf(*SHAPE)).backward(torch.ones(4))
    assert "expected: (3, 4)" in str(caught.value)
    assert "found:    (4,)" in str(caught.value)


@pytest.mark.parametrize("dialect", ["torch", "tvm"])
@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.update([5.0]),
        lambda w: op.sgd(w, meta.array([1.0]), meta.array([0.0]), 0.5, 0.0),
        lambda w: op.sgd(op.reshape(w, (1, 1)), [[1.0]], meta.array([[0.0]]), 0.5, 0.0),
    ],
    ids=["update", "operator", "through a view"],
)
def test_what_the_gradient_needs_was_written(dialect: str, write: Any) -> None:
    with meta.dialect.only(dialect):
        w = leaf(1)
        unharmed, harmed = w + 1.0, w * w
        write(w)
        unharmed.backward()
        with pytest.raises(GradientError) as caught:
            harmed.backward()
    assert "'x1', which the gradient needs, was written in place" in str(caught.value)
    assert f"at:       {__file__}" in str(caught.value)


@pytest.fixture
def defined() -> Iterator[Any]:
    """Define operators on torch's kernels; they are forgotten after the test."""
    names = []
    torch_dialect = meta.dialect.core.DIALECTS["torch"]

    def make(function: Any) -> Any:
        made = define(function)
        names.append(made.name)
        torch_dialect.kernel(made)(lambda x: x.clone())
        return made

    yield make
    for name in names:
        OPERATORS.remove(name)
        del torch_dialect.ops[name]


def test_an_operator_about_whose_gradient_nothing_is_said(defined: Any) -> None:
    @defined
    def test_silent(x: Tensor) -> Tensor:
        return x

    assert test_silent(meta.array([1.0])).item() == 1.0
    with pytest.raises(GradientError, match="nothing is said about this operator's gradient"):
        test_silent(leaf(1))


def test_an_operator_that_is_not_differentiable(defined: Any) -> None:
    @defined
    def test_stops(x: Tensor) -> Tensor:
        return x

    not_differentiable(test_stops, why="it is a test")
    x = leaf(1)
    assert not test_stops(x).requires_grad
    y = test_stops(x) + x  # the other way is open
    y.backward()
    assert x.grad.item() == 1.0


def test_a_rule_with_a_wrong_number_of_results(defined: Any) -> None:
    @defined
    def test_wrong(x: Tensor) -> Tensor:
        return x

    @gradient(test_wrong)
    def rule(dy):
        return dy, dy

    with pytest.raises(GradientError) as caught:
        test_wrong(leaf(1)).backward()
    assert "test_wrong" in str(caught.value)
    assert "one per tensor slot: ['x']" in str(caught.value)


def test_a_rule_that_fails_names_the_call(defined: Any) -> None:
    @defined
    def test_fails(x: Tensor) -> Tensor:
        return x

    @gradient(test_fails)
    def rule(dy):
        return op.softmax(dy, 7)

    y = test_fails(leaf(1))
    with pytest.raises(meta.MetaError) as caught:
        y.backward()
    assert "in the gradient of test_fails, called at " + __file__ in str(caught.value)


def test_a_missing_gradient_is_an_error(defined: Any) -> None:
    @defined
    def test_none(x: Tensor) -> Tensor:
        return x

    @gradient(test_none)
    def rule(dy):
        return None

    with pytest.raises(GradientError, match="no gradient for argument 'x'"):
        test_none(leaf(1)).backward()


def test_an_attribute_reaches_the_rule_in_its_canonical_spelling() -> None:
    x = leaf(2, 3)
    op.cumsum(x, 1, torch.float64).backward(torch.ones(2, 3))
    assert x.grad is not None and x.grad.dtype == "float32"
    assert x.grad.torch().tolist() == [[3.0, 2.0, 1.0]] * 2


def test_grad_is_given_arrays() -> None:
    x = meta.array(3.0)
    with pytest.raises(ArgumentError, match=r"grad\(f\) of a function"):
        meta.grad.grad(x * x)
    with pytest.raises(ArgumentError, match="wrt says by which arguments"):
        meta.grad.grad(lambda a: a * a, x)
