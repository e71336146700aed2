"""`autocast_scope`: calls made in a block, now or traced, with gradients on the tape."""

from __future__ import annotations

import gc
import threading
import weakref
from importlib import import_module
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.call_context import use
from meta.base.errors import ArgumentError, AutocastError, TraceError
from meta.model import BatchNorm, Linear, Model, parameter, trace
from meta.op.core import Op, Tensor
from meta.testing import check
from tests.model.networks import MLP, Encoder, WithLoss

pytestmark = pytest.mark.usefixtures("torch_kernels")

scope = import_module("meta.amp.scope")


def leaf(*shape: int) -> meta.ndarray:
    array = meta.array(torch.randn(shape))
    array.requires_grad = True
    return array


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_calls_follow_their_rules(half: str) -> None:
    x, w = leaf(2, 3), leaf(4, 3)
    with meta.amp.autocast_scope(half):
        y = op.dense(x, w)
        z = op.softmax(y, -1)
        assert (y.dtype, z.dtype, (y + y).dtype, (x + x).dtype) == (
            half,
            "float32",
            half,
            "float32",
        )
        with meta.amp.autocast_scope(enabled=False):
            assert op.dense(x, w).dtype == "float32"
        with meta.amp.autocast_scope("float16"):
            assert op.dense(x, w).dtype == "float16"
        assert op.dense(x, w).dtype == half
        assert op.dense(torch.ones(2, 3), w.numpy()).dtype == half
    assert op.dense(x, w).dtype == "float32"


@pytest.mark.parametrize("inside", [True, False])
def test_gradients_are_those_of_float32_parameters(inside: bool) -> None:
    torch.manual_seed(0)
    model = WithLoss(Encoder(12, 3))
    x, labels = meta.array(torch.randn(4, 7, 12)), meta.array([1, 2, 3, 4])
    loss = model.forward.function(model, x, labels)
    loss.backward()
    expected = {n: p.grad for n, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = None
    with meta.amp.autocast_scope("bfloat16"):
        found = model(x, labels)
        if inside:
            found.backward()
    if not inside:
        found.backward()
    check(found, loss.torch(), 1e-2, 1e-2)
    for name, p in model.named_parameters():
        assert p.grad.dtype == "float32"
        distance = (p.grad.torch() - expected[name].torch()).norm() / expected[name].torch().norm()
        assert float(distance) < 0.05, name


def test_a_parameter_is_cast_once_while_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, cast = meta.array(torch.randn(2, 3)), leaf(4, 3), []

    def counted(array: meta.ndarray, dtype: str) -> meta.ndarray:
        cast.append(array)
        return op.astype(array, dtype)

    monkeypatch.setattr(scope, "OPERATORS", {"astype": counted})
    for blocks in (1, 2):  # a block of its own: what was cast before is gone
        with meta.amp.autocast_scope("bfloat16"):
            h = op.astype(x, "bfloat16")
            for _ in range(3):
                op.dense(h, w)
            w.update(torch.ones(4, 3))
            check(op.dense(h, w), (x.torch() @ torch.ones(3, 4)).bfloat16(), 1e-2, 1e-2)
        assert len(cast) == 2 * blocks and all(c is w for c in cast)


def test_what_was_cast_without_a_record_is_not_used_with_one() -> None:
    x, w = meta.array(torch.randn(2, 3)), leaf(4, 3)
    with meta.amp.autocast_scope("bfloat16"):
        with meta.no_grad():
            assert not op.dense(x, w).requires_grad
        op.sum(op.dense(x, w)).backward()
        with meta.no_grad():
            assert not op.dense(x, w).requires_grad
    check(w.grad, x.torch().sum(0).expand(4, 3), 1e-2, 1e-2)


def test_nothing_is_kept_after_the_block() -> None:
    w = leaf(4, 3)
    alive = weakref.ref(w)
    with meta.amp.autocast_scope("bfloat16"):
        op.dense(meta.array(torch.ones(2, 3)), w)
    del w
    gc.collect()
    assert alive() is None


def test_in_place_operators_write_what_they_are_given() -> None:
    w, v = meta.array(torch.ones(3)), meta.array(torch.zeros(3))
    with meta.amp.autocast_scope("float16"):
        op.sgd(w, meta.array(torch.ones(3).half()), v, 0.5, 0.0)
    check(w, torch.full((3,), 0.5))
    assert w.dtype == "float32"


def test_a_block_is_that_of_its_thread() -> None:
    x, seen = leaf(2, 2), []
    with meta.amp.autocast_scope("float16"):
        thread = threading.Thread(target=lambda: seen.append(op.matmul(x, x).dtype))
        thread.start()
        thread.join()
        seen.append(op.matmul(x, x).dtype)
    assert seen == ["float32", "float16"]


def test_operators_of_a_backend() -> None:
    x = leaf(2, 2)
    with meta.amp.autocast_scope("float16"):
        assert meta.op.torch.matmul(x, x).dtype == "float16"


def test_an_operator_without_a_rule() -> None:
    def stranger(x: Tensor) -> Tensor:
        return x

    made = Op(stranger, name="stranger", schema=op.relu.schema, random=False)
    with (
        meta.amp.autocast_scope("float16"),
        pytest.raises(AutocastError, match="no cast rule: stranger"),
    ):
        made(leaf(2))


def test_what_is_no_half_precision() -> None:
    with pytest.raises(ArgumentError, match="16 bits"), meta.amp.autocast_scope("float32"):
        pass
    with (
        use(lambda *_: None),
        pytest.raises(AutocastError, match="another meaning"),
        meta.amp.autocast_scope(),
    ):
        pass


class PartlyCast(Model):
    def build(self, width: int) -> None:
        self.first, self.second = Linear(width, width), Linear(width, width)

    @trace
    def forward(self, x: Any, go: Any) -> Any:
        with meta.amp.autocast_scope("bfloat16"):
            y = self.first(x)
            y = meta.cond(go, lambda: self.second(y), lambda: op.relu(y))
        return op.astype(self.second(op.astype(y, "float32")), "float32")


def test_a_block_in_a_traced_function() -> None:
    model, x = PartlyCast(3), meta.array(torch.randn(2, 3))
    for go in (True, False):
        args = x, meta.array(go)
        text = str(model.program(*args).module)
        assert text.count("dense") == 3 and text.count('dtype="bfloat16"') == (5)
        first = x.torch() @ model.first.weight.torch().T + model.first.bias.torch()
        w, b = model.second.weight.torch(), model.second.bias.torch()
        expected = (first @ w.T + b if go else first.relu()) @ w.T + b
        for run in (model, meta.vm.compile(model, *args)):
            check(run(*args), expected.detach(), 3e-2, 3e-2)
    model(*args).backward(meta.array(torch.ones(2, 3)))
    assert model.first.weight.grad.dtype == "float32"


def test_a_loop_in_a_block_keeps_the_dtype_of_its_state() -> None:
    w = meta.array(torch.randn(3, 3))

    @trace
    def grows(x: Any) -> Any:
        with meta.amp.autocast_scope("bfloat16"):
            return meta.while_loop(lambda s: op.sum(s) < 5.0, lambda s: op.matmul(s, w), x)

    with pytest.raises(TraceError, match="changes the type of its state"):
        grows(meta.array(torch.randn(3, 3)))


def test_a_traced_model_is_cast_call_by_call() -> None:
    model, x = MLP(), meta.array(torch.randn(4, 5))
    expected = model(x)
    with meta.amp.autocast_scope("bfloat16"):
        found = model(x)
        compiled = meta.vm.compile(model, x)(x)
    assert found.dtype == "bfloat16" and compiled.dtype == "float32"
    check(found.to(dtype="float32"), expected.torch(), 3e-2, 3e-2)
    check(compiled, expected.torch())


class Untraced(Model):
    """Layers that are traced, in a forward that is not; the last bias is added out of them."""

    def build(self) -> None:
        self.first, self.norm = Linear(4, 4), BatchNorm(4)
        self.second, self.bias = Linear(4, 2), parameter(meta.zeros((2,)))

    def forward(self, x: Any) -> Any:
        h = x + self.first(x)
        return self.second(meta.relu(self.norm(h))) + self.bias


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_layers_of_a_model_that_is_not_traced(half: str) -> None:
    model, x = Untraced(), meta.random.normal((6, 4))
    with meta.amp.autocast_scope(half):
        y = model(x)
        other = model.second(y @ meta.ones((2, 4)))  # half precision comes in
    assert y.dtype == other.dtype == half
    y.sum().backward()
    assert all(p.grad.dtype == "float32" for p in model.parameters())
    assert (model.norm.running_mean != 0.0).all()  # what is written in place is the model's
    with torch.no_grad():
        w = {n: a.torch().double() for n, a in model.state().items()}
    h = x.torch().double() + x.torch().double() @ w["first.weight"].T + w["first.bias"]
    h = torch.relu((h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt())
    expected = h @ w["second.weight"].T + w["second.bias"]
    torch.testing.assert_close(y.torch().double(), expected, atol=0.05, rtol=0.05)
    assert model(x).dtype == "float32"  # the program out of the block is another one
