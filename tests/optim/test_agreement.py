"""Each optimizer over 20 steps, as torch's own or the paper's formulas in float64: eager, traced
and compiled, with parameters in float32 and in half precision with masters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

import meta
from meta import optim
from meta.testing import check
from tests.optim.problem import SHAPES, Given, double, gradients, runner

STEPS, RATE = 20, 0.05
ADAPTIVE = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
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
            "lr_decay": 0.1,
            "weight_decay": 0.1,
            "initial_accumulator_value": 0.3,
            "eps": 1e-4,
            "maximize": True,
        },
    ),
    "lion": (optim.Lion, optim.with_lion, {"betas": (0.8, 0.95), "weight_decay": 0.1}),
    "adafactor": (optim.Adafactor, optim.with_adafactor, {}),
    "adafactor with all": (
        optim.Adafactor,
        optim.with_adafactor,
        {
            "beta2_decay": 0.7,
            "eps1": 1e-4,
            "eps2": 0.2,
            "d": 1.1,
            "weight_decay": 0.1,
            "maximize": True,
        },
    ),
    "muon": (optim.Muon, optim.with_muon, {}),
    "muon with all": (
        optim.Muon,
        optim.with_muon,
        {
            "weight_decay": 0.2,
            "momentum": 0.8,
            "nesterov": False,
            "eps": 1e-6,
            "ns_steps": 4,
            "match_rms_adamw": True,
            "betas": (0.8, 0.9),
        },
    ),
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
    return TORCH[kind](params.values(), lr=RATE, **options).step


def adafactor_step(name: str, params: dict[str, torch.nn.Parameter]) -> Callable[[], None]:
    options = dict(OPTIONS[name][2])
    numbers: dict[str, Any] = {
        "eps": (options.pop("eps1", 2.0**-23), options.pop("eps2", 1e-3)),
        "beta2_decay": -options.pop("beta2_decay", 0.8),
    }
    return torch.optim.Adafactor(params.values(), lr=RATE, **numbers, **options).step


@contextmanager
def of_one_dtype() -> Iterator[None]:
    """Keep torch.optim.Muon's iteration in the dtype of its parameter: it takes bfloat16, to 2.14
    by one method of tensors and then by another.
    """
    convert = torch.Tensor.to

    def to(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        kept = kwargs.get("dtype") == torch.bfloat16
        return x.clone() if kept else convert(x, *args, **kwargs)

    tensor = torch.Tensor
    with mock.patch.multiple(tensor, bfloat16=tensor.clone, to=to):
        yield


def muon_step(name: str, params: dict[str, torch.nn.Parameter]) -> Callable[[], None]:
    """torch.optim.Muon, whose iteration is kept in float64, for the matrix; AdamW for the rest."""
    options = dict(OPTIONS[name][2])
    betas = options.pop("betas", (0.9, 0.95))
    matching = {"adjust_lr_fn": "match_rms_adamw"} if options.pop("match_rms_adamw", False) else {}
    muon = torch.optim.Muon([params["weight"]], lr=RATE, **matching, **options)
    others = [x for n, x in params.items() if n != "weight"]
    shared = {"eps": options.get("eps", 1e-7), "weight_decay": options.get("weight_decay", 0.1)}
    adamw = torch.optim.AdamW(others, lr=RATE, betas=betas, **shared)

    def step() -> None:
        with of_one_dtype():
            muon.step()
        adamw.step()

    return step


def lion_step(name: str, params: dict[str, torch.nn.Parameter]) -> Callable[[], None]:
    """Lion, arXiv:2302.06675, program 1."""
    (beta1, beta2), decay = OPTIONS[name][2].values()
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
    (beta1, beta2), eps, decay = ADAPTIVE.values()
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
    makers = {
        "lamb": paper_step,
        "lans": paper_step,
        "lion": lion_step,
        "adafactor": adafactor_step,
        "muon": muon_step,
    }
    make = makers.get(name.split()[0], torch_step)
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
    optimizer = kind(model.named_parameters(), RATE, **options)
    for given in gradients(STEPS):
        optimizer.zero_grad()
        model.forward.function(model, *given).backward()
        optimizer.step()
    for n, x in wanted.items():
        check(getattr(model, n), x, 1e-5, 1e-5)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("interpreter", "float16"), ("vm", "float32"), ("vm", "float16"), ("vm", "bfloat16")],
)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.long
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
            return meta.sum(meta.concat([a * x for a in self.arrays], 0))

    groups = [{"params": "arrays.*0", "weight_decay": 0.0, "lr": 0.2}]
    step = optim.with_adamw(0.1, groups=groups)(Many())
    with meta.dialect.prefer("torch"):  # generated code for 200 arrays takes long to compile
        executable = meta.vm.compile(step, meta.array(1.0), meta.array(2.0), opt_level=0)
    kernels = executable.kernels()
    calls = {name: count for name, count in kernels.items() if "multi_tensor" in name}
    assert calls == {"torch.multi_tensor_axpby": 1, "torch.multi_tensor_adamw": 1}


SHAPES_OF_MUON = [(4, 3), (3, 4), (5, 2, 3, 3), (1, 6)]


@pytest.mark.parametrize("shape", SHAPES_OF_MUON, ids=str)
def test_muon_takes_all_axes_behind_the_first_as_one(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator, dtype=torch.float64)
    gradient = torch.randn(shape, generator=generator, dtype=torch.float64)
    theirs = torch.nn.Parameter(start.reshape(shape[0], -1).clone())
    theirs.grad = gradient.reshape(shape[0], -1)
    own = meta.array(start)
    own.requires_grad = True
    own.grad = meta.array(gradient)
    with of_one_dtype():
        torch.optim.Muon([theirs], lr=0.0625).step()  # a float32, as a learning rate is here
    optim.Muon([own], 0.0625).step()
    check(own, theirs.detach().reshape(shape), 1e-12, 1e-12)


def test_muon_makes_a_momentum_about_orthogonal() -> None:
    own = meta.array(torch.zeros(8, 5))
    own.requires_grad = True
    own.grad = meta.array(torch.randn(8, 5, generator=torch.Generator().manual_seed(0)))
    optim.Muon([own], 1.0, match_rms_adamw=True).step()
    values = torch.linalg.svdvals(own.torch()) / (0.2 * 8**0.5)
    assert values.min() > 0.6 and values.max() < 1.3


def test_what_is_not_orthogonal_has_the_step_of_adamw() -> None:
    muon, adamw = Given(), Given()
    ours = optim.Muon(muon.named_parameters(), RATE, groups=[{"params": "*", "orthogonal": False}])
    theirs = optim.AdamW(adamw.named_parameters(), RATE, (0.9, 0.95), 1e-7, weight_decay=0.1)
    assert not ours.velocity
    for given in gradients(3):
        for model in (muon, adamw):
            for n, g in zip(SHAPES, given, strict=True):
                getattr(model, n).grad = g
        ours.step()
        theirs.step()
    for n in SHAPES:
        assert torch.equal(getattr(muon, n).torch(), getattr(adamw, n).torch())


def test_adafactor_keeps_rows_and_columns() -> None:
    shapes = {"a": (), "b": (7,), "c": (4, 3), "d": (2, 4, 3), "e": (0, 3)}
    params = {n: meta.array(torch.ones(s)) for n, s in shapes.items()}
    twins = {n: torch.nn.Parameter(torch.ones(s, dtype=torch.float64)) for n, s in shapes.items()}
    for array in params.values():
        array.requires_grad = True
    optimizer = optim.Adafactor(params, RATE)
    assert {n: v.shape for n, v in optimizer.v.items()} == {"a": (), "b": (7,)}
    assert {n: v.shape for n, v in optimizer.rows.items()} == {
        "c": (4, 1),
        "d": (2, 4, 1),
        "e": (0, 1),
    }
    assert optimizer.columns["d"].shape == (2, 1, 3)
    filled = {n: x for n, x in twins.items() if n != "e"}
    theirs = torch.optim.Adafactor(filled.values(), lr=RATE, eps=(2.0**-23, 1e-3))
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for n, x in twins.items():
            x.grad = torch.randn(x.shape, generator=generator, dtype=torch.float64)
            params[n].grad = meta.array(x.grad, "float32")
        theirs.step()
        optimizer.step()
    for n, x in filled.items():
        check(params[n], x, 1e-5, 1e-6)


@pytest.mark.parametrize("kind", [optim.Adafactor, optim.Muon])
def test_a_gradient_of_zeros_is_no_step(kind: type[optim.Optimizer]) -> None:
    model = Given()
    optimizer = kind(model.named_parameters(), RATE, weight_decay=0.0)
    before = {n: getattr(model, n).numpy() for n in SHAPES}
    for n in SHAPES:
        getattr(model, n).grad = meta.zeros_like(getattr(model, n))
    optimizer.step()
    for n in SHAPES:
        assert (getattr(model, n).numpy() == before[n]).all()


def test_every_shape_is_met() -> None:
    assert list(SHAPES) == list(dict(Given().named_parameters()))
