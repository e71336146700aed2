"""Each optimizer over 20 steps, as torch's own or the paper's formulas in float64: eager, traced
and compiled, with parameters in float32 and in half precision with masters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
from meta import optim
from meta.testing import check
from tests.optim.problem import SHAPES, Given, double, gradients, runner

STEPS, RATE = 20, 0.05
ADAPTIVE = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1}
OPTIONS: dict[str, tuple[type[optim.Optimizer], Callable[..., Any], dict[str, Any]]] = {
    "sgd": (optim.SGD, optim.with_sgd, {}),
    "momentum": (optim.SGD, optim.with_sgd, {"momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": (optim.SGD, optim.with_sgd, {"momentum": 0.9, "nesterov": True}),
    "uphill": (optim.SGD, optim.with_sgd, {"momentum": 0.9, "weight_decay": 0.1, "maximize": True}),
    "adam": (optim.Adam, optim.with_adam, ADAPTIVE),
    "adam uphill": (optim.Adam, optim.with_adam, {**ADAPTIVE, "maximize": True}),
    "adamw": (optim.AdamW, optim.with_adamw, ADAPTIVE),
    "lamb": (optim.LAMB, optim.with_lamb, ADAPTIVE),
    "lans": (optim.LANS, optim.with_lans, ADAPTIVE),
    "rmsprop": (optim.RMSprop, optim.with_rmsprop, {"alpha": 0.8, "weight_decay": 0.1}),
    "rmsprop with momentum": (optim.RMSprop, optim.with_rmsprop, {"momentum": 0.9, "eps": 1e-3}),
    "rmsprop centered": (optim.RMSprop, optim.with_rmsprop, {"centered": True, "maximize": True}),
    "rmsprop with all": (
        optim.RMSprop,
        optim.with_rmsprop,
        {"alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1, "momentum": 0.5, "centered": True},
    ),
    "adagrad": (optim.Adagrad, optim.with_adagrad, {}),
    "adagrad with all": (
        optim.Adagrad,
        optim.with_adagrad,
        {
            "learning_rate_decay": 0.1,
            "weight_decay": 0.1,
            "initial_accumulator_value": 0.3,
            "eps": 1e-4,
            "maximize": True,
        },
    ),
    "lion": (optim.Lion, optim.with_lion, {"beta1": 0.8, "beta2": 0.95, "weight_decay": 0.1}),
}
TORCH: dict[type[optim.Optimizer], type[torch.optim.Optimizer]] = {
    optim.SGD: torch.optim.SGD,
    optim.Adam: torch.optim.Adam,
    optim.AdamW: torch.optim.AdamW,
    optim.RMSprop: torch.optim.RMSprop,
    optim.Adagrad: torch.optim.Adagrad,
}


def torch_step(name: str, params: dict[str, torch.nn.Parameter]) -> Callable[[], None]:
    kind, _, options = OPTIONS[name]
    renamed = {"learning_rate_decay": "lr_decay"}
    numbers = {renamed.get(n, n): x for n, x in options.items() if not n.startswith("beta")}
    if "beta1" in options:
        numbers["betas"] = options["beta1"], options["beta2"]
    return TORCH[kind](params.values(), lr=RATE, **numbers).step


def lion_step(name: str, params: dict[str, torch.nn.Parameter]) -> Callable[[], None]:
    """Lion, arXiv:2302.06675, program 1."""
    beta1, beta2, decay = OPTIONS[name][2].values()
    state = {n: torch.zeros_like(x) for n, x in params.items()}

    @torch.no_grad()
    def step() -> None:
        for n, x in params.items():
            m = state[n]
            u = (beta1 * m + (1 - beta1) * x.grad).sign()
            x.sub_(RATE * (u + decay * x))
            m.mul_(beta2).add_(x.grad, alpha=1 - beta2)

    return step


def paper_step(name: str, params: dict[str, torch.nn.Parameter]) -> Callable[[], None]:
    """LAMB (arXiv:1904.00962) and LANS (arXiv:2006.13484), algorithm 2 of each."""
    beta1, beta2, eps, decay = ADAPTIVE.values()
    state = {n: [torch.zeros_like(x), torch.zeros_like(x)] for n, x in params.items()}
    count = 0

    def along(part: torch.Tensor, divisor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        u = part / divisor + decay * x
        return u * x.norm() / u.norm()

    @torch.no_grad()
    def step() -> None:
        nonlocal count
        count += 1
        for n, x in params.items():
            g = x.grad / x.grad.norm() if name == "lans" else x.grad
            m, v = state[n]
            m.mul_(beta1).add_(g, alpha=1 - beta1)
            v.mul_(beta2).add_(g * g, alpha=1 - beta2)
            divisor = (v / (1 - beta2**count)).sqrt() + eps
            u = along(m / (1 - beta1**count), divisor, x)
            if name == "lans":
                u = beta1 * u + (1 - beta1) * along(g, divisor, x)
            x.sub_(RATE * u)

    return step


def expected(name: str, model: Given, dtype: str) -> dict[str, torch.nn.Parameter]:
    """Return the parameters after all steps."""
    params = double(model)
    make = {"lamb": paper_step, "lans": paper_step, "lion": lion_step}.get(name, torch_step)
    step = make(name, params)
    for given in gradients(STEPS, dtype):
        for x, g in zip(params.values(), given, strict=True):
            x.grad = g.torch().double()
        step()
    return params


@pytest.mark.parametrize("name", OPTIONS)
def test_an_eager_loop(name: str) -> None:
    kind, _, options = OPTIONS[name]
    model = Given()
    wanted = expected(name, model, "float32")
    optimizer = kind(model.parameters(), RATE, **options)
    for given in gradients(STEPS):
        optimizer.zero_grad()
        model.forward.function(model, *given).backward()
        optimizer.step()
    for n, x in wanted.items():
        check(getattr(model, n), x, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("interpreter", "float16"), ("vm", "float32"), ("vm", "float16"), ("vm", "bfloat16")],
)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_training_step(name: str, mode: str, dtype: str) -> None:
    _, maker, options = OPTIONS[name]
    model = Given(dtype)
    wanted = expected(name, model, dtype)
    step = maker(RATE, **options)(model)
    run = runner(step, mode, dtype)
    for given in gradients(STEPS, dtype):
        run(*given)
    for n, x in wanted.items():
        own = getattr(model, n)
        master = step.optimizer.master.get(n, own)
        assert (master is own) == (dtype == "float32")
        check(master, x, 1e-5, 1e-5)
        assert torch.equal(own.torch(), master.torch().to(own.torch().dtype))
    assert step.optimizer.step_count.item() == STEPS


def test_without_masters_half_precision_parameters_are_their_own() -> None:
    model = Given("float16")
    step = optim.with_adamw(RATE, master_weights=False)(model)
    for given in gradients(2, "float16"):
        step(meta.array(1.0), *given)
    assert not step.optimizer.master
    assert {v.dtype for v in step.optimizer.v.values()} == {"float16"}


def test_one_call_updates_all_parameters() -> None:
    """As many calls for 200 tensors as for one: the count of steps, and the update."""

    class Many(meta.Model):
        def build(self) -> None:
            self.arrays = [meta.array(torch.ones(1 + i % 7)) for i in range(200)]
            for array in self.arrays:
                array.requires_grad = True

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            return meta.sum(meta.concatenate([a * x for a in self.arrays], 0))

    groups = [{"params": "arrays.*0", "weight_decay": 0.0, "learning_rate": 0.2}]
    step = optim.with_adamw(0.1, groups=groups)(Many())
    with meta.dialect.prefer("torch"):  # generated code for 200 arrays takes long to compile
        executable = meta.vm.compile(step, meta.array(1.0), meta.array(2.0), opt_level=0)
    kernels = executable.kernels()
    calls = {name: count for name, count in kernels.items() if "multi_tensor" in name}
    assert calls == {"torch.multi_tensor_axpby": 1, "torch.multi_tensor_adamw": 1}


def test_every_shape_is_met() -> None:
    assert list(SHAPES) == list(Given().parameters())
