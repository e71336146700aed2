"""Arrays that a model sets in traced code: the program updates them, in every executor."""

from __future__ import annotations

from typing import Any

import pytest

import meta
from meta.base.errors import TraceError
from meta.model import Linear, Model, parameter, trace
from meta.testing import check


class Counts(Model):
    def build(self) -> None:
        self.count, self.mean = meta.array(0), meta.zeros((3,))
        self.scale = parameter(meta.ones((3,)))

    @trace
    def forward(self, x: Any) -> Any:
        before = self.mean
        self.count += 1
        self.mean = self.mean * 0.5 + meta.mean(x, axis=0) * 0.5
        return x * self.scale * (before + 1.0) * (self.mean + 1.0), before, self.count


class Around(Model):
    def build(self) -> None:
        self.inner, self.last = Counts(), Linear(3, 2)

    @trace
    def forward(self, x: Any) -> Any:
        return self.last(self.inner(self.inner(x)[0])[0])


X = meta.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])


def test_the_array_is_updated_and_stays_the_same() -> None:
    for compiled in (False, True):
        model = Counts()
        run = meta.vm.compile(model, X) if compiled else model
        count, mean = model.count, model.mean
        _, before, first = run(X)
        _, again, _ = run(X)
        assert model.count is count
        assert model.mean is mean
        assert (count.item(), first.item()) == (2, 1)
        assert before.tolist() == [0.0, 0.0, 0.0]
        assert again.tolist() == [1.0, 1.0, 1.0]
        assert mean.tolist() == [1.5, 1.5, 1.5]


def test_a_model_inside_that_is_called_twice() -> None:
    for compiled in (False, True):
        model = Around()
        (meta.vm.compile(model, X) if compiled else model)(X)
        assert model.inner.count.item() == 2


def test_gradients_see_the_arrays_as_they_were() -> None:
    mean = meta.array([1.0, 1.5, 2.0])
    dy = meta.ones((2, 3))
    wanted = (X.torch() * (mean.torch() + 1)).sum(0) * (
        mean.torch() * 0.5 + X.torch().mean(0) * 0.5 + 1
    )
    for kind in ("tape", "program", "compiled"):
        model = Counts()
        model.mean.update(mean)
        if kind == "tape":
            model(X)[0].backward(dy)
            found = model.scale.grad
        else:
            step = meta.model.value_and_grad(model)
            dys = (dy, meta.zeros((3,)))
            run = meta.vm.compile(step, dys, X) if kind == "compiled" else step
            found = run(dys, X)[1]["scale"]
        check(found, wanted)
        assert model.count.item() == 1


def test_what_is_set_may_depend_on_parameters() -> None:
    taped, stepped = Around(), Around()
    stepped.load_state_dict({name: array.torch() for name, array in taped.state().items()})
    dy = meta.ones((2, 2))
    step = meta.model.value_and_grad(stepped)
    for _ in range(2):
        for array in taped.parameters():
            array.grad = None
        taped(X).backward(dy)
        gradients = step(dy, X)[1]
        for name, array in taped.named_parameters():
            check(array.grad, gradients[name].torch(), what=name)
    assert not taped.inner.mean.requires_grad
    check(taped.inner.mean, stepped.inner.mean.torch())


def test_a_training_step() -> None:
    model = Around()
    step = meta.optim.with_sgd(lr=0.1)(model)
    for _ in range(3):
        step(meta.ones((2, 2)), X)
    assert model.inner.count.item() == 6


class Sets(Model):
    def build(self, how: Any) -> None:
        self.a, self.b, self.w = meta.zeros((2,)), meta.ones((2,)), parameter(meta.ones((2,)))
        self.how, self.none = how, None

    @trace
    def forward(self, x: Any) -> Any:
        self.how(self, x)
        return x


def swap(model: Any, x: Any) -> None:
    model.a, model.b = model.b, model.a


def test_arrays_that_are_exchanged() -> None:
    model = Sets(swap)
    model(X[0, :2])
    assert model.a.tolist() == [1.0, 1.0]
    assert model.b.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (lambda m, x: setattr(m, "w", x), "which is trained"),
        (lambda m, x: setattr(m, "a", x[:1]), "another type"),
        (lambda m, x: setattr(m, "none", x), "stores a traced value in the attribute 'none'"),
        (
            lambda m, x: meta.cond(
                meta.sum(x) > 0.0, lambda: (setattr(m, "a", x + 1.0), x)[1], lambda: x
            ),
            "stores a traced value in the attribute 'a'",
        ),
    ],
)
def test_what_cannot_be_set(how: Any, says: str) -> None:
    model = Sets(how)
    a = model.a
    with pytest.raises(TraceError, match=says):
        model(X[0, :2])
    assert model.a is a
