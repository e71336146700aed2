"""Weights of a compiled module are set by name, all or none; nothing is compiled or stale."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import meta
from meta import amp
from meta.base.errors import ArgumentError, UnknownName
from meta.dialect.tvm import build
from meta.model import Model, trace
from meta.passes import Pipeline
from meta.vm import compilation
from tests.vm.modules.networks import CASES, MLP, ResNet, compiled, expected, gpt2, made, numbers
from tests.vm.modules.test_run import close


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is compiled: programs by passes, their code, their kernels, and machine code."""
    found: list[str] = []
    for owner, name in (
        (Pipeline, "__call__"),
        (compilation, "bind_kernels"),
        (compilation, "emit"),
        (build, "_compile"),
    ):
        original = getattr(owner, name)

        def counted(*args: Any, _original: Any = original, _name: str = name, **more: Any) -> Any:
            found.append(_name)
            return _original(*args, **more)

        monkeypatch.setattr(owner, name, counted)
    return found


def others(model: Model) -> dict[str, torch.Tensor]:
    """Return other values for all arrays of a model, each once."""
    return {
        name: torch.rand(a.shape, generator=torch.Generator().manual_seed(i)).to(a.torch().dtype)
        + (0.5 if "running" in name else -0.5)
        for i, (name, a) in enumerate(model.state().items())
    }


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_all_weights_are_set(name: str, dynamic: bool, compilations: list[str]) -> None:
    case = CASES[name]
    model, other = made(case), case.make().eval()
    module = compiled(case, model, dynamic)
    inputs = case.inputs(3)
    first = module.run_with_tensors(inputs)
    assert {"__call__", "bind_kernels", "emit"} <= set(compilations)
    compilations.clear()
    values = others(model)
    kept = {n: a.torch().detach().clone() for n, a in model.state().items()}
    other.load_state_dict(values)
    wanted = expected(other, inputs)
    compilations.clear()
    module.set_many_constants(values)
    close(module.run_with_tensors(inputs), wanted)
    close(
        module.run_with_tensors(inputs, {k: torch.empty_like(v) for k, v in wanted.items()}), wanted
    )
    for n, value in kept.items():  # one by one
        module.set_constant_with_tensor(n, value)
    close(module.run_with_tensors(inputs), first)
    assert compilations == []


def test_what_is_folded_is_computed_anew() -> None:
    model = made(CASES["resnet"])
    module = compiled(CASES["resnet"], model, dynamic=False)
    assert module.executable.code.prepared >= 4
    assert not [k for k in module.executable.kernels() if "batch_norm" in k]
    x = CASES["resnet"].inputs(3)
    names = ("norm1.running_var", "norm2.weight", "conv2.weight", "norm1.bias", "head.bias")
    for name in names:
        before = module.run_with_tensors(x)
        module.set_constant_with_tensor(name, numbers(*model.state()[name].shape).abs() + 0.3)
        close(module.run_with_tensors(x), expected(model, x))
        assert not torch.allclose(before["output"], module.run_with_tensors(x)["output"])


def test_joined_products_are_joined_anew() -> None:
    class Three(Model):
        def build(self) -> None:
            self.q, self.k, self.v = (meta.model.Linear(32, 32, bias=False) for _ in range(3))

        @trace
        def forward(self, x: Any) -> Any:
            return self.q(x) + self.k(x).exp() * self.v(x)

    meta.random.seed(0)
    model = Three().eval()
    x = [numbers(4, 32)]
    module = meta.compile_model(model, *x)
    for name in module.constant_names:
        module.set_constant_with_tensor(name, numbers(32, 32) * 0.1)
        close(module.run_with_tensors(x), expected(model, x))


def test_tied_weights() -> None:
    """One array under two names is set by either; by both if they are equal."""
    model = made(CASES["gpt2"])
    module = compiled(CASES["gpt2"], model, dynamic=False)
    tokens, head = "transformer.wte.weight", "lm_head.weight"
    assert {tokens, head} <= set(module.constant_names)
    inputs = CASES["gpt2"].inputs(3)
    for value, names in ((0.1, [tokens]), (0.2, [head]), (0.3, [head, tokens])):
        weight = numbers(20, 8) * value
        module.set_many_constants({n: weight.clone() for n in names})
        torch.testing.assert_close(model.state_dict()[head].torch().detach(), weight)
        close(module.run_with_tensors(inputs), expected(model, inputs))
    with pytest.raises(ArgumentError, match="are one array, and are given different values"):
        module.set_many_constants({head: numbers(20, 8), tokens: numbers(20, 8) + 1})
    torch.testing.assert_close(model.state_dict()[head].torch().detach(), numbers(20, 8) * 0.3)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "unknown": (
        {"first.wieght": torch.zeros(1)}, UnknownName,
        "no constant 'first.wieght'(.|\n)*first.weight",
    ),
    "shape": (
        {"first.weight": torch.zeros(6, 16)}, ArgumentError,
        r"'first.weight' is float32\[16, 6\], and the tensor float32\[6, 16\]",
    ),
    "dtype": (
        {"first.bias": torch.zeros(16, dtype=torch.bfloat16)}, ArgumentError,
        r"'first.bias' is float32\[16\], and the tensor bfloat16",
    ),
    "all of them": (
        {"first.bias": torch.zeros(1), "last.bias": torch.zeros(3).double()}, ArgumentError,
        "'first.bias' is(.|\n)*'last.bias' is",
    ),
    "no tensor": ({"first.bias": [0.0] * 16}, ArgumentError, "constant 'first.bias' is no tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_all_or_none(name: str) -> None:
    case = CASES["mlp"]
    model = made(case)
    module = compiled(case, model, dynamic=False)
    before = {n: a.torch().detach().clone() for n, a in model.state().items()}
    given, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        module.set_many_constants({"last.weight": torch.zeros(3, 16), **given})
    assert all(torch.equal(a.torch(), before[n]) for n, a in model.state().items())
    with pytest.raises(ArgumentError, match="constants are set by name"):
        module.set_many_constants([torch.zeros(3, 16)])  # type: ignore[arg-type]


def test_an_array_that_cannot_be_written() -> None:
    model = MLP().eval()
    model.last.bias = meta.asarray(torch.zeros(1).expand(3))
    model.first.bias = meta.asarray(torch.zeros(16))
    case = CASES["mlp"]
    module = compiled(case, model, dynamic=False)
    with pytest.raises(ArgumentError, match=r"constant 'last.bias': .* share memory"):
        module.set_many_constants({"first.bias": torch.ones(16), "last.bias": torch.ones(3)})
    assert model.first.bias.tolist() == [0.0] * 16


def test_constants_that_are_exchanged() -> None:
    class Two(Model):
        def build(self) -> None:
            self.a, self.b = meta.zeros((2,)), meta.ones((2,))

        @trace
        def forward(self, x: Any) -> Any:
            return x + self.a - self.b

    model = Two().eval()
    module = meta.compile_model(model, torch.zeros(2))
    module.set_many_constants({"a": model.b, "b": model.a})
    assert module.run_with_tensors([torch.zeros(2)])["output"].tolist() == [1.0, 1.0]
    module.set_many_constants({"a": model.a, "b": model.a.torch()[1:].expand(2)})
    assert module.run_with_tensors([torch.zeros(2)])["output"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["mlp", "resnet", "gpt2"])
def test_after_autocast(name: str) -> None:
    """The program computes in bfloat16; a constant stays what it is in the model."""
    case = CASES[name]
    model = made(case)
    half = amp.autocast(model, "bfloat16")
    module = compiled(case, half, dynamic=False)
    inputs = case.inputs(3)
    assert any("bfloat16" in str(t) for _, t in module.executable.code.params)
    values = others(model)
    module.set_many_constants(values)
    found = module.run_with_tensors(inputs)
    wanted = expected(half, inputs)
    for key in wanted:
        torch.testing.assert_close(found[key], wanted[key], rtol=0.05, atol=0.05)
    one = next(n for n, v in values.items() if v.dtype == torch.float32)
    with pytest.raises(ArgumentError, match="is float32"):
        module.set_constant_with_tensor(one, values[one].bfloat16())


def test_names_that_the_program_does_not_use() -> None:
    class Half(Model):
        def build(self) -> None:
            self.used, self.other = meta.ones((2,)), meta.ones((3,))

        @trace
        def forward(self, x: Any) -> Any:
            return x * self.used

    model = Half().eval()
    module = meta.compile_model(model, torch.ones(2))
    assert module.constant_names == ["used"]
    module.set_many_constants({"used": torch.full((2,), 2.0), "other": torch.full((3,), 3.0)})
    assert model.other.tolist() == [3.0] * 3
    with pytest.raises(ArgumentError, match="'other' is"):
        module.set_many_constants({"used": torch.ones(2), "other": torch.ones(2)})
    assert module.run_with_tensors([torch.ones(2)])["output"].tolist() == [2.0, 2.0]


def test_a_model_in_train_mode() -> None:
    model = made(CASES["resnet"]).train()
    module = compiled(CASES["resnet"], model, dynamic=False)
    x = CASES["resnet"].inputs(3)
    module.run_with_tensors(x)  # writes the statistics
    state = {n: a.torch().detach().clone() for n, a in model.state().items()}
    other = ResNet().train()
    other.load_state_dict(state)
    wanted = expected(other, x)
    found = module.run_with_tensors(x)
    close(found, wanted)
    for n, a in other.state().items():
        torch.testing.assert_close(model.state()[n].torch(), a.torch())
    values = others(model)
    module.set_many_constants(values)
    other.load_state_dict(values)
    close(module.run_with_tensors(x), expected(other, x))


def test_nothing_prepared() -> None:
    """Neither with a budget, nor where the pass does not run, is anything kept."""
    case = CASES["resnet"]
    for options, disabled in (({"memory_budget": 1 << 20}, []), ({}, ["prepare"])):
        model = made(case)
        with meta.PassContext(disabled=disabled):
            module = compiled(case, model, dynamic=False, **options)
        assert module.executable.code.prepared == 0
        module.set_many_constants(others(model))
        close(module.run_with_tensors(case.inputs(3)), expected(model, case.inputs(3)))


@pytest.fixture
def pair() -> Iterator[Any]:
    class Pair(Model):
        def build(self) -> None:
            self.a, self.b = meta.zeros((64, 64)), meta.zeros((64, 64))

        @trace
        def forward(self, x: Any) -> Any:
            return self.a @ x + self.a, x @ self.b + self.b

    yield meta.compile_model(Pair().eval(), torch.zeros(64, 64))


def test_no_run_sees_half_of_what_is_set(pair: Any) -> None:
    done = threading.Event()

    def setting() -> None:
        for i in range(150):
            value = torch.full((64, 64), float(i))
            pair.set_many_constants({"a": value, "b": value})
        done.set()

    thread = threading.Thread(target=setting)
    thread.start()
    torn = 0
    while not done.is_set():
        a, b = pair.run_with_tensors([torch.zeros(64, 64)]).values()
        torn += not (torch.equal(a, b) and bool((a == a[0, 0]).all()))
    thread.join()
    assert torn == 0
    assert pair.run_with_tensors([torch.zeros(64, 64)])["output_0"][0, 0] == 149.0


def test_gpt2_names_are_those_of_transformers() -> None:
    module = meta.compile_model(gpt2().eval(), torch.zeros(1, 3, dtype=torch.int64))
    assert "transformer.h.0.attn.c_attn.weight" in module.constant_names


def test_a_training_step() -> None:
    """A step of an optimizer is a module, too: parameters and its state are constants."""
    net = meta.model.Linear(4, 3)
    step = meta.optim.with_sgd(lr=0.1, momentum=0.9)(net)
    dy, x = torch.ones(2, 3), torch.ones(2, 4)
    module = meta.compile_model(step, dy, x)
    assert {"model.weight", "optimizer.velocity.weight", "lr"} <= set(module.constant_names)
    for _ in range(2):
        module.set_many_constants(
            {"model.weight": torch.zeros(3, 4), "optimizer.velocity.weight": torch.ones(3, 4)}
        )
        module.run_with_tensors([dy, x])
        # dw is 2 everywhere: velocity 0.9 * 1 + 2, times the learning rate.
        torch.testing.assert_close(net.weight.torch().detach(), torch.full((3, 4), -0.29))
    module.benchmark_with_tensors([dy, x], count=2, repeat=2)
    torch.testing.assert_close(net.weight.torch().detach(), torch.full((3, 4), -0.29))
