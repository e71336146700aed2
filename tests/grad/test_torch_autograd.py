"""Gradients cross the border between torch and `meta`, both ways: torch is the oracle."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad

import meta
from meta.base.errors import ArgumentError, GradientError
from meta.grad.core import run_checkpointed

# torch's own forward mode uses what torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

Function = Callable[..., Any]


def leaf(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def parameter(*values: float) -> meta.ndarray:
    return meta.model.parameter(np.array(values))


def of_torch(f: Function, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return torch's gradients of the sum of what ``f`` returns."""
    return torch.autograd.grad(f(*leaves).sum(), leaves)


def test_an_entered_leaf_gets_both_parts_of_its_gradient() -> None:
    t = leaf(1.0, 1.0, 1.0)
    ((2 * t).sum() + meta.sum(meta.square(t)).torch()).backward()
    assert t.grad is not None and t.grad.tolist() == [4.0, 4.0, 4.0]


PROGRAMS: dict[str, tuple[Function, Function]] = {
    "one use": (lambda a, b: meta.exp(a).torch() * b, lambda a, b: a.exp() * b),
    "the same tensor twice in a call": (
        lambda a, b: (meta.multiply(a, a) + b).torch(),
        lambda a, b: a * a + b,
    ),
    "the same tensor enters several times": (
        lambda a, b: (meta.square(a) * meta.sin(b) + meta.exp(a)).torch(),
        lambda a, b: a * a * b.sin() + a.exp(),
    ),
    "tensors that torch computed": (
        lambda a, b: meta.sum(meta.square(a * b) + a).torch(),
        lambda a, b: ((a * b) ** 2 + a).sum(),
    ),
    "several results": (
        lambda a, b: sum(v.torch() * k for k, v in enumerate(meta.split(meta.multiply(a, b), 3))),
        lambda a, b: sum(v * k for k, v in enumerate((a * b).split(1))),
    ),
    "results of one array, used in both": (
        lambda a, b: (lambda h: h.torch() * b + (h * h).torch())(meta.tanh(a)),
        lambda a, b: (lambda h: h * b + h * h)(a.tanh()),
    ),
    "out, in and out again": (
        lambda a, b: (meta.exp((meta.sin(a) * b).torch() * a) * b).torch(),
        lambda a, b: (a.sin() * b * a).exp() * b,
    ),
    "through array, asarray and to": (
        lambda a, b: (meta.array(a) * meta.asarray(b).to("float32").astype("float64")).torch(),
        lambda a, b: a * b.float().double(),
    ),
    "a strided view": (
        lambda a, b: meta.exp(torch.outer(a, b).T[1:]).torch(),
        lambda a, b: torch.outer(a, b).T[1:].exp(),
    ),
    "torch's tensor on the left": (
        lambda a, b: (a + meta.square(b)).torch(),
        lambda a, b: a + b * b,
    ),
    "an index": (lambda a, b: (meta.asarray(a)[1:] * b[0]).torch(), lambda a, b: a[1:] * b[0]),
    "a part of a new array": (
        lambda a, b: (meta.square(a).at[0].set(b[1])).torch(),
        lambda a, b: torch.cat([b[1:2], a[1:] ** 2]),
    ),
    "a scan": (
        lambda a, b: meta.scan(lambda s, x: (s * x + s, s), meta.asarray(a[0]), b)[0].torch(),
        lambda a, b: a[0] * (1 + b[0]) * (1 + b[1]) * (1 + b[2]),
    ),
    "a branch": (
        lambda a, b: meta.cond(
            meta.array(True), lambda u, v: u * v, lambda u, v: u, meta.asarray(a), meta.asarray(b)
        ).torch(),
        lambda a, b: a * b,
    ),
    "a checkpointed block": (
        lambda a, b: run_checkpointed(lambda: meta.exp(meta.sin(a) * b), ()).torch(),
        lambda a, b: (a.sin() * b).exp(),
    ),
    "value and gradient by an argument": (
        lambda a, b: meta.grad.value_and_grad(lambda x, y: meta.sum(x * x * y))(a, b)[1].torch(),
        lambda a, b: 2 * a * b,
    ),
}


# A checkpointed block has no second order, float32 is too short for numeric gradients.
FIRST_ORDER = {"a checkpointed block", "through array, asarray and to"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_first_and_second_order_are_torchs(name: str) -> None:
    ours, theirs = PROGRAMS[name]
    leaves = leaf(0.5, -1.0, 0.75), leaf(1.5, 0.25, -0.5)
    for found, wanted in zip(of_torch(ours, *leaves), of_torch(theirs, *leaves), strict=True):
        torch.testing.assert_close(found, wanted)
    if name not in FIRST_ORDER:
        assert torch.autograd.gradgradcheck(lambda a, b: ours(a, b).sum(), leaves)


def test_a_complex_tensor_has_torchs_gradient() -> None:
    def run(f: Function) -> torch.Tensor:
        c = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
        (f(c.conj()) * (1 + 1j)).abs().sum().backward()
        assert c.grad is not None
        return c.grad

    torch.testing.assert_close(run(lambda c: meta.multiply(c, c).torch()), run(lambda c: c * c))


def test_the_gradient_has_the_dtype_of_the_tensor() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        t = leaf(1.0, 2.0, dtype=dtype)
        meta.sum(meta.square(t)).torch().backward()
        assert t.grad is not None and t.grad.dtype == dtype and t.grad.tolist() == [2.0, 4.0]
    integers = meta.square(torch.tensor([1, 2]))
    assert not integers.requires_grad and not integers.torch().requires_grad
    assert not meta.argmax(leaf(1.0, 2.0)).torch().requires_grad


def test_backward_of_an_array_goes_on_through_torch() -> None:
    t = leaf(1.0, 2.0)
    v = 3 * t
    y = meta.sum(meta.square(v) + meta.asarray(t))
    y.backward()
    y.backward()  # the tape and torch's graph are kept
    assert t.grad is not None and t.grad.tolist() == [38.0, 74.0]
    entered = meta.asarray(t)
    entered.backward([1.0, 1.0])
    assert t.grad.tolist() == [39.0, 75.0] and entered.grad is None and entered.requires_grad


def test_a_model_and_a_penalty_of_torch_are_trained_together() -> None:
    model = meta.model.Linear(3, 2)
    x, y = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 1, 0])
    weight, bias = (p.detach().torch().clone().requires_grad_() for p in model.parameters())
    loss = meta.cross_entropy(model(x), y).torch() + (model.weight.torch() ** 2).sum()
    loss.backward()
    again = x.detach().clone().requires_grad_()
    wanted = torch.nn.functional.cross_entropy(again @ weight.T + bias, y) + (weight**2).sum()
    wanted.backward()
    for found, tensor in ((model.weight, weight), (model.bias, bias)):
        torch.testing.assert_close(found.grad.torch(), tensor.grad)
    torch.testing.assert_close(x.grad, again.grad)
    before = model.weight.tolist()
    meta.optim.SGD(model.parameters(), lr=0.1).step()
    assert model.weight.tolist() != before


def test_gradients_that_nobody_asked_for_stay() -> None:
    p, t = parameter(1.0, 2.0), leaf(3.0, 4.0)
    y = meta.sum(p * p * t).torch()
    (found,) = torch.autograd.grad(y, t, retain_graph=True)
    assert found.tolist() == [1.0, 4.0] and p.grad is None
    y.backward(inputs=[t], retain_graph=True)
    assert p.grad is None
    y.backward()
    assert p.grad is not None and p.grad.tolist() == [6.0, 16.0]


def test_gradients_have_memory_of_their_own() -> None:
    p, t, u = parameter(1.0, 1.0), leaf(1.0, 1.0), leaf(1.0, 1.0)
    dy = torch.ones(2, dtype=torch.float64)
    (p + t + meta.reshape(u, (2,))).torch().backward(dy)
    assert p.grad is not None and t.grad is not None and u.grad is not None
    places = {p.grad.torch().data_ptr(), t.grad.data_ptr(), u.grad.data_ptr(), dy.data_ptr()}
    assert len(places) == 4


def test_create_graph_reaches_arrays_of_ours() -> None:
    p, t = parameter(2.0), leaf(3.0)
    (slope,) = torch.autograd.grad((p * p * meta.pow(t, 3.0)).torch(), t, create_graph=True)
    slope.backward()  # 3 p^2 t^2
    assert p.grad is not None and t.grad is not None
    assert p.grad.tolist() == [108.0] and t.grad.tolist() == [72.0]


def test_a_graph_is_freed_as_torchs_are() -> None:
    t = leaf(1.0, 2.0)
    y = meta.square(t)

    inner = meta.exp(y)
    kept = weakref.ref(inner.torch().detach().untyped_storage())
    z = inner.torch().sum()
    del y, inner
    z.backward(retain_graph=True)
    z.backward()
    with pytest.raises(RuntimeError, match="second time"):
        z.backward()
    assert kept() is None


def test_what_was_written_is_noticed_if_it_is_needed() -> None:
    t = leaf(1.0, 2.0)
    v, w = t * 1, t * 1
    needs, needs_not = meta.sum(meta.square(v)).torch(), meta.sum(w).torch()
    with torch.no_grad():
        v.mul_(2)
        w.mul_(2)
    needs_not.backward()
    with pytest.raises(GradientError, match="written in place"):
        needs.backward()
    p = parameter(1.0)
    for array in (meta.square(t), p):
        with pytest.raises(RuntimeError, match=r"ArrayOfMeta.*view.*modified"):
            array.torch().zero_()
    with torch.no_grad():
        p.torch().zero_()
    assert p.tolist() == [0.0] and p.grad is None


def test_threads_have_tapes_of_their_own_and_share_leaves() -> None:
    p, failures = parameter(1.0, 2.0), []

    def work() -> None:
        try:
            for _ in range(20):
                t = leaf(1.0, 1.0)
                meta.sum(p * t).torch().backward()
                assert t.grad is not None and t.grad.tolist() == [1.0, 2.0]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and p.grad is not None and p.grad.tolist() == [80.0, 80.0]


@pytest.mark.parametrize("reentrant", [True, False])
def test_torchs_checkpoint_goes_through_meta(reentrant: bool) -> None:
    p, t = parameter(3.0, 4.0), leaf(1.0, 2.0)

    def block(t: torch.Tensor) -> torch.Tensor:
        return meta.sum(p * meta.square(t)).torch()

    torch.utils.checkpoint.checkpoint(block, t, use_reentrant=reentrant).backward()
    assert t.grad is not None and t.grad.tolist() == [6.0, 16.0]
    assert p.grad is not None and p.grad.tolist() == [1.0, 4.0]


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode, meta.no_grad])
def test_blocks_without_gradients_are_those_of_both(block: Any) -> None:
    model, t = meta.model.Linear(2, 2), leaf(1.0, 2.0, dtype=torch.float32)
    with block():
        results = model(t), meta.square(t), meta.array(t), model.weight * 2
        tensors = [model.weight.torch(), *(r.torch() for r in results)]
        shared = meta.from_dlpack(t)
    assert not any(r.requires_grad for r in (*results, *tensors, shared))
    with block(), torch.enable_grad():
        assert model(t).requires_grad is (block is not meta.no_grad)
    with block():
        value, slope = meta.grad.value_and_grad(lambda x: meta.sum(x * x))(t)
    assert slope.tolist() == [2.0, 4.0] and not value.requires_grad


def test_torch_records_in_our_no_grad() -> None:
    t = leaf(1.0, 2.0)
    with meta.no_grad():
        assert (t * 2).requires_grad


def test_gradients_by_torchs_tensors() -> None:
    t = leaf(1.0, 2.0)
    v = 3 * t
    y = meta.sum(meta.square(v) + meta.asarray(t))
    dt, dv = meta.grad.grad(y, [t, v], create_graph=True)
    assert dt.tolist() == [19.0, 37.0] and dv.tolist() == [6.0, 12.0] and t.grad is None
    assert meta.grad.grad(meta.sum(dt), t).tolist() == [18.0, 18.0]
    assert meta.grad.grad(meta.sum(meta.square(t)), meta.asarray(t)).tolist() == [2.0, 4.0]


def test_from_array_to_array_through_torch_is_refused() -> None:
    p = parameter(1.0, 2.0)

    def through(p: Any) -> Any:
        return meta.sum(meta.asarray(meta.square(p).torch() * 3))

    y = through(p)
    with pytest.raises(GradientError, match="went from meta through torch and back"):
        meta.grad.grad(y, p)
    with pytest.raises(GradientError, match="went from meta through torch and back"):
        meta.grad.value_and_grad(through)(meta.array([1.0, 2.0]))
    y.backward()
    assert p.grad is not None and p.grad.tolist() == [6.0, 12.0]


def _setitem(x: meta.ndarray, value: Any) -> None:
    x[...] = value


HELD = leaf(1.0, 2.0)


@meta.model.trace
def _closed(x: Any) -> Any:
    return x * HELD


def test_traced_code_may_close_over_what_is_trained() -> None:
    """To be called and compiled, and differentiated by others: not by that."""
    model, x = meta.model.Linear(2, 2), meta.array([1.0, 2.0])
    called = meta.model.trace(lambda x: model(x))
    wanted, t = model(x).tolist(), leaf(1.0, 2.0, dtype=torch.float32)
    assert called(x).tolist() == meta.vm.compile(called, x)(x).tolist() == pytest.approx(wanted)
    with meta.no_grad():
        assert not called(x).requires_grad
    slope = model.weight.detach().torch().sum(0)
    torch.testing.assert_close(torch.autograd.grad(called(t).torch().sum(), t)[0], slope)
    _, by_x = meta.grad.value_and_grad(lambda x: meta.sum(called(x)))(x)
    torch.testing.assert_close(by_x.detach().torch(), slope)
    for backward in CLOSED_OVER:
        with pytest.raises(GradientError, match="closes over an array") as raised:
            backward(called, x, t)
        assert raised.value.span is not None and raised.value.span.file == __file__
    assert model.weight.grad is None


CLOSED_OVER: list[Function] = [
    lambda f, x, t: meta.sum(f(x)).backward(),
    lambda f, x, t: meta.sum(f(t)).torch().backward(),
    lambda f, x, t: meta.sum(f(x)).torch().backward(),
    lambda f, x, t: meta.sum(run_checkpointed(lambda: f(x), ())).backward(),
    lambda f, x, t: meta.sum(meta.model.trace(lambda: HELD)()).backward(),
    lambda f, x, t: meta.model.trace(lambda: HELD)().backward(meta.array([1.0, 1.0])),
    lambda f, x, t: meta.model.trace(lambda: HELD)().torch().sum().backward(),
]


REFUSED: dict[str, tuple[Function, str]] = {
    "memory that is shared": (meta.from_dlpack, "meta.asarray"),
    "the class itself": (meta.ndarray, "meta.asarray"),
    "a list of its parts": (lambda t: meta.array([t[0], t[1]]), "detach"),
    "a parameter": (meta.model.parameter, "detach"),
    "a parameter of a copy": (lambda t: meta.model.parameter(meta.array(t)), "detach"),
    "an optimizer's parameter": (lambda t: meta.optim.SGD([meta.array(t)], lr=0.1), "detach"),
    "a part of an array": (lambda t: _setitem(meta.zeros(2, "float64"), t), "detach"),
    "the memory of the tensor": (lambda t: _setitem(meta.asarray(t), 1.0), "clone"),
    "new values": (lambda t: meta.zeros(2, "float64").update(t), "detach"),
    "new values of the tensor": (lambda t: meta.asarray(t).update([1, 2]), "detach"),
    "the result of a call": (lambda t: meta.square(t, out=meta.zeros(2, "float64")), "no_grad"),
    "memory that an operator writes": (lambda t: meta.op.assign(t, meta.zeros(2, "float64")), "at"),
    "numpy": (lambda t: np.asarray(meta.square(t)), "detach"),
    "a capsule": (lambda t: torch.as_tensor(meta.square(t)), "detach"),
    "training data": (lambda t: meta.train.Batches(t, t, 1), "detach"),
    "a compiled program": (
        lambda t: meta.vm.compile(meta.model.trace(meta.square), t.detach())(t),
        "value_and_grad",
    ),
    "a compiled program, of what was computed": (
        lambda t: meta.vm.compile(meta.model.trace(meta.square), t.detach())(meta.square(t)),
        "value_and_grad",
    ),
    "traced code that closes over it": (
        lambda t: meta.sum(_closed(meta.zeros(2, "float64"))).backward(),
        "argument",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_no_history_can_go_on_the_error_names_the_way(name: str) -> None:
    call, hint = REFUSED[name]
    with pytest.raises((GradientError, ArgumentError), match=hint):
        call(leaf(1.0, 2.0))


def _meta_square(t: torch.Tensor) -> torch.Tensor:
    return meta.square(t).torch()


TRANSFORMS: dict[str, Function] = {
    "grad": lambda t: torch.func.grad(lambda u: (2 * u).sum() + _meta_square(u).sum())(t),
    "jacrev": lambda t: torch.func.jacrev(_meta_square)(t),
    "jacfwd": lambda t: torch.func.jacfwd(_meta_square)(t),
    "hessian": lambda t: torch.func.hessian(lambda u: _meta_square(u).sum())(t),
    "jvp": lambda t: torch.func.jvp(_meta_square, (t,), (t,)),
    "vjp": lambda t: torch.func.vjp(_meta_square, t),
    "vmap": lambda t: torch.func.vmap(_meta_square)(t),
    "functional, vectorized": lambda t: torch.autograd.functional.jacobian(
        _meta_square, t, vectorize=True
    ),
    "gradients in a batch": lambda t: torch.autograd.grad(
        _meta_square(t.requires_grad_()), t, torch.eye(2), is_grads_batched=True
    ),
    "from_dlpack": lambda t: torch.func.vmap(lambda u: meta.from_dlpack(u).torch())(t),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_of_torch_is_an_error(name: str) -> None:
    with pytest.raises(GradientError, match=r"torch\.autograd\.functional go through meta"):
        TRANSFORMS[name](torch.ones(2))


def test_an_array_that_is_trained_is_no_constant_of_a_transform() -> None:
    p = parameter(1.0, 2.0)
    with pytest.raises(GradientError, match=r"x\.detach\(\)\.torch\(\)"):
        torch.func.grad(lambda t: (p.torch() * t).sum())(torch.ones(2))
    found = torch.func.grad(lambda t: (p.detach().torch() * t).sum())(torch.ones(2))
    assert found.tolist() == [1.0, 2.0]


def test_forward_mode_is_an_error() -> None:
    with forward_ad.dual_level(), pytest.raises(GradientError, match="forward_ad"):
        meta.square(forward_ad.make_dual(torch.ones(2), torch.ones(2)))


def test_a_gradient_that_nobody_wrote_is_no_zero() -> None:
    """What goes around an operator without a rule is no gradient; of steps it is zero."""
    t = leaf(1.0, 2.0)
    through_torch = meta.unique_values(t).torch().sum() + t.sum()
    with pytest.raises(GradientError, match="no gradient goes through unique"):
        through_torch.backward()
    p = parameter(2.0, 3.0)
    with pytest.raises(GradientError, match="no gradient goes through unique"):
        (meta.sum(meta.unique_values(p)) + meta.sum(p)).backward()
    t.grad = None  # torch has given it what did not go through
    steps = (meta.floor_divide(t, 2.0).torch() + meta.detach(t).torch() + t).sum()
    steps.backward()
    assert t.grad is not None and t.grad.tolist() == [1.0, 1.0]


def test_loops_over_rows_serve_for_higher_orders() -> None:
    hessian = torch.autograd.functional.hessian(
        lambda t: meta.sum(meta.pow(t, 3.0)).torch(), torch.ones(2)
    )
    assert hessian.tolist() == [[6.0, 0.0], [0.0, 6.0]]


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "howto" / "torch_gradients.md").read_text("utf-8")
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), {})
    assert "torch.func" in capsys.readouterr().out


def test_memory_of_inference_mode_cannot_have_history() -> None:
    with torch.inference_mode():
        p = parameter(1.0)
    with pytest.raises(GradientError, match="inference_mode"):
        p.torch()
    assert not p.detach().torch().requires_grad
