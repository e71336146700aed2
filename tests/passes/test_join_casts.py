"""Casts of parameters in one call: which of them, and that programs then still give the same."""

from __future__ import annotations

import meta
from meta import op
from meta.base.device import CPU
from meta.dialect import only
from meta.ir import Call, parse
from meta.model import Model, layers, trace
from meta.optim import with_sgd
from meta.passes import dispatch, infer_type, join_casts

HEAD = "%u: float32[2], %v: float32[2], %w: float32[2], %t: float32[2]"
EACH = """
%a = astype(%u, dtype="float16")
%b = astype(%v, dtype="float16")
%c = astype(%w, dtype="float16")
"""


def joined(body: str, result: str = "(%a, %b, %c)", by: str = "torch") -> list[str]:
    """Return the names of the operators that are called; ``by``: the dialect to join them."""
    module = infer_type(parse(f"func @main({HEAD}) {{\n{body}\nreturn {result}\n}}"))
    with only("torch", "gloo"):
        module = dispatch(module, device=CPU)
    with only(by):
        found = join_casts(module, device=CPU, devices=("cpu",))
    infer_type(found)
    return [b.value.callee.name for b in found.main.body.bindings if isinstance(b.value, Call)]


def test_casts_of_one_dtype_are_one_call() -> None:
    assert joined(EACH) == ["torch.multi_tensor_cast"]


def test_they_stay_where_no_dialect_joins_them() -> None:
    assert joined(EACH, by="cuda") == ["torch.astype"] * 3


def test_few_stay() -> None:
    two = EACH.replace('%w, dtype="float16"', '%w, dtype="bfloat16"')
    assert joined(two) == ["torch.astype"] * 3


def test_what_is_written_before_it_is_cast_stays() -> None:
    late = 'multi_tensor_axpby((%u,), (%t,), 1.0, 1.0)\n%d = astype(%t, dtype="float16")'
    names = joined(f"{EACH}%r = {late}", "(%a, %b, %c, %d)")
    assert names == ["torch.multi_tensor_cast", "torch.multi_tensor_axpby", "torch.astype"]


def test_what_is_gathered_keeps_its_cast() -> None:
    others = """%d = astype(%t, dtype="float16")
    %g = all_gather(%d, over="dp", size=2)"""
    names = joined(f"{EACH}{others}", "(%a, %b, %c, %g)")
    assert names == ["torch.multi_tensor_cast", "torch.astype", "gloo.all_gather"]


def test_what_is_computed_and_what_is_no_float_stay() -> None:
    others = """%e = exp(%t)
    %d = astype(%e, dtype="float16")
    %i = astype(%t, dtype="int32")"""
    names = joined(f"{EACH}{others}", "(%a, %b, %c, %d, %i)")
    assert names == ["torch.multi_tensor_cast", "torch.exp", "torch.astype", "torch.astype"]


def test_results_are_cast_at_the_end() -> None:
    made = """%e = exp(%u)
    %f = exp(%v)
    %g = exp(%w)
    %a = astype(%e, dtype="float16")
    %h = reshape(%a, shape=(1, 2))
    %b = astype(%f, dtype="float16")
    %c = astype(%g, dtype="float16")
    %i = reshape(%c, shape=(2, 1))
    %j = exp(%t)"""
    exps = ["torch.exp"] * 3
    names = joined(made, "(%h, %b, %i, %j)")
    assert names == [*exps, "torch.exp", "torch.multi_tensor_cast", "reshape", "reshape"]
    read = f"{made}\n%k = exp(%h)"  # what is read here keeps its cast, and two are too few
    names = joined(read, "(%k, %b, %i, %j)")
    assert names.count("torch.astype") == 3 and "torch.multi_tensor_cast" not in names


def test_results_that_are_written_stay() -> None:
    made = """%a = astype(%t, dtype="float16")
    %e = exp(%u)
    %f = exp(%v)
    %g = exp(%w)
    %b = astype(%e, dtype="float16")
    %c = astype(%f, dtype="float16")
    %d = astype(%g, dtype="float16")
    %r = multi_tensor_axpby((%a,), (%d,), 1.0, 1.0)"""
    assert joined(made, "(%b, %c, %d)").count("torch.astype") == 4


def test_what_is_cast_twice_stays() -> None:
    twice = EACH + '%d = astype(%u, dtype="float16")'
    assert joined(twice, "(%a, %b, %c, %d)") == ["torch.astype"] * 4


class Net(Model):
    """Three projections and a loss."""

    def build(self) -> None:
        """Make the layers."""
        self.first, self.second, self.third = (layers.Linear(8, 8) for _ in range(3))

    @trace
    def forward(self, x):
        """Return the mean square of the result."""
        y = self.third(op.tanh(self.second(op.tanh(self.first(x)))))
        return op.mean(op.astype(y * y, "float32"))


def test_a_training_step_gives_the_same_bits() -> None:
    x, found = meta.random.normal((4, 8)), []
    for devices in ((), ("cpu",)):
        meta.random.seed(1)
        step = meta.amp.autocast(with_sgd(0.1)(Net()), dtype="float16")
        with meta.PassContext(config={"join_casts": {"devices": devices}}):
            executable = meta.vm.compile(step, meta.array(1.0), x)
        assert ("multi_tensor_cast" in str(executable.kernels())) == bool(devices)
        losses = [executable(meta.array(1.0), x).item() for _ in range(3)]
        found.append((losses, {n: a.numpy() for n, a in step.state().items()}))
    assert found[0][0] == found[1][0]
    assert all((found[0][1][n] == found[1][1][n]).all() for n in found[0][1])
