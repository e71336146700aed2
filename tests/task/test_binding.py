"""Bindings: what fits runs; an error names operator, slot, expected and given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError, DispatchError, MetaError, TypeInferError, UnknownName
from meta.task import OpTaskBinding, OpTaskInvocation, OpTaskSignature

X, SCALE, DY = meta.ones((2, 4)), meta.ones(4), meta.ones((2, 4))


def forward() -> OpTaskBinding:
    return OpTaskBinding(OpTaskSignature.of(meta.op.layer_norm, "forward"))


def backward() -> OpTaskBinding:
    return OpTaskBinding(OpTaskSignature.of(meta.op.layer_norm, "backward", X, SCALE))


ERRORS: dict[str, tuple[Callable[[], object], str]] = {
    "missing": (lambda: forward().args(), "slot 'x' is missing.*tensor.*nothing bound"),
    "missing gradient": (
        lambda: backward().bind("x", X).bind("scale", SCALE).check(),
        r"slot 'dy' is missing.*gradient float32\[2, 4\].*nothing bound",
    ),
    "duplicate": (lambda: forward().bind("x", X).bind("x", SCALE), r"'x' is bound twice.*2, 4.*4"),
    "duplicate argument": (
        lambda: forward().bind_arg("eps", 1e-3).bind_arg("eps", 1e-4),
        "'eps' is bound twice.*0.001.*0.0001",
    ),
    "unknown": (lambda: forward().bind("sacle", SCALE), "no slot 'sacle'.*did you mean 'scale'"),
    "unknown argument": (lambda: forward().bind_arg("axsi", 0), "no argument 'axsi'.*'axis'"),
    "unknown gradient": (
        lambda: backward().bind_grad("scael", SCALE),
        "no gradient of 'scael'.*did you mean 'scale'",
    ),
    "an argument as a tensor": (
        lambda: forward().bind("axis", 0),
        "'axis' has another role.*bind_arg",
    ),
    "a tensor as an argument": (
        lambda: forward().bind_arg("scale", 1.0),
        r"'scale' has another role.*a tensor \(weight\).*1.0",
    ),
    "a gradient as a tensor": (
        lambda: backward().bind("dy", DY),
        "'dy' has another role.*bind_grad",
    ),
    "a gradient of forward": (lambda: forward().bind_grad("x", X), "no gradient of 'x'"),
    "a number in a slot of tensors": (
        lambda: forward().bind("x", 3),
        r"'x' has another role.*3 \(int",
    ),
    "None in a required slot": (lambda: forward().bind("x", None), "'x' has another role.*None"),
    "several in the place of one": (lambda: forward().bind("x", (X, X)), "'x'.*one tensor"),
    "attribute of another type": (
        lambda: forward().bind_arg("axis", "rows"),
        "'axis' does not fit.*rows",
    ),
    "dtype": (
        lambda: (
            backward()
            .bind("x", X)
            .bind("scale", SCALE)
            .bind_grad("out", DY.astype("float64"))
            .check()
        ),
        r"'dy' holds another dtype.*float32\[2, 4\].*float64\[2, 4\]",
    ),
    "rank": (
        lambda: backward().bind("x", X).bind("scale", SCALE).bind_grad("out", SCALE).check(),
        r"'dy' holds another rank.*float32\[2, 4\].*float32\[4\]",
    ),
    "shape": (
        lambda: backward().bind("x", DY.T).bind("scale", SCALE).bind_grad("out", DY).check(),
        r"'x' holds another shape.*float32\[2, 4\].*float32\[4, 2\]",
    ),
    "where a result goes": (
        lambda: forward().bind("x", X).bind("out", SCALE).check(),
        r"'out' holds another rank.*float32\[2, 4\].*float32\[4\]",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_does_not_fit(name: str) -> None:
    bind, expected = ERRORS[name]
    with pytest.raises(ArgumentError, match=f"(?s){expected}") as caught:
        bind()
    assert "layer_norm" in str(caught.value)


def test_types_are_the_operators_to_judge() -> None:
    with pytest.raises(TypeInferError, match="scale does not fit") as caught:
        forward().bind("x", X).bind("scale", meta.ones(3)).args()
    assert "float32[3]" in str(caught.value)
    assert "binding of the forward task of layer_norm" in str(caught.value)


def test_a_backward_task_is_of_one_call() -> None:
    binding = OpTaskBinding(OpTaskSignature.of(meta.op.relu, "backward"))
    with pytest.raises(ArgumentError, match="bound for one call"):
        binding.bind("x" if "x" in binding.signature.tensors else "y", X).check()


def test_a_binding_belongs_to_its_signature() -> None:
    with pytest.raises(ArgumentError, match="binding is of another task"):
        OpTaskInvocation(OpTaskSignature.of(meta.op.relu, "forward"), forward())


def test_forward_and_backward_run() -> None:
    torch.manual_seed(0)
    x, scale = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    dy = torch.randn(3, 4, dtype=torch.float64)
    x.requires_grad = scale.requires_grad = True
    expected = torch.nn.functional.layer_norm(x, (4,), scale, eps=1e-3)
    gradients = torch.autograd.grad(expected, (x, scale), dy)
    binding = forward().bind("x", x.detach()).bind("scale", scale.detach()).bind_arg("eps", 1e-3)
    task = OpTaskInvocation(binding.signature, binding)
    torch.testing.assert_close(task.run().torch(), expected.detach())
    found = task.backward(dy).run()
    assert list(found) == ["x", "scale"]
    for ours, theirs in zip(found.values(), gradients, strict=True):
        torch.testing.assert_close(ours.torch(), theirs)


def test_results_go_where_they_are_bound() -> None:
    out, dx = meta.zeros((2, 4)), meta.zeros((2, 4))
    binding = forward().bind("x", X * 2.0).bind("out", out)
    assert OpTaskInvocation(binding.signature, binding).run() is out
    assert (out == meta.layer_norm(X * 2.0, (4,))).all()
    exp = OpTaskSignature.of(meta.op.exp, "backward", X)
    known = OpTaskBinding(exp).bind("y", meta.exp(X)).bind_grad("out", DY).bind_grad("x", dx)
    assert OpTaskInvocation(exp, known).run() == {"x": dx}
    np.testing.assert_allclose(dx.numpy(), np.exp(np.ones((2, 4))), rtol=1e-6)


def test_what_is_written_in_place_comes_behind_the_results() -> None:
    x, out = meta.random.normal((4, 3)), meta.zeros((4, 3))
    signature = OpTaskSignature.of(meta.op.batch_norm_train, "forward")
    mean, var = meta.zeros(3), meta.ones(3)
    binding = OpTaskBinding(signature).bind("x", x).bind("out", out)
    binding.bind("running_mean", mean).bind("running_var", var)
    found = OpTaskInvocation(signature, binding).run()
    assert found[0] is out and found[1] is mean and found[2] is var
    np.testing.assert_allclose(out.numpy().mean(0), np.zeros(3), atol=1e-5)
    np.testing.assert_allclose(mean.numpy(), x.numpy().mean(0) * 0.1, rtol=1e-4)


def test_another_run_of_a_random_task_has_another_result() -> None:
    signature = OpTaskSignature.of(meta.op.dropout_train, "forward")
    task = OpTaskInvocation(signature, OpTaskBinding(signature).bind("x", X))
    y = task.run()
    dy = (DY, *y[1:])
    with pytest.raises(ArgumentError, match=r"(?s)reads the result.*backward\(dy, y\)"):
        task.backward(dy)
    (dx,) = task.backward(dy, y).run().values()
    np.testing.assert_array_equal(dx.numpy(), y[0].numpy())


def test_numbers_are_those_of_the_call() -> None:
    signature = OpTaskSignature.of(meta.op.leaky_relu, "backward", X, 0.5)
    binding = OpTaskBinding(signature)
    for slot in signature.reads:
        if slot.role in ("input", "output"):
            binding.bind(slot.name, X * -1.0)
    binding.bind_grad("out", DY)
    (dx,) = OpTaskInvocation(signature, binding).run().values()
    assert (dx == 0.5).all()


def test_a_dialect_is_chosen() -> None:
    binding = forward().bind("x", X)
    for dialect in ("torch", "tvm"):
        y = OpTaskInvocation(binding.signature, binding, dialect).run()
        np.testing.assert_allclose(y.numpy(), np.zeros((2, 4)), atol=1e-6)
    with pytest.raises(UnknownName, match="torhc"):
        OpTaskInvocation(binding.signature, binding, "torhc")
    with pytest.raises(DispatchError, match="layer_norm"):
        OpTaskInvocation(binding.signature, binding, "cublas").run()


def test_several_results_and_several_tensors() -> None:
    parts = OpTaskSignature.of(meta.op.concat, "forward")
    binding = OpTaskBinding(parts).bind(parts.tensors[0], (X, DY)).bind_arg("axis", 0)
    task = OpTaskInvocation(parts, binding)
    assert task.run().shape == (4, 4)
    (gradients,) = task.backward(meta.ones((4, 4))).run().values()
    assert [g.shape for g in gradients] == [(2, 4), (2, 4)]
    with pytest.raises(ArgumentError, match="a tuple of tensors"):
        OpTaskBinding(parts).bind(parts.tensors[0], X)
    with pytest.raises(ArgumentError, match="only a forward task"):
        task.backward(meta.ones((4, 4))).backward(X)


def test_an_operator_without_state_has_none() -> None:
    signature = OpTaskSignature.of(meta.op.random_key, "init")
    assert signature.writes == ()
    binding = forward().bind("x", X)
    task = OpTaskInvocation(binding.signature, binding)
    assert task.state is None
    with pytest.raises(ArgumentError, match="no state of its own"):
        assert task.backward(DY).state is None


def test_nothing_is_recorded() -> None:
    x = meta.ones((2, 4))
    x.requires_grad = True
    binding = forward().bind("x", x)
    y = OpTaskInvocation(binding.signature, binding).run()
    assert not y.tracked
    with pytest.raises(MetaError):
        y.sum().backward()
