"""Operators that are written as tasks: they run, differentiate and compile, and META_CHECK_ACCESS
finds a task that does not do what its signature says.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import meta
from meta.base import config
from meta.base.device import CPU, Device
from meta.base.errors import (
    ArgumentError,
    BackendError,
    DeviceError,
    GradientError,
    IRError,
    MetaWarning,
    RegistrationError,
)
from meta.base.registry import OPERATORS
from meta.dialect import Dialect
from meta.dialect.core import DIALECTS
from meta.dialect.core.preference import forget
from meta.ir import OP_RESOLVERS
from meta.op.core import InOut, Op, Scalar, Tensor, Weight, op
from meta.task import (
    OperatorTasks,
    OpTaskBinding,
    OpTaskInvocation,
    OpTaskSignature,
    TaskArgumentAccessor,
)

Task = Callable[[TaskArgumentAccessor], None]


@pytest.fixture
def make() -> Iterator[Callable[..., OperatorTasks]]:
    """Make operators, each on a dialect of its own, that are forgotten after the test."""
    before, dialects = set(OPERATORS), []

    def new(function: Callable[..., Any], **options: Any) -> OperatorTasks:
        name = f"tasks{len(dialects)}"
        dialects.append(Dialect(name, devices=("cpu", "cuda")))
        return OperatorTasks(op(function), dialects[-1], **options)

    yield new
    for dialect in dialects:
        DIALECTS.remove(dialect.name)
        del OP_RESOLVERS[dialect.name]
    for name in set(OPERATORS) - before:
        OPERATORS.remove(name)
    forget()


def affine(
    x: Tensor, w: Weight, b: Weight | None = None, by: Scalar = 1.0, power: int = 1
) -> Tensor:
    """(x * w) ** power * by + b"""
    return x


def tasks_of_affine(made: OperatorTasks) -> list[str]:
    """Write `affine` as tasks; returns what has run."""
    ran: list[str] = []

    @made.init
    def init(power: int, device: Device) -> dict[str, Any]:
        ran.append(f"init on {device}")
        return {"power": power, "table": torch.zeros(10)}

    @made.forward
    def forward(task: TaskArgumentAccessor) -> None:
        power = task.get_per_device_state()["power"]
        assert power == task.get_argument("power")
        out, b = task.get_output(), task.get_tensor("b")
        torch.mul(task.get_tensor("x"), task.get_tensor("w"), out=out)
        out.pow_(power).mul_(task.get_argument("by"))
        if b is not None:
            out.add_(b)
        ran.append("forward")

    @made.backward
    def backward(task: TaskArgumentAccessor) -> None:
        power, by = task.get_per_device_state()["power"], task.get_argument("by")
        x, w, dy = task.get_tensor("x"), task.get_tensor("w"), task.get_gradient("out")
        inner = dy * power * (x * w).pow(power - 1) * by
        torch.mul(inner, w, out=task.get_gradient("x"))
        task.get_gradient("w").copy_((inner * x).sum(0))
        db = task.get_gradient("b")
        if db is not None:
            torch.sum(dy, 0, out=db)
        ran.append("backward")

    return ran


def given(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]


@pytest.mark.parametrize("bias", [True, False])
def test_eager_compiled_and_as_a_task(make: Any, bias: bool) -> None:
    made = make(affine)
    ran = tasks_of_affine(made)
    x, w, b = given((3, 4), (4,), (4,))
    tensors = [x, w, b] if bias else [x, w]
    dy = torch.randn(3, 4, dtype=torch.float64)
    expected = (x * w) ** 3 * 2.0 + (b if bias else 0)
    gradients = torch.autograd.grad(expected, tensors, dy)
    arrays = [meta.array(t.detach()) for t in tensors]
    rest = (2.0, 3) if bias else (None, 2.0, 3)

    signature = OpTaskSignature.of(made.op, "forward")
    binding = OpTaskBinding(signature).bind_arg("by", 2.0).bind_arg("power", 3)
    for name, array in zip(("x", "w", "b"), arrays, strict=False):
        binding.bind(name, array)
    task = OpTaskInvocation(signature, binding)
    torch.testing.assert_close(task.run().torch(), expected.detach())
    backward = task.backward(dy)
    for found, g in zip(backward.run().values(), gradients, strict=True):
        torch.testing.assert_close(found.torch(), g)
    held = task.state  # what is decided is forgotten where another backend is loaded
    assert held is not None and held.nbytes == 40

    for array in arrays:
        array.requires_grad = True
    made.op(*arrays, *rest).backward(meta.array(dy))
    for array, g in zip(arrays, gradients, strict=True):
        torch.testing.assert_close(array.grad.torch(), g)

    seed = meta.array(dy)

    @meta.model.trace
    def step(*arrays: Any) -> Any:
        def loss(*arrays: Any) -> Any:
            return (made.op(*arrays, *rest) * seed).sum()

        return meta.grad.value_and_grad(loss, wrt=range(len(arrays)))(*arrays)

    plain = [a.detach() for a in arrays]
    value, found = meta.vm.compile(step, *plain)(*plain)
    torch.testing.assert_close(value.torch(), (expected * dy).sum().detach())
    for one, g in zip(found, gradients, strict=True):
        torch.testing.assert_close(one.torch(), g)
    assert ran.count("init on cpu") == 1 and {"forward", "backward"} < set(ran)


def test_init_is_a_task_of_its_own(make: Any) -> None:
    made = make(affine)
    ran = tasks_of_affine(made)
    signature = OpTaskSignature.of(made.op, "init")
    assert [(s.name, s.role) for s in signature.slots] == [("power", "argument")]
    x, w = (meta.array(t.detach()) for t in given((3, 4), (4,)))
    forward = OpTaskSignature.of(made.op, "forward")
    task = OpTaskInvocation(forward, OpTaskBinding(forward).bind("x", x).bind("w", w))
    assert task.state is not None and not task.state.made and ran == []
    task.run()
    assert ran == ["init on cpu", "forward"] and task.state.get(CPU)["power"] == 1
    with pytest.raises(DeviceError, match=r"(?s)cuda:0.*cpu"):
        task.state.get(Device("cuda:0"))


def test_the_state_is_released(make: Any) -> None:
    class Big:
        nbytes = 7

    made = make(affine)
    made.init(lambda device: Big())
    made.forward(lambda task: task.get_output().zero_())
    x, w = (meta.array(t.detach()) for t in given((3, 4), (4,)))
    made.op(x, w)
    signature = OpTaskSignature.of(made.op, "forward")
    task = OpTaskInvocation(signature, OpTaskBinding(signature).bind("x", x).bind("w", w))
    state = task.state
    assert state is not None and state.nbytes == 7
    value = weakref.ref(state.get(CPU))
    del state
    forget()
    gc.collect()
    assert value() is None


def test_threads_run_tasks(make: Any) -> None:
    made = make(affine)
    ran = tasks_of_affine(made)
    x, w = (t.detach() for t in given((3, 4), (4,)))
    found: list[torch.Tensor] = []

    def work() -> None:
        for _ in range(10):
            found.append(made.op(meta.array(x), meta.array(w)).torch())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran.count("init on cpu") == 1 and len(found) == 40
    assert all(torch.equal(f, x * w) for f in found)


def test_lists_integers_and_several_results(make: Any) -> None:
    """Lists of tensors, arguments without a gradient and several results, with the result read."""

    def spread(x: Tensor, index: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        return x, parts[0]

    made = make(spread)

    @made.forward
    def forward(task: TaskArgumentAccessor) -> None:
        first, second = task.get_output()
        torch.exp(task.get_tensor("x"), out=first)
        index = task.get_tensor("index")
        second.copy_(sum(p for p in task.get_tensor("parts") if p.is_floating_point())[index])

    @made.backward(output=True)
    def backward(task: TaskArgumentAccessor) -> None:
        first, _ = task.get_output()
        d_first, d_second = task.get_gradient("out")
        torch.mul(first, d_first, out=task.get_gradient("x"))
        for part, dp in zip(task.get_tensor("parts"), task.get_gradient("parts"), strict=True):
            assert (dp is None) == (not part.is_floating_point())
            if dp is not None:
                dp.zero_().index_add_(0, task.get_tensor("index"), d_second)
        with pytest.raises(ArgumentError, match="no gradient of 'index'"):
            task.get_gradient("index")

    x, p, q = given((2,), (3,), (3,))
    index = torch.tensor([2, 0, 0])
    dy = torch.randn(2, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    expected = x.exp(), (p + q)[index]
    gradients = torch.autograd.grad(expected, (x, p, q), dy)
    arrays = [meta.array(t.detach()) for t in (x, p, q)]
    for array in arrays:
        array.requires_grad = True
    parts = (arrays[1], arrays[2], meta.array(torch.arange(3)))
    ys = made.op(arrays[0], meta.array(index), parts)
    for y, e in zip(ys, expected, strict=True):
        torch.testing.assert_close(y.torch().detach(), e.detach())
    found = meta.grad.grad(ys, arrays, [meta.array(d) for d in dy])
    for one, g in zip(found, gradients, strict=True):
        torch.testing.assert_close(one.torch(), g)


def test_the_accessor(make: Any) -> None:
    made, seen = make(affine), {}

    @made.forward
    def forward(task: TaskArgumentAccessor) -> None:
        seen["device"], seen["stream"], seen["handle"] = task.device, task.stream, task.handle
        seen["b"], seen["signature"] = task.get_tensor("b"), str(task.signature)
        wrong: dict[str, Callable[[], Any]] = {
            "no tensor 'ww'.*did you mean 'w'": lambda: task.get_tensor("ww"),
            "no tensor 'power'": lambda: task.get_tensor("power"),
            "no argument 'powr'.*'power'": lambda: task.get_argument("powr"),
            "no argument 'x'": lambda: task.get_argument("x"),
            "no gradient of 'x'": lambda: task.get_gradient("x"),
            "has no output 'y'": lambda: task.get_output("y"),
            "there is no state": task.get_per_device_state,
        }
        for expected, ask in wrong.items():
            with pytest.raises(ArgumentError, match=f"(?s)affine, forward task.*{expected}"):
                ask()
        task.get_output().zero_()

    made.op(meta.ones((3, 4)), meta.ones(4))
    assert (seen["device"], seen["stream"], seen["handle"], seen["b"]) == (CPU, None, None, None)
    assert seen["signature"] == (
        "affine.forward(x (RO input), w (RO weight), by (RO argument), out (WO output))"
    )


def test_when_a_call_is_declined(make: Any) -> None:
    made = make(affine, when=lambda call: "no bias" if call.args.b is None else None)
    made.forward(lambda task: task.get_output().zero_())
    assert "no bias" in str(meta.explain(made.op, meta.ones((3, 4)), meta.ones(4)))


class TestRegistration:
    def test_order(self, make: Any) -> None:
        made = make(affine)
        with pytest.raises(RegistrationError, match="forward comes before backward"):
            made.backward(lambda task: None)
        made.forward(lambda task: None)
        with pytest.raises(RegistrationError, match="init comes before forward"):
            made.init(lambda device: None)
        made.backward(lambda task: None)
        with pytest.raises(RegistrationError, match="has a gradient already"):
            made.backward(lambda task: None)

    def test_what_is_written_in_place(self, make: Any) -> None:
        def bump(x: InOut) -> tuple[()]:
            return ()

        made = make(bump)
        made.forward(lambda task: task.get_tensor("x").add_(1))
        with pytest.raises(RegistrationError, match="writes its arguments"):
            made.backward(lambda task: None)

    def test_there_is_no_second_gradient(self, make: Any) -> None:
        made = make(affine)
        tasks_of_affine(made)
        x, w = (meta.array(t.detach()) for t in given((3, 4), (4,)))
        x.requires_grad = True
        y = made.op(x, w)
        first = meta.grad.grad(y, x, meta.ones((3, 4), dtype="float64"), create_graph=True)
        with pytest.raises(GradientError, match="no gradient of its own"):
            first.sum().backward()


class TestCheckAccess:
    """META_CHECK_ACCESS=1."""

    def call(self, make: Any, forward: Task, backward: Task | None = None) -> Any:
        made = make(affine)
        made.init(lambda device: torch.zeros(2))
        made.forward(forward)
        if backward is not None:
            made.backward(backward)
        x, w = meta.ones((3, 4)), meta.ones(4)
        x.requires_grad = backward is not None
        with config.override(META_CHECK_ACCESS=True):
            y = made.op(x, w)
            if backward is not None:
                y.backward(meta.ones((3, 4)))
        return y

    @staticmethod
    def good(task: TaskArgumentAccessor) -> None:
        torch.mul(task.get_tensor("x"), task.get_tensor("w"), out=task.get_output())

    def test_a_good_task_passes(self, make: Any) -> None:
        def backward(task: TaskArgumentAccessor) -> None:
            torch.mul(task.get_gradient("out"), task.get_tensor("w"), out=task.get_gradient("x"))
            task.get_gradient("w").zero_()

        assert (self.call(make, self.good, backward) == 1).all()

    def test_a_write_to_what_is_read_only(self, make: Any) -> None:
        def forward(task: TaskArgumentAccessor) -> None:
            self.good(task)
            task.get_tensor("w").add_(1)

        with pytest.raises(BackendError, match=r"(?s)affine.*argument 1 was written"):
            self.call(make, forward)

    def test_a_write_to_the_state(self, make: Any) -> None:
        def forward(task: TaskArgumentAccessor) -> None:
            self.good(task)
            task.get_per_device_state().add_(1)

        with pytest.raises(BackendError, match=r"(?s)affine.*tensor of the state was written"):
            self.call(make, forward)

    def test_an_output_that_is_not_filled(self, make: Any) -> None:
        def forward(task: TaskArgumentAccessor) -> None:
            x, w, out = task.get_tensor("x"), task.get_tensor("w"), task.get_output()
            torch.mul(x[1:], w, out=out[1:])

        with pytest.raises(BackendError, match=r"(?s)affine.*4 of 12 elements of result 0"):
            self.call(make, forward)

    def test_an_output_that_is_never_asked_for(self, make: Any) -> None:
        def forward(task: TaskArgumentAccessor) -> None:
            task.get_tensor("x"), task.get_tensor("w")

        with pytest.raises(IRError, match=r"forward task of affine never asked for 'out'"):
            self.call(make, forward)

    def test_a_gradient_that_is_never_asked_for(self, make: Any) -> None:
        def backward(task: TaskArgumentAccessor) -> None:
            task.get_gradient("x").copy_(task.get_gradient("out"))

        with pytest.raises(IRError, match=r"backward task of affine never asked for 'dw'"):
            self.call(make, self.good, backward)

    def test_an_input_that_is_never_asked_for(self, make: Any) -> None:
        def forward(task: TaskArgumentAccessor) -> None:
            task.get_output().copy_(task.get_tensor("x"))

        with pytest.warns(MetaWarning, match=r"forward task of affine never asked for 'w'"):
            self.call(make, forward)

    def test_the_gradient_of_the_result_that_is_never_asked_for(self, make: Any) -> None:
        def backward(task: TaskArgumentAccessor) -> None:
            task.get_gradient("x").zero_()
            task.get_gradient("w").zero_()

        with pytest.warns(MetaWarning, match=r"backward task of affine never asked for 'dy'"):
            self.call(make, self.good, backward)

    def test_without_it_nothing_is_checked(self, make: Any) -> None:
        made: OperatorTasks = make(affine)
        made.forward(lambda task: task.get_output().zero_())
        with config.override(META_CHECK_ACCESS=False):
            assert (made.op(meta.ones((3, 4)), meta.ones(4)) == 0).all()


@pytest.mark.cuda
def test_two_kinds_of_device_have_states_of_their_own(make: Any) -> None:
    made = make(affine)
    ran = tasks_of_affine(made)
    for device in ("cpu", "cuda:0"):
        made.op(meta.ones((3, 4), device=device), meta.ones(4, device=device))
    assert [r for r in ran if r != "forward"] == ["init on cpu", "init on cuda:0"]


def test_an_op_is_what_follows(make: Any) -> None:
    made = make(affine)
    tasks_of_affine(made)
    derived = OPERATORS["affine_backward"]
    assert isinstance(derived, Op) and derived.site.file == __file__
    assert [s.name for s in derived.slots] == ["x", "w", "b", "by", "power", "dy"]
    assert [s.role for s in derived.slots][1:3] == ["weight", "weight"]


def test_an_init_is_told_types_of_tensors(make: Any) -> None:
    def scaled(x: Tensor, by: float = 2.0) -> Tensor:
        return x

    made = make(scaled)

    @made.init
    def init(x: Any, by: float, device: Any) -> Any:
        return x.shape, by, str(device)

    @made.forward
    def forward(task: Any) -> None:
        task.get_output().copy_(task.get_tensor("x") * task.get_argument("by"))

    signature = OpTaskSignature.of(made.op, "init")
    bound = OpTaskBinding(signature).bind("x", meta.ones((2, 4))).bind_arg("by", 3.0)
    assert OpTaskInvocation(signature, bound).run() == ((2, 4), 3.0, "cpu")
    type_ = meta.ir.parse_type("float32[5, 6]")
    typed = OpTaskBinding(signature).bind("x", type_)
    assert OpTaskInvocation(signature, typed).run() == ((5, 6), 2.0, "cpu")
    of_call = OpTaskSignature.of(made.op, "init", meta.ones((2, 4)))
    assert OpTaskInvocation(of_call, OpTaskBinding(of_call)).run() == ((2, 4), 2.0, "cpu")
    with pytest.raises(ArgumentError, match="slot 'x' is missing") as caught:
        OpTaskInvocation(signature, OpTaskBinding(signature)).run()
    assert "bind its tensors, or their types" in str(caught.value)
    with pytest.raises(ArgumentError, match="there is no slot 'z'"):
        OpTaskBinding(signature).bind("z", 1)
