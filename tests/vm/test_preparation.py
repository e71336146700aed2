"""What depends on a model's arrays alone is computed once, and never stale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base import config
from meta.base.errors import OutOfMemory
from meta.grad.core import no_grad
from meta.model import Linear, Model, trace
from meta.model.layers import BatchNorm, Conv2d
from meta.runtime.buffer_replacement import replace_buffer
from meta.vm import load
from meta.vm.run import preparation
from tests.vm.test_graphs import tape

__all__ = ["tape"]


class Net(Model):
    """A convolution that is folded, and weights that are transformed."""

    def build(self) -> None:
        self.conv = Conv2d(3, 4, 3, bias=False)
        self.norm = BatchNorm(4)
        self.last = Linear(4, 2)
        self.table = meta.array(torch.randn(2, 2))

    @trace
    def forward(self, x: Any) -> Any:
        y = op.relu(self.norm(self.conv(x)))
        return op.matmul(self.last(op.mean(y, (2, 3))), op.exp(self.table))


@pytest.fixture
def net() -> Model:
    torch.manual_seed(0)
    meta.random.seed(0)
    return Net().eval()


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often something was computed, in the first element."""
    found, original = [0], preparation.Preparation._compute

    def counted(self: Any, *args: Any) -> None:
        found[0] += 1
        original(self, *args)

    monkeypatch.setattr(preparation.Preparation, "_compute", counted)
    return found


X = meta.array(torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(3)))


@pytest.fixture(params=[False, True], ids=["before", "after"])
def looks(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Whether arrays are looked at before a run or, as on CUDA, after it was launched."""

    def looking(compiled: Any) -> Any:
        compiled._repeats = request.param
        return compiled

    return looking


def agrees(executable: Any, model: Any) -> None:
    for _ in range(2):
        torch.testing.assert_close(executable(X).torch(), model(X).torch(), rtol=1e-4, atol=1e-5)


def test_it_is_computed_once(net: Model, count: list[int]) -> None:
    compiled = meta.vm.compile(net, X)
    assert compiled.code.prepared == 3 and count == [0]
    assert not {"batch_norm_infer", "exp"} & {k.rpartition(".")[2] for k in compiled.kernels()}
    for _ in range(3):
        agrees(compiled, net)
    assert count == [3]
    compiled.profile(X, repeat=1)
    compiled.debug(X)
    assert count == [3]


def by_update(net: Model) -> None:
    net.norm.running_var.update(torch.rand(4) + 1)


def by_torch(net: Model) -> None:
    net.conv.weight.detach().torch().mul_(-1)


def by_operator(net: Model) -> None:
    with no_grad():
        op.multi_tensor_axpby((net.table,), (net.table,), 1.0, 1.0)


def by_loading(net: Model) -> None:
    net.load_state_dict({n: a.torch() * 0.5 for n, a in net.state().items()})


def by_exchange(net: Model) -> None:
    replace_buffer(net.table, torch.randn(2, 2))


def by_dlpack(net: Model) -> None:
    np.from_dlpack(net.table)[:] = 0.25


def by_numpy(net: Model) -> None:
    np.asarray(net.conv.weight.detach(), copy=False)[:] *= 2


@pytest.mark.parametrize(
    "write", [by_update, by_torch, by_operator, by_loading, by_exchange, by_dlpack, by_numpy]
)
def test_writes_are_seen(net: Model, looks: Any, write: Callable[[Any], None]) -> None:
    compiled = looks(meta.vm.compile(net, X))
    agrees(compiled, net)
    write(net)
    agrees(compiled, net)
    write(net)
    agrees(compiled, net)


def test_memory_that_is_shared_later(net: Model, looks: Any, count: list[int]) -> None:
    """Whoever was given it may write at any time: it is computed for each call."""
    compiled = looks(meta.vm.compile(net, X))
    agrees(compiled, net)
    theirs = np.from_dlpack(net.table)
    for value in (1.0, 2.0):
        theirs[:] = value
        agrees(compiled, net)
    assert count == [15]


def test_of_memory_that_is_shared_nothing_is_kept(net: Model) -> None:
    theirs = np.from_dlpack(net.table)
    compiled = meta.vm.compile(net, X)
    assert not compiled.code.prepared
    for value in (1.0, 2.0):
        theirs[:] = value
        agrees(compiled, net)
    own = np.ones((2, 2), np.float32)
    net.table = meta.from_dlpack(own)
    compiled = meta.vm.compile(net, X)
    for value in (1.0, 2.0):
        own[:] = value
        agrees(compiled, net)


def test_inference_tensors(tmp_path: Path) -> None:
    """They have no counter: nothing is kept of them. What is loaded has one."""
    with torch.inference_mode():
        net = Net().eval()
        compiled = meta.vm.compile(net, X)
        assert not compiled.code.prepared
        agrees(compiled, net)
    meta.vm.compile(Net().eval(), X).save(tmp_path / "net")
    with torch.inference_mode():
        found = load(tmp_path / "net")
        first = found(X).torch()
        found.arrays[0].torch().mul_(2.0)
        assert not torch.equal(found(X).torch(), first)


def test_an_array_that_the_program_writes_under_another_name(count: list[int]) -> None:
    class Twice(Model):
        def build(self) -> None:
            self.a = meta.array(torch.zeros(3))
            self.b = meta.ndarray(self.a.torch().data)  # has a counter of its own

        @trace
        def forward(self, x: Any) -> Any:
            y = op.add(x, op.exp(self.b))
            op.multi_tensor_axpby((x,), (self.a,), 1.0, 1.0)
            return y

    model = Twice().eval()
    x = meta.array(torch.ones(3))
    compiled = meta.vm.compile(model, x)
    assert compiled.code.prepared == 1
    for n in range(3):
        torch.testing.assert_close(compiled(x).torch(), 1 + torch.full((3,), float(n)).exp())
    assert count == [3]


def test_training_keeps_nothing(net: Model) -> None:
    assert not meta.vm.compile(net.train(), X).code.prepared
    step = meta.model.value_and_grad(net)
    assert not meta.vm.compile(step, meta.array(torch.ones(2, 2)), X).code.prepared


@pytest.mark.parametrize("how", [{"opt_level": 1}, {"memory_budget": 1 << 20}])
def test_where_nothing_is_kept_nothing_is_folded(net: Model, how: dict[str, int]) -> None:
    compiled = meta.vm.compile(net, X, **how)
    assert not compiled.code.prepared
    assert any("batch_norm_infer" in line for line in str(compiled.module).splitlines())
    agrees(compiled, net)


def test_without_the_pass_nothing_is_folded(net: Model) -> None:
    with meta.PassContext(disabled=["prepare"]):
        compiled = meta.vm.compile(net, X)
    assert "batch_norm_infer" in str(compiled.module)


def test_saved_and_loaded(net: Model, tmp_path: Path, count: list[int]) -> None:
    compiled = meta.vm.compile(net, X)
    compiled.save(tmp_path / "net")
    found = load(tmp_path / "net")
    assert len(found.arrays) == len(compiled.arrays)
    agrees(found, net)
    assert count == [3]
    for ours, theirs in zip(net.state().values(), found.arrays, strict=False):
        assert ours.shape == theirs.shape
    (table,) = [a for a in found.arrays if a.shape == (2, 2)]
    table.update(torch.ones(2, 2))
    net.table.update(torch.ones(2, 2))
    agrees(found, net)


def test_from_the_program_cache(
    net: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    with config.override(META_PROGRAM_CACHE=True):
        assert meta.vm.compile(net, X).history
        again = meta.vm.compile(net, X)
    assert not again.history and again.code.prepared == 3
    agrees(again, net)


def test_results_are_not_in_memory_that_is_kept() -> None:
    class Gives(Model):
        def build(self) -> None:
            self.w = meta.array(torch.ones(2, 3))

        @trace
        def forward(self, x: Any) -> Any:
            half = op.astype(self.w, "float16")
            return half, op.reshape(half, (6,)), op.sum(x)

    model = Gives().eval()
    compiled = meta.vm.compile(model, X)
    assert compiled.code.prepared == 1
    for _ in range(2):
        first, second, _ = compiled(X)
        assert first.torch().eq(1).all() and second.torch().eq(1).all()
        first.torch().zero_()
        second.torch().zero_()


def test_graphs_keep_the_memory_of_what_is_prepared(net: Model, looks: Any, tape: Any) -> None:
    compiled = looks(meta.vm.compile(net, X))
    for _ in range(3):
        agrees(compiled, net)
    assert tape.recorded == 1 and tape.replays
    by_update(net)
    agrees(compiled, net)
    assert tape.recorded == 1
    by_exchange(net)
    for _ in range(2):
        agrees(compiled, net)
    assert tape.recorded == 2


def test_arrays_that_are_not_compact(net: Model) -> None:
    net.table = meta.ndarray(torch.randn(2, 2).T)
    compiled = meta.vm.compile(net, X)
    agrees(compiled, net)
    net.table.torch().add_(1.0)
    agrees(compiled, net)


def test_with_symbolic_dimensions(net: Model) -> None:
    compiled = meta.vm.compile(net, meta.ir.parse_type("float32[n, 3, 6, 6]"))
    assert compiled.code.prepared == 3
    agrees(compiled, net)


def test_control_flow(net: Model) -> None:
    class Loop(Model):
        def build(self) -> None:
            self.w = meta.array(torch.eye(3) * 0.5)

        @trace
        def forward(self, x: Any) -> Any:
            w = op.exp(self.w)
            return meta.while_loop(lambda x: op.less(op.sum(x), 50.0), lambda x: op.matmul(x, w), x)

    model = Loop().eval()
    x = meta.array(torch.ones(2, 3))
    compiled = meta.vm.compile(model, x)
    assert compiled.code.prepared == 1
    for _ in range(2):
        torch.testing.assert_close(compiled(x).torch(), model(x).torch())
        model.w.update(torch.eye(3) * 0.25)


class FirstStep(Model):
    """A recurrent network's first step: of its state, which is zeros, only weights are left."""

    def build(self) -> None:
        self.recurrent, self.first = Linear(4, 4), Linear(3, 4)

    @trace
    def forward(self, x: Any) -> Any:
        state = op.zeros((2, 4), "float32")
        return op.tanh(self.first(x) + self.recurrent(state))


def test_fused_kernels_are_not_looked_for_in_what_runs_once(count: list[int]) -> None:
    model, x = FirstStep().eval(), meta.array(torch.randn(2, 3))
    with meta.dialect.only("torch"):
        expected, compiled = model(x), meta.vm.compile(model, x)
        for _ in range(2):
            torch.testing.assert_close(compiled(x).torch(), expected.torch())
    assert count == [1]


def test_no_memory_to_prepare(net: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of the program, and the next call prepares."""
    x = meta.random.normal((2, 3, 5, 5))
    run, expected = meta.vm.compile(net, x), net(x).detach()

    def full(*_: Any) -> Any:
        raise OutOfMemory("there is not enough memory on cpu for a call", planned=1 << 60, free=9)

    with monkeypatch.context() as patch:
        patch.setattr("meta.vm.run.interpreter.run_module", full)
        with pytest.raises(OutOfMemory, match="before the first call") as caught:
            run(x)
    assert caught.value.planned == 1 << 60 and "memory_budget" in str(caught.value)
    assert caught.value.__context__ is None
    np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-6)
