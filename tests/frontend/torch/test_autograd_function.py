"""A `torch.autograd.Function` in a module keeps its backward: imported, in a training step, and
under torch.compile. Those here have gradients that are not the derivatives of what they compute.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.testing import assert_close

import meta
import meta.frontend.dynamo
from meta.base.errors import GradientError, MetaError
from meta.frontend import from_torch
from meta.interop.torch import training_step


class Straight(Function):
    """Straight through, scaled; an argument that is no tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return torch.round(x * scale) / scale

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return dy * (x.abs() < 1) * ctx.scale, None


class Reversed(Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return -dy


class Several(Function):
    """Several results, one without a gradient and one of integers; saves a result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Any:
        mask, y = (x > 0).to(x.dtype), torch.exp(x) * w
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(y, None, w)
        ctx.more = {"x": x}
        return y, mask, x.argmax(-1), x * 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dmask: Tensor, dindex: Any, dz: Tensor) -> Any:
        y, nothing, w = ctx.saved_tensors
        assert nothing is None and dmask.shape == y.shape
        return dy * y * 3 + dz * ctx.more["x"], (dy * w).sum(0, keepdim=True).expand_as(w)


class Layer(nn.Module):
    def __init__(self, apply: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.apply_ = nn.Linear(3, 4), apply

    def forward(self, x: Tensor) -> Tensor:
        h = self.apply_(torch.tanh(self.linear(x)))
        return (h * h).sum()


def several(h: Tensor) -> Tensor:
    y, mask, index, z = Several.apply(h, h * 0.5 + 1)
    return y * mask + z + index[:, None]


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "straight": lambda h: Straight.apply(h, 4.0),
    "reversed": lambda h: Reversed.apply(h) + Reversed.apply(h * h),
    "several": several,
    "in a function": lambda h: torch.utils.checkpoint.checkpoint(
        lambda h: Straight.apply(h, 2.0), h, use_reentrant=False
    ),
    "without gradient": lambda h: h + _detached(h),
}
functions = pytest.mark.parametrize("apply", FUNCTIONS.values(), ids=FUNCTIONS)
some = pytest.mark.parametrize("apply", [*FUNCTIONS.values()][:3], ids=[*FUNCTIONS][:3])


def _detached(h: Tensor) -> Tensor:
    with torch.no_grad():
        return Straight.apply(h, 4.0)


def made(apply: Callable[[Tensor], Tensor]) -> tuple[Layer, Tensor, list[Tensor]]:
    """Return a module, an input, and the gradients of parameters and input as torch has them."""
    torch.manual_seed(0)
    module = Layer(apply).double()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    gradients = torch.autograd.grad(module(x), [*module.parameters(), x])
    return module, x.detach(), list(gradients)


@functions
@pytest.mark.parametrize(("training", "grad_mode"), [(False, False), (True, True)])
@pytest.mark.long
def test_imported(apply: Callable[[Tensor], Tensor], training: bool, grad_mode: bool) -> None:
    module, x, expected = made(apply)
    with torch.set_grad_enabled(grad_mode or apply is FUNCTIONS["without gradient"]):
        model = from_torch(module, (x,))
        model.train(training)
        y, gradients = meta.model.value_and_grad(model)(meta.array(1.0, "float64"), meta.array(x))
    assert_close(y.torch().detach(), module(x).detach())
    assert_close([g.torch() for g in gradients.values()], expected[:2])
    given = meta.array(x)
    given.requires_grad = True
    model(given).backward()
    assert_close(given.grad.torch(), expected[2])
    if training:
        return
    compiled = meta.vm.compile(meta.model.value_and_grad(model), meta.array(1.0, "float64"), given)
    _, gradients = compiled(meta.array(1.0, "float64"), meta.array(x))
    assert_close([g.torch() for g in gradients.values()], expected[:2])


@some
def test_training_step(apply: Callable[[Tensor], Tensor]) -> None:
    module, x, _ = made(apply)
    ours, theirs = copy.deepcopy(module), module
    step = training_step(ours, torch.optim.SGD(ours.parameters(), lr=0.1), lambda loss, *_: loss)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(2):
        found = step(x)
        optimizer.zero_grad()
        loss = theirs(x)
        loss.backward()
        optimizer.step()
        assert_close(found, loss.detach())
    assert_close(list(ours.parameters()), list(theirs.parameters()))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo does
@some
def test_torch_compile(apply: Callable[[Tensor], Tensor]) -> None:
    module, x, expected = made(apply)
    given = x.clone().requires_grad_()
    loss = torch.compile(module, backend="meta")(given)
    assert_close(list(torch.autograd.grad(loss, [*module.parameters(), given])), expected)


@pytest.mark.parametrize("name", ["straight", "reversed"])
def test_second_order(name: str) -> None:
    module, x, _ = made(FUNCTIONS[name])
    given = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(module(given), given, create_graph=True)
    (expected,) = torch.autograd.grad((first**2).sum(), given)
    model = from_torch(module, (x,))
    slope = meta.grad(lambda x: model(x))
    for mode in (lambda f: f, meta.model.trace):
        found = mode(meta.grad(lambda x: meta.sum(slope(x) ** 2)))(meta.array(x))
        assert_close(found.torch(), expected)
    rows = meta.grad.hessian(lambda x: model(x))(meta.array(x[:5]))
    whole = torch.autograd.functional.hessian(module, x)
    assert_close(rows.torch(), whole)


class Wrong(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, how: str) -> Tensor:
        ctx.how = how
        if how == "dirty":
            ctx.mark_dirty(x)
        return x * 1

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return dy if ctx.how == "count" else (dy[:1], None)


@pytest.mark.parametrize(("how", "what"), [("count", "wrong number"), ("shape", "another shape")])
def test_inference_does_without_a_backward_that_is_not_imported(how: str, what: str) -> None:
    module = Layer(lambda h: Wrong.apply(h, how))
    model, x = from_torch(module, (torch.ones(5, 3),)), meta.ones((5, 3))
    assert_close(model(x).torch().detach(), module(torch.ones(5, 3)).detach())
    with pytest.raises(GradientError, match=what):
        meta.model.value_and_grad(model)(meta.array(1.0), x)
    with pytest.raises(GradientError, match=what):
        model(x).backward()


def test_a_function_that_writes_is_refused() -> None:
    module = Layer(lambda h: Wrong.apply(h, "dirty"))
    with pytest.raises(MetaError, match="mark_dirty"):
        from_torch(module, (torch.ones(5, 3),))


def test_extents_that_vary() -> None:
    module, x, _ = made(FUNCTIONS["straight"])
    rows = torch.export.Dim("rows", min=2)
    model = from_torch(module, (x,), dynamic_shapes=({0: rows},))
    for count in (3, 5):
        given = meta.array(x[:count])
        given.requires_grad = True
        leaf = x[:count].clone().requires_grad_()
        (expected,) = torch.autograd.grad(module(leaf), leaf)
        model(given).backward()
        assert_close(given.grad.torch(), expected)
    shape = meta.ir.TensorType((meta.ir.parse_type("int64[n]").shape[0], 3), "float64")
    with pytest.raises(GradientError, match="shapes that are known"):
        meta.model.value_and_grad(model).program(meta.ir.TensorType((), "float64"), shape)
