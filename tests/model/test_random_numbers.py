"""Random numbers in traced programs: drawn anew in every run, the same in every executor."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.errors import TraceError
from meta.model import Linear, Model, checkpoint, scan, trace, value_and_grad
from meta.optim import with_sgd


class Vae(Model):
    def build(self, checkpointed: bool = False) -> None:
        self.checkpointed = checkpointed
        self.encode, self.decode = Linear(6, 4), Linear(2, 6)

    @trace
    def forward(self, x: Any) -> Any:
        run = checkpoint(self.block) if self.checkpointed else self.block
        error = op.subtract(run(x), x)
        return op.mean(op.multiply(error, error))

    def block(self, x: Any) -> Any:
        h = self.encode(x)
        mean, spread = h[:, :2], op.exp(h[:, 2:])
        return self.decode(meta.random.normal((x.shape[0], 2), mean=mean, std=spread))


def some() -> meta.ndarray:
    return meta.array(np.random.default_rng(0).normal(size=(5, 6)), "float32")


def thrice(run: Any, *args: Any) -> np.ndarray[Any, Any]:
    meta.random.seed(3)
    return np.stack([run(*args).numpy() for _ in range(3)])


DRAWS = [
    lambda x: meta.random.normal(x.shape),
    lambda x: meta.random.normal(x.shape, mean=x, std=2.0),
    lambda x: meta.random.uniform(x.shape, low=0.5, high=1.5),
    lambda x: meta.random.uniform(x.shape, low=x, high=x + 1.0),
    lambda x: meta.random.randint(x.shape, low=0, high=5),
    lambda x: meta.random.bernoulli(meta.sigmoid(x)),
    lambda x: meta.random.multinomial(meta.softmax(x), 3),
    lambda x: meta.random.multinomial(meta.softmax(x), 9, replacement=True),
    lambda x: meta.random.permutation(9),
    lambda x: meta.random.permutation(x),
    lambda x: meta.random.exponential(x.shape, scale=2.0),
    lambda x: meta.random.gumbel(x.shape, loc=x),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_every_executor_draws_the_same_numbers(draw: Any) -> None:
    traced, x = trace(draw), some()
    expected = thrice(draw, x)
    assert (expected[0] != expected[1]).any() and (expected[1] != expected[2]).any()
    for run in (traced, meta.vm.compile(traced, x)):
        np.testing.assert_allclose(thrice(run, x), expected, rtol=1e-5, atol=1e-6)


def test_no_pass_merges_two_draws() -> None:
    def both(x: Any) -> Any:
        return op.subtract(meta.random.normal(x.shape), meta.random.normal(x.shape))

    found = thrice(meta.vm.compile(trace(both), some()), some())
    assert (found != 0).all()
    np.testing.assert_allclose(found, thrice(both, some()), rtol=1e-5, atol=1e-6)


def test_a_vae_whose_noise_differs_per_step() -> None:
    model, x = Vae(), some()
    expected = thrice(lambda x: Vae.forward.function(model, x), x)
    assert len(set(expected.tolist())) == 3
    for run in (model, meta.vm.compile(model, x)):
        np.testing.assert_allclose(thrice(run, x), expected, rtol=1e-5)
    step = meta.vm.compile(with_sgd(0.0)(model), meta.array(1.0), x)
    np.testing.assert_allclose(thrice(step, meta.array(1.0), x), expected, rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients_belong_to_the_noise(checkpointed: bool, compiled: bool) -> None:
    meta.random.seed(0)
    model, x = Vae(checkpointed), some()
    meta.random.seed(5)
    model.block(x)  # the tape draws what the program draws
    meta.random.seed(5)
    error = op.subtract(model.block(x), x)
    op.mean(op.multiply(error, error)).backward()
    expected = {n: p.grad.numpy() for n, p in model.named_parameters()}
    run: Any = value_and_grad(model)
    run = meta.vm.compile(run, meta.array(1.0), x) if compiled else run
    meta.random.seed(5)
    _, found = run(meta.array(1.0), x)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name].numpy(), gradient, rtol=1e-4, atol=1e-5)


def test_steps_of_a_loop_draw_anew() -> None:
    def walk(x: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            state = op.add(state, meta.random.normal(row.shape))
            return state, state

        return scan(step, op.zeros_like(x[0]), x)[1]

    for run in (trace(walk), meta.vm.compile(trace(walk), some())):
        found = thrice(run, some())
        steps = np.diff(found, axis=1)
        assert len(np.unique(steps)) == steps.size
        np.testing.assert_allclose(found, thrice(walk, some()), rtol=1e-5, atol=1e-5)


def test_named_extents() -> None:
    traced = trace(lambda x: meta.random.normal(x.shape, mean=x))
    run = meta.vm.compile(traced, meta.ir.parse_type("float32[n, 6]"), dims={"n": (1, 64)})
    expected = thrice(traced, some())
    np.testing.assert_allclose(thrice(run, some()), expected, rtol=1e-5, atol=1e-6)


RNG, OTHER, TORCH = np.random.default_rng(0), random.Random(0), torch.Generator()


class Holds(Model):
    def build(self) -> None:
        self.rng = np.random.default_rng(0)

    @trace
    def forward(self, x: Any) -> Any:
        return x * self.rng.random()


def helper() -> float:
    return random.random()


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda x: x * float(np.random.random()), "numpy.random draws"),
        (lambda x: x * random.random(), "Python's random draws"),
        (lambda x: x * helper(), "Python's random draws"),
        (lambda x: x + torch.rand(6), "torch draws"),
        (lambda x: x * RNG.random(), "RNG draws"),
        (lambda x: x * OTHER.random(), "OTHER draws"),
        (lambda x: x + torch.rand(6, generator=TORCH), "TORCH draws"),
    ],
)
def test_the_host_draws_nothing(draw: Any, says: str) -> None:
    for run in (trace(draw), lambda x: meta.vm.compile(trace(draw), x)):
        with pytest.raises(TraceError, match=says) as caught:
            run(some())
        assert "meta.random.normal" in str(caught.value)
        line = helper if draw.__code__.co_names[0] == "helper" else draw
        assert caught.value.span.file == __file__
        assert caught.value.span.line == line.__code__.co_firstlineno + (line is helper)


def test_a_model_s_generator_draws_nothing() -> None:
    with pytest.raises(TraceError, match=r"self\.rng draws") as caught:
        Holds()(some())
    assert caught.value.span.line == Holds.forward.function.__code__.co_firstlineno + 2


def test_the_program_is_traced_once_where_another_thread_may_have_drawn() -> None:
    """The second run, which looks for the line, adds nothing: running statistics move once."""
    drawn: list[int] = []

    class Net(meta.Model):
        def build(self) -> None:
            self.norm = meta.model.BatchNorm(3)

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            if not drawn:  # as by another thread: the second run sees no draw
                drawn.append(1)
                np.random.rand()
            return self.norm(x)

    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        net = Net().train()
        program = net.forward.program(meta.array(np.ones((8, 3), "float32")))
    finally:
        stop.set()
        other.join()
    assert str(program.module).count("batch_norm_train(") == 1
