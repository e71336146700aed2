"""Activation checkpointing: the same bits with it and without it, on the tape, in the interpreter
and in programs; less memory.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meta
from meta import op
from meta.base.errors import ArgumentError, GradientError
from meta.grad.core import no_grad
from meta.model import (
    LayerNorm,
    Linear,
    Model,
    Sequential,
    checkpoint,
    cond,
    parameter,
    scan,
    trace,
    value_and_grad,
    zoo,
)
from meta.model.zoo.transformer import attend, merge_heads, split_heads
from meta.optim import with_sgd
from tests.model.checkpointed import WIDTH, Functions, InLoop, Mean, Nested, Row, Statistics


def tape(model: Model, x: Any) -> tuple[Any, dict[str, Any]]:
    y = model(x)
    y.backward()
    return y, {n: p.grad for n, p in model.named_parameters()}


def plain(model: Model, x: Any) -> tuple[Any, dict[str, Any]]:
    y = model.network.forward.function(model.network, x)  # type: ignore[attr-defined]
    op.mean(op.multiply(y, y)).backward()
    return y, {n: p.grad for n, p in model.named_parameters()}


def interpreter(model: Model, x: Any) -> tuple[Any, dict[str, Any]]:
    found: tuple[Any, dict[str, Any]] = value_and_grad(model)(meta.array(1.0), x)
    return found


def vm(model: Model, x: Any) -> tuple[Any, dict[str, Any]]:
    run = meta.vm.compile(value_and_grad(model), meta.array(1.0), x)
    found: tuple[Any, dict[str, Any]] = run(meta.array(1.0), x)
    return found


WAYS: list[Callable[..., Any]] = [plain, tape, interpreter, vm]
NETWORKS = [Row, Nested, Functions, Statistics, InLoop]


def everything(network: type[Model], policy: str, way: Callable[..., Any]) -> dict[str, np.ndarray]:
    """Return the result, all gradients and all arrays afterwards, and the next random key."""
    meta.random.seed(0)
    model = Mean(network(policy))
    x = meta.random.normal((4, WIDTH))
    x.requires_grad = way in (plain, tape)
    meta.random.seed(1)
    y, gradients = way(model, x)
    found = {"y": y.numpy(), **{f"d {n}": g.numpy() for n, g in gradients.items()}}
    if x.requires_grad:
        found["dx"] = x.grad.numpy()
    found |= {n: a.numpy() for n, a in model.state().items()}
    if network is not InLoop or way in (plain, tape):
        found["key"] = np.array(meta.random.default.key())
    return found


def check_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


POLICIES = ["nothing", "products"]


@pytest.mark.product
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_same_bits(network: type[Model], way: Callable[..., Any], policy: str) -> None:
    check_same_bits(everything(network, policy, way), everything(network, "everything", way))


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_the_same_bits_with_generated_kernels(network: type[Model]) -> None:
    with meta.dialect.only("tvm", "torch"):
        for policy in POLICIES:
            check_same_bits(everything(network, policy, vm), everything(network, "everything", vm))


def test_training_steps_in_a_program() -> None:
    found = []
    for policy in ("everything", "nothing"):
        meta.random.seed(0)
        step = with_sgd(0.1, 0.9)(Mean(Row(policy)))
        inputs = (meta.array(1.0), meta.random.normal((4, WIDTH)))
        run = meta.vm.compile(step, *inputs)
        losses = [run(*inputs).numpy() for _ in range(3)]
        found.append(
            {"losses": np.array(losses), **{n: a.numpy() for n, a in step.state().items()}}
        )
    check_same_bits(*found)


class LoopInside(Model):
    """A block with a loop and a branch, which draw; linear in the weight."""

    def build(self) -> None:
        self.w = parameter(meta.random.normal((WIDTH,)))

    @trace
    def forward(self, x: Any) -> Any:
        def block(x: Any) -> Any:
            def step(state: Any, row: Any) -> Any:
                y = op.dropout(op.multiply(row, self.w), 0.5)
                y = cond(op.sum(row) > 0.0, lambda: op.dropout(y, 0.5), lambda: y)
                return op.add(state, y), y

            total, rows = scan(step, op.zeros_like(self.w), x)
            return op.add(rows, op.dropout(total, 0.2))

        return checkpoint(block)(x)


@pytest.mark.parametrize("way", [tape, interpreter, vm])
def test_draws_in_a_loop_in_a_block(way: Callable[..., Any]) -> None:
    class Total(Model):
        def build(self) -> None:
            self.network = LoopInside()

        @trace
        def forward(self, x: Any) -> Any:
            return op.sum(self.network(x))

    model, x = Total(), meta.array(np.ones((6, WIDTH), "f"))
    y, gradients = way(model, x)
    # y is linear in w: only with the same zeros is it w times the gradient.
    (gradient,) = gradients.values()
    expected = (model.network.w.numpy() * gradient.numpy()).sum()
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4)
    rows = model.network(x).numpy()
    assert (rows[1:] != rows[0]).any(), "steps draw numbers of their own"


def bert(policy: str, layers: int) -> tuple[Model, Any]:
    meta.random.seed(0)
    values = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": layers}
    values |= {"num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 32}
    model = zoo.BertModel(zoo.BertConfig(**values), add_pooling_layer=False)
    for layer in model.encoder.layer:
        checkpoint(layer, policy)
    return Mean(model), meta.array(np.arange(4 * 32).reshape(4, 32) % 40)


class Layer(Model):
    """A layer of an encoder, of two heads."""

    def build(self) -> None:
        self.norm1, self.norm2 = LayerNorm(16), LayerNorm(16)
        self.inside, self.out = Linear(16, 48), Linear(16, 16)
        self.up, self.down = Linear(16, 64), Linear(64, 16)

    @trace
    def forward(self, x: Any) -> Any:
        parts = op.split(self.inside(self.norm1(x)), 3, -1)
        y = merge_heads(attend(*(split_heads(part, 2) for part in parts)))
        x = op.add(x, self.out(y))
        return op.add(x, self.down(op.gelu(self.up(self.norm2(x)))))


def encoder(policy: str) -> tuple[Model, Any]:
    meta.random.seed(0)
    layers = Sequential(*(checkpoint(Layer(), policy) for _ in range(12)))
    return Mean(layers), meta.random.normal((4, 32, 16))


@pytest.mark.parametrize(
    "make",
    [encoder, pytest.param(lambda policy: bert(policy, 12), id="bert", marks=pytest.mark.slow)],
)
def test_memory_of_twelve_layers(make: Callable[[str], tuple[Model, Any]]) -> None:
    reports, results = [], []
    for policy in ("everything", "products", "nothing"):
        model, x = make(policy)
        # The torch kernels of these tests are not fused: a third of the time for nothing. Attention
        # is one kernel, which gives the same bits wherever it is.
        with meta.PassContext(disabled=["fuse_dialect", "write_out_attention"]):
            run = meta.vm.compile(value_and_grad(model), meta.array(1.0), x)
        reports.append(run.memory())
        assert len(run.code.functions) == 1, "blocks are inlined: there is no control flow"
        meta.random.seed(1)
        y, gradients = run(meta.array(1.0), x)
        results.append({"y": y.numpy(), **{n: g.numpy() for n, g in gradients.items()}})
    for found in results[1:]:
        check_same_bits(found, results[0])
    without, products, with_ = reports
    assert with_.peak < without.peak / 3
    assert with_.lower_bound < without.lower_bound / 3
    assert 2 * with_.peak < products.peak < without.peak * 0.8


def test_the_tape_keeps_arguments_only() -> None:
    kept: list[Any] = []

    def block(x: Any) -> Any:
        inner = op.exp(x)
        kept.append(weakref.ref(inner.tensor))
        return op.tanh(inner)

    x = meta.array([1.0, 2.0])
    x.requires_grad = True
    for policy, alive in (("everything", True), ("nothing", False)):
        y = checkpoint(block, policy)(x)
        assert (kept[-1]() is not None) == alive
        y.backward(meta.array([1.0, 1.0]))
    assert len(kept) == 3


def test_names_modes_and_copies() -> None:
    model, x = bert("nothing", 1)
    plain_model, _ = bert("everything", 1)
    assert model.state().keys() == plain_model.state().keys()
    layer = model.network.encoder.layer[0]
    assert checkpoint(layer) is layer
    model.eval()
    assert not layer.attention.training
    np.testing.assert_array_equal(model(x).numpy(), model(x).numpy())
    np.testing.assert_array_equal(copy.deepcopy(model)(x).numpy(), model(x).numpy())
    marked = 'checkpoint="nothing"'
    assert marked in str(model.program(x).module)
    checkpoint(layer, policy="everything")
    assert marked not in str(model.program(x).module)


def test_frozen_parameters() -> None:
    model, x = Mean(Row("nothing")), meta.random.normal((4, WIDTH))
    for array in model.network.blocks[0].parameters():
        array.requires_grad = False
    _, gradients = vm(model, x)
    assert {n.split(".")[2] for n in gradients} == {"1"}
    _, found = tape(model, x)
    assert {n for n, g in found.items() if g is not None} == gradients.keys()
    with no_grad():
        assert not model(x).requires_grad


def test_gradients_of_gradients() -> None:
    found = []
    for policy in ("everything", "nothing"):
        x, w = meta.array([0.3, -0.7]), meta.array([1.5, 0.2])
        x.requires_grad = w.requires_grad = True
        y = checkpoint(lambda x, w=w: op.sum(op.tanh(op.multiply(op.multiply(x, x), w))), policy)(x)
        slope = meta.grad.grad(y, x, create_graph=True)
        second = meta.grad.grad(op.sum(op.multiply(slope, slope)), [x, w])
        found.append([g.numpy() for g in second])
    np.testing.assert_array_equal(found[0], found[1])


def test_derivatives_in_a_block() -> None:
    """What is differentiated by in it requires no gradient outside; what it stands for may."""
    w = meta.array([1.0, 2.0], "float64")

    def slope(x: Any) -> Any:
        return meta.grad(lambda x: op.sum(op.multiply(w, op.multiply(x, op.multiply(x, x)))))(x)

    x = meta.array([3.0, 4.0], "float64")
    assert not checkpoint(slope)(x).tracked
    assert not checkpoint(lambda x: checkpoint(slope)(x))(x).tracked
    for array in (x, w):
        array.requires_grad = True
        for block in (slope, lambda x: checkpoint(slope)(x)):
            found = checkpoint(block)(x)
            assert found.tracked
            op.sum(found).backward()
        factor = 6 * w * x if array is x else 3 * x * x
        np.testing.assert_allclose(array.grad.numpy(), 2 * factor.detach().numpy())
        array.requires_grad = False


def test_backward_twice_and_of_one_result() -> None:
    x = meta.array([1.0, 2.0])
    x.requires_grad = True
    first, second = checkpoint(lambda x: (op.multiply(x, 3.0), op.multiply(x, x)))(x)
    op.sum(second).backward()
    op.sum(second).backward()
    assert x.grad.numpy().tolist() == [4.0, 8.0]
    op.sum(first).backward()
    assert x.grad.numpy().tolist() == [7.0, 11.0]


class WrittenLater(Model):
    """What a block is given is overwritten before its gradients are computed."""

    def build(self) -> None:
        self.w, self.v = parameter(meta.array([1.0, 2.0])), meta.array([0.0, 0.0])
        self.scale = meta.array([1.0, 1.0])

    @trace
    def forward(self, x: Any) -> Any:
        y = checkpoint(lambda x: op.multiply(op.multiply(x, self.w), self.scale))(x)
        op.sgd(self.scale, x, self.v, 0.1, 0.0)
        return op.sum(y)


def test_arguments_that_are_written_later() -> None:
    with pytest.raises(GradientError, match="checkpointed block is written in place"):
        value_and_grad(WrittenLater())(meta.array(1.0), meta.array([1.0, 1.0]))


def test_blocks_that_are_refused() -> None:
    with pytest.raises(ArgumentError, match="only what is called"):
        checkpoint(3)  # type: ignore[type-var]
    times = []

    def block(x: Any) -> Any:
        times.append(1)
        return op.exp(x) if len(times) == 1 else (op.exp(x), x)

    x = meta.array([1.0])
    x.requires_grad = True
    y = checkpoint(block)(x)
    with pytest.raises(GradientError, match="returns something else"):
        y.backward()


@pytest.mark.parametrize(
    ("policy", "exps", "products"),
    [("nothing", 2, 2), ("products", 2, 1), ("everything", 1, 1), ("offload", 1, 1)],
)
def test_what_runs_again_on_the_tape(policy: str, exps: int, products: int) -> None:
    ran = {"exp": 0, "matmul": 0}
    x, w = meta.ones((3, 3)), meta.ones((3, 3))
    w.requires_grad = True

    @meta.custom_vjp
    def exp(x: Any) -> Any:
        ran["exp"] += 1
        return op.exp(x)

    exp.defvjp(lambda x: (exp(x), None), lambda _, dy: (dy,))
    values = []

    def block(x: Any) -> Any:
        product = op.matmul(exp(x), w)
        values.append(product.tensor.data_ptr())
        return op.sin(product)

    checkpoint(block, policy)(x).backward(meta.ones((3, 3)))
    assert ran["exp"] == exps and len(set(values)) == products
    plain = w.grad.numpy()
    w.grad = None
    block(x).backward(meta.ones((3, 3)))
    np.testing.assert_array_equal(plain, w.grad.numpy())


def test_unknown_policies_and_devices() -> None:
    with pytest.raises(ArgumentError, match="policy"):
        checkpoint(lambda x: x, "all")
    traced = meta.model.trace(lambda x: checkpoint(op.exp, "offload")(x))
    program = traced.program_on_types
    assert program(meta.device("cpu"), meta.ones(2)).module.functions.keys() == {"main"}
    with pytest.raises(ArgumentError, match="not moved to the host"):
        program(meta.device("cuda"), meta.ones(2))
