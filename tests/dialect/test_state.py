"""State that a dialect operator's init makes: once per device and key, counted, released with the
kernels, on one device only, and the same for an operator and its gradient.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.device import CPU, Device
from meta.base.errors import DeviceError, DispatchError, MetaError, RegistrationError
from meta.base.registry import OPERATORS
from meta.dialect import Dialect, OpEnv
from meta.dialect.core import Configs, dispatch
from meta.dialect.core.preference import forget
from meta.dialect.core.state import State
from meta.grad.core import gradient
from meta.op.core import CallValues, Op, Scalar, Tensor, TensorType, op
from tests.registered import remove_dialects

X = TensorType((2, 3), "float32")


@pytest.fixture
def make_dialect() -> Iterator[Callable[..., Dialect]]:
    """Make dialects that are forgotten, with their operators, after the test."""
    made: list[Dialect] = []

    def new(name: str, **options: Any) -> Dialect:
        made.append(Dialect(name, **{"devices": ("cpu",), **options}))
        return made[-1]

    yield new
    remove_dialects(*made)


@pytest.fixture
def masked() -> Iterator[tuple[Op, Op]]:
    """An operator, ``x * mask * by``, and its gradient operator."""

    @op
    def masked(x: Tensor, by: Scalar = 1.0, seed: int = 0) -> Tensor:
        """Multiply by the mask that is drawn from a seed, and by a number."""
        return x

    @op
    def masked_dx(x: Tensor, dy: Tensor, by: Scalar = 1.0, seed: int = 0) -> Tensor:
        """The gradient of `masked`."""
        return dy

    @gradient(masked)
    def rule(x: TensorType, dy: Any, by: Any, seed: Any) -> Any:
        # The type is all that the kernel needs; what stands for x here is dy, which is like it.
        return masked_dx(dy, dy, by, seed)

    yield masked, masked_dx
    for name in ("masked", "masked_dx"):
        OPERATORS.remove(name)


@dataclass
class Drawn:
    """A state with tensors in a nested container, and an object that says its size."""

    mask: torch.Tensor
    more: dict[str, Any]


class Descriptor:
    nbytes = 100


def draw(x: TensorType, seed: int, device: Device) -> Drawn:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(x.static_shape, generator=generator).round()
    return Drawn(mask, {"views": [mask[0], mask[1]], "descriptor": Descriptor()})


def register(dialect: Dialect, ops: tuple[Op, Op], init: Callable[..., Any] = draw) -> list[str]:
    """Register both operators on a dialect; returns what has run."""
    ran: list[str] = []

    def counted(x: TensorType, seed: int, device: Device) -> Any:
        ran.append("init")
        return init(x, seed, device)

    @dialect.kernel(ops[0], init=counted)
    def masked(x: torch.Tensor, by: float, state: Drawn) -> torch.Tensor:
        ran.append("forward")
        return x * state.mask * by

    @dialect.kernel(ops[1], state_of=ops[0])
    def masked_dx(dy: torch.Tensor, by: float, state: Drawn, out: torch.Tensor) -> None:
        ran.append("backward")
        torch.mul(dy, state.mask * by, out=out)

    return ran


def call(base: Op, *args: Any, device: Device = CPU) -> CallValues:
    return base.call_values(base.schema.bind(args, {}, lambda t: t), device)


def expected(seed: int = 0) -> torch.Tensor:
    return draw(X, seed, CPU).mask


def test_forward_and_gradient_share_what_init_made_once(make_dialect: Any, masked: Any) -> None:
    ran = register(make_dialect("mine"), masked)
    x = meta.ones((2, 3))
    x.requires_grad = True
    for _ in range(2):
        x.grad = None
        y = masked[0](x, 2.0, 7)
        assert torch.equal(y.torch().detach(), expected(7) * 2)
        y.backward(meta.ones((2, 3)))
        assert torch.equal(x.grad.torch(), expected(7) * 2)
    assert ran == ["init", "forward", "backward", "forward", "backward"]
    masked[0](x, 3.0, 7)  # a number at run time is not part of the key
    assert ran.count("init") == 1
    masked[0](x, 2.0, 8)
    masked[0](meta.ones((3, 3)), 2.0, 7)
    assert ran.count("init") == 3


def test_a_compiled_program_has_the_state_too(
    make_dialect: Any, masked: Any, tmp_path: Path
) -> None:
    ran = register(make_dialect("mine"), masked)

    @meta.model.trace
    def run(x: Any) -> Any:
        return masked[0](masked[0](x, 2.0, 7), 3.0, 7)

    x = meta.ones((2, 3))
    program = meta.vm.compile(run, x)
    assert ran == ["init"]  # when its kernels are bound, before a CUDA graph may hold it
    assert torch.equal(program(x).torch(), expected(7) * 6)
    assert program.memory().states == 2 * 3 * 4 + 100
    assert "states 124" in str(program.memory())
    program.save(tmp_path / "saved")
    assert torch.equal(meta.vm.load(tmp_path / "saved")(x).torch(), expected(7) * 6)
    grads = meta.grad.value_and_grad(lambda x: run(x).sum())(x)[1]
    assert torch.equal(grads.torch(), expected(7) * 6)
    assert ran.count("init") == 1


def test_makers_are_given_it_first(make_dialect: Any, masked: Any) -> None:
    mine = make_dialect("mine")

    @mine.op(masked[0], init=draw)
    def maker(call: CallValues) -> OpEnv:
        return OpEnv(lambda state, x, by: x * state.mask * by, allocates=True, strided=True)

    assert torch.equal(masked[0](meta.ones((2, 3)), 2.0, 7).torch(), expected(7) * 2)


def test_bytes_are_counted_once_it_is_made(make_dialect: Any, masked: Any) -> None:
    register(make_dialect("mine"), masked)
    env = dispatch(call(masked[0], X, 1.0, 3))
    assert env.state is not None and not env.state.made and env.state_bytes == 0
    env.run(torch.ones(2, 3), 1.0)
    assert env.state.made and env.state_bytes == 2 * 3 * 4 + 100
    assert dispatch(call(meta.op.relu, X)).state_bytes == 0


class Slotted:
    """An object that is no container of its own: its attributes count."""

    def __init__(self, *parts: Any) -> None:
        self.parts, self.itself = parts, self


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (None, 0),
        (3, 0),
        (torch.zeros(5), 20),
        ([torch.zeros(5), {"a": (torch.zeros(2, dtype=torch.float64),)}], 36),
        (meta.zeros(5), 20),
        (Descriptor(), 100),
        (Slotted(torch.zeros(5), Slotted(torch.zeros(1)), torch, len, draw, int), 24),
        (torch.nn.Linear(3, 2), 32),
    ],
    ids=lambda value: type(value).__name__,  # the same in each process of a parallel run
)
def test_what_counts(value: Any, nbytes: int) -> None:
    state = State("an.operator", CPU, lambda: value)
    assert state.nbytes == 0
    state.get(CPU)
    assert state.nbytes == nbytes


def test_it_is_released_with_the_last_kernel(make_dialect: Any, masked: Any) -> None:
    register(make_dialect("mine"), masked)
    env, other = dispatch(call(masked[0], X)), dispatch(call(masked[1], X, X))
    assert env.state is other.state
    value = weakref.ref(env.state.get(CPU))
    kernel = weakref.ref(env)
    del env
    forget()
    gc.collect()
    assert kernel() is None and value() is not None
    del other
    gc.collect()
    assert value() is None


def test_devices_have_their_own(make_dialect: Any, masked: Any) -> None:
    register(make_dialect("mine", devices=("cpu", "cuda")), masked)
    there = [Device("cuda:0"), Device("cuda:1")]
    with meta.dialect.only("mine"):
        envs = [dispatch(call(masked[0], X, device=d)) for d in (CPU, *there)]
    states = [env.state for env in envs]
    assert len(set(map(id, states))) == 3
    assert [s.device for s in states] == [CPU, *there]
    with pytest.raises(DeviceError, match=r"(?s)state of mine.masked.*cuda:1.*cuda:0"):
        states[1].get(there[1])


def test_threads_wait_for_one_init(make_dialect: Any, masked: Any) -> None:
    def slow(*args: Any) -> Drawn:
        time.sleep(0.05)
        return draw(*args)

    ran = register(make_dialect("mine"), masked, slow)
    found: list[torch.Tensor] = []

    def work() -> None:
        found.append(masked[0](meta.ones((2, 3)), 1.0, 5).torch())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran.count("init") == 1 and len(found) == 8
    assert all(torch.equal(f, expected(5)) for f in found)


def test_an_init_that_fails_runs_again(make_dialect: Any, masked: Any) -> None:
    fails = [True]

    def init(*args: Any) -> Drawn:
        if fails.pop() if fails else False:
            raise RuntimeError("no room")
        return draw(*args)

    register(make_dialect("mine"), masked, init)
    with pytest.raises(MetaError, match="no room"):
        masked[0](meta.ones((2, 3)))
    assert torch.equal(masked[0](meta.ones((2, 3))).torch(), expected())


class TestPinned:
    """The gradient runs on the dialect that runs the forward call."""

    def test_to_the_dialect_with_the_state(self, make_dialect: Any, masked: Any) -> None:
        register(make_dialect("mine"), masked)
        other = make_dialect("other", plevel=20)

        @other.kernel(masked[1])
        def stateless(dy: torch.Tensor) -> torch.Tensor:
            return dy

        candidates = meta.explain(masked[1], meta.ones((2, 3)), meta.ones((2, 3)))
        assert candidates.chosen.dialect_op.name == "mine.masked_dx"
        assert "uses the state of mine.masked" in str(candidates)
        with meta.dialect.exclude("mine"), pytest.raises(DispatchError, match="no dialect"):
            masked[0](meta.ones((2, 3)))

    def test_away_from_one_that_did_not_run(self, make_dialect: Any, masked: Any) -> None:
        register(make_dialect("mine"), masked)
        other = make_dialect("other", plevel=20)

        @other.kernel(masked[0])
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 10

        x = meta.ones((2, 3))
        x.requires_grad = True
        with pytest.raises(DispatchError, match=r"other.masked runs the forward call"):
            masked[0](x).backward(meta.ones((2, 3)))

        @other.kernel(masked[1])
        def backward(dy: torch.Tensor) -> torch.Tensor:
            return dy * 10

        masked[0](x).backward(meta.ones((2, 3)))
        assert (x.grad == 10).all()

    def test_one_that_is_named_is_not_asked(self, make_dialect: Any, masked: Any) -> None:
        register(make_dialect("mine"), masked)
        other = make_dialect("other")

        @other.kernel(masked[1])
        def stateless(dy: torch.Tensor) -> torch.Tensor:
            return dy * 3

        x, dy = meta.ones((2, 3)), meta.ones((2, 3))
        assert (meta.op.other.masked_dx(x, dy) == 3).all()  # it has no forward kernel
        assert torch.equal(meta.op.mine.masked_dx(x, dy).torch(), expected())
        with meta.dialect.only("mine", "other"):
            assert torch.equal(masked[1](x, dy).torch(), expected())


def test_configurations_have_the_state(make_dialect: Any, masked: Any) -> None:
    def kernel(times: float) -> OpEnv:
        def run(state: Drawn, x: torch.Tensor, by: float) -> torch.Tensor:
            return x * state.mask * by * times

        configs = Configs(lambda: [(("times", 2),)], lambda c: kernel(dict(c)["times"]))
        return OpEnv(run, allocates=True, strided=True, configs=configs)

    mine = make_dialect("mine")
    mine.op(masked[0], init=draw)(lambda call: kernel(1.0))
    x = meta.ones((2, 3))
    found = mine.ops["masked"].configured((("times", 2),))(x, 1.0, 7)
    assert torch.equal(found.torch(), expected(7) * 2)
    assert torch.equal(masked[0](x, 1.0, 7).torch(), expected(7))


class TestRegistration:
    def test_init_asks_for_what_a_call_knows(self, make_dialect: Any, masked: Any) -> None:
        mine = make_dialect("mine")
        for wrong in (lambda by: None, lambda weight: None):
            with pytest.raises(RegistrationError, match="asks for"):
                mine.kernel(masked[0], init=wrong)(lambda x: x)

    def test_the_gradient_has_the_arguments(self, make_dialect: Any, masked: Any) -> None:
        mine = make_dialect("mine")
        with pytest.raises(RegistrationError, match="cannot use the state"):
            mine.kernel(masked[1], state_of=masked[0])(lambda dy: dy)
        mine.kernel(masked[0], init=draw)(lambda x: x)
        with pytest.raises(RegistrationError, match="asks for"):
            mine.kernel(meta.op.relu, state_of=masked[0])(lambda x: x)
        with pytest.raises(RegistrationError, match="of its own besides"):
            mine.kernel(masked[1], init=draw, state_of=masked[0])(lambda dy: dy)

    def test_a_kernel_without_state_cannot_ask(self, make_dialect: Any, masked: Any) -> None:
        with pytest.raises(RegistrationError, match="state"):
            make_dialect("mine").kernel(masked[0])(lambda x, state: x)
