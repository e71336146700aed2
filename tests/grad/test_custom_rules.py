"""Rules of users' own, `custom_vjp` and `custom_jvp`: eager, traced and compiled, in transforms,
beside `torch.autograd.Function`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import ArgumentError, GradientError, MetaError
from meta.grad import grad, hessian, hvp, jacrev, jvp, linearize, vjp
from meta.ir import parse, verify
from meta.passes import autodiff, dead_code, infer_type, inline, simplify
from meta.passes import jvp as jvp_pass
from meta.testing import check_grads
from meta.vm.run.interpreter import run_module
from tests.grad.test_transforms import close, ours, randn
from tests.grad.test_value_and_grad import MODES, run


class Doubled(torch.autograd.Function):
    """sin(x) y, whose gradient by x is twice the true one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return torch.sin(x) * y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return dy * torch.cos(x) * y * 2, dy * torch.sin(x)


class Straight(torch.autograd.Function):
    """Straight through, and of what it returns its backward needs the result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result = torch.round(x * 4) / 4
        ctx.save_for_backward(result, y)
        return result

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        result, y = ctx.saved_tensors
        return dy * result * y, None


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        return -dy, None


@meta.custom_vjp
def doubled(x: Any, y: Any) -> Any:
    return meta.sin(x) * y


doubled.defvjp(
    lambda x, y: (doubled(x, y), {"slope": meta.cos(x) * y, "x": x}),
    lambda kept, dy: (dy * kept["slope"] * 2.0, dy * meta.sin(kept["x"])),
)


@meta.custom_vjp
def straight(x: Any, y: Any) -> Any:
    return meta.round(x * 4.0) / 4.0


def straight_fwd(x: Any, y: Any) -> Any:
    result = meta.round(x * 4.0) / 4.0
    return result, (result, y)


straight.defvjp(straight_fwd, lambda kept, dy: (dy * kept[0] * kept[1], None))


@meta.custom_vjp
def reversed_(x: Any, y: Any) -> Any:
    return x


reversed_.defvjp(lambda x, y: (x, None), lambda _, dy: (-dy, None))


@meta.custom_jvp
def doubled_forward(x: Any, y: Any) -> Any:
    return meta.sin(x) * y


@doubled_forward.defjvp
def doubled_rule(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return doubled_forward(x, y), dx * meta.cos(x) * y * 2.0 + dy * meta.sin(x)


@meta.custom_jvp
def straight_forward(x: Any, y: Any) -> Any:
    return meta.round(x * 4.0) / 4.0


@straight_forward.defjvp
def straight_rule(primals: Any, tangents: Any) -> Any:
    result = straight_forward(*primals)
    return result, tangents[0] * result * primals[1]


PAIRS: dict[str, tuple[Any, Any]] = {
    "doubled": (doubled, Doubled.apply),
    "straight": (straight, Straight.apply),
    "reversed": (reversed_, Reversed.apply),
    "doubled, forward": (doubled_forward, Doubled.apply),
    "straight, forward": (straight_forward, Straight.apply),
}
pairs = pytest.mark.parametrize(("own", "theirs"), PAIRS.values(), ids=PAIRS)


def loss(f: Callable[..., Any], m: Any) -> Callable[..., Any]:
    """The rule is in the middle, and its result is used twice."""

    def of(x: Any, y: Any) -> Any:
        z = f(x * x, y)
        return m.sum(z * z * y + m.tanh(z))

    return of


def derivatives_of_torch(f: Any, args: Any, vectors: Any) -> tuple[Any, Any]:
    leaves = [a.clone().requires_grad_() for a in args]
    gradients = torch.autograd.grad(loss(f, torch)(*leaves), leaves, create_graph=True)
    along = sum((g * v).sum() for g, v in zip(gradients, vectors, strict=True))
    products = torch.autograd.grad(along, leaves, allow_unused=True, materialize_grads=True)
    return [g.detach() for g in gradients], products


@pytest.mark.product
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(2, 3), (0,)], ids=str)
@pairs
def test_first_and_second_order(own: Any, theirs: Any, shape: Any, mode: str) -> None:
    args, vectors = [[randn(*shape, seed=i) for i in some] for some in ((1, 2), (3, 4))]
    gradients, products = derivatives_of_torch(theirs, args, vectors)
    of = loss(own, meta)
    given, moves = ours(args), ours(vectors)
    close(list(run(mode, grad(of, wrt=(0, 1)), *given)), gradients)

    def along(x: Any, y: Any) -> Any:
        found = grad(of, wrt=(0, 1))(x, y)
        return meta.sum(found[0] * moves[0] + found[1] * moves[1])

    close(list(run(mode, grad(along, wrt=(0, 1)), *given)), list(products))
    close(list(run(mode, lambda x, y: hvp(of, (x, y), tuple(moves)), *given)), list(products))
    change = sum((g * v).sum() for g, v in zip(gradients, vectors, strict=True))
    close(run(mode, lambda x, y: jvp(of, (x, y), tuple(moves))[1], *given), change)
    close(run(mode, lambda x, y: linearize(of, x, y)[1](*moves), *given), change)
    found = run(mode, lambda x, y: vjp(of, x, y)[1](meta.array(2.0, "float64")), *given)
    close(list(found), [2 * g for g in gradients])


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pairs
def test_hessians_forward_over_reverse_and_reverse_over_reverse(
    own: Any, theirs: Any, mode: str
) -> None:
    x, y = randn(3, seed=1), randn(3, seed=2)
    expected = torch.autograd.functional.hessian(lambda x: loss(theirs, torch)(x, y), x)
    of = loss(own, meta)
    close(run(mode, hessian(of), *ours((x, y))), expected)
    close(run(mode, jacrev(jacrev(of)), *ours((x, y))), expected)


@pytest.mark.product
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)], ids=str)
@pairs
def test_vmap(own: Any, theirs: Any, axes: Any, mode: str) -> None:
    args = [randn(*(() if a is None else (4,)), 3, seed=i) for i, a in enumerate(axes)]

    def rows(i: int) -> list[torch.Tensor]:
        return [a if axis is None else a[i] for a, axis in zip(args, axes, strict=True)]

    of = loss(own, meta)
    one = [torch.randn(3, dtype=torch.float64) for _ in args]
    every = [derivatives_of_torch(theirs, rows(i), one) for i in range(4)]
    for f, which in (
        (grad(of, wrt=(0, 1)), 0),
        (lambda *given: hvp(of, given, tuple(ours(one))), 1),
    ):
        expected = [torch.stack(column) for column in zip(*(e[which] for e in every), strict=True)]
        close(list(run(mode, meta.vmap(f, axes), *ours(args))), expected)

    def total(*given: Any) -> Any:
        return meta.sum(meta.vmap(of, axes)(*given))

    first = grad(total, wrt=(0, 1))
    expected = [
        g.sum(0) if axis is None else g
        for g, axis in zip(
            (torch.stack(c) for c in zip(*(e[0] for e in every), strict=True)), axes, strict=True
        )
    ]
    close(list(run(mode, first, *ours(args))), expected)
    moves = ours([torch.ones_like(a) for a in args])
    change = sum(e.sum() for e in expected)
    close(run(mode, lambda *given: jvp(total, given, tuple(moves))[1], *ours(args)), change)


@pytest.mark.parametrize("mode", MODES)
def test_containers_integers_static_arguments_and_several_results(mode: str) -> None:
    @meta.custom_vjp(static=("power", 3))
    def f(tree: Any, power: int, index: Any, name: str = "a") -> Any:
        return {"y": tree[name] ** power, "n": index + 1}, tree["b"][0][index]

    def fwd(tree: Any, power: int, index: Any, name: str) -> Any:
        return f(tree, power, index, name), (tree, [index, None, 3])

    def bwd(power: int, name: str, kept: Any, dy: Any) -> Any:
        tree, (index, nothing, three) = kept
        assert nothing is None and three == 3 and dy[0]["n"] is None
        spread = meta.one_hot(index, tree["b"][0].shape[0], dtype="float64") * dy[1]
        return {"a": dy[0]["y"] * (10.0 * power), "b": (spread,)}, None

    f.defvjp(fwd, bwd)
    tree = {"a": meta.array([1.0, 2.0], "float64"), "b": (meta.array([1.0, 5.0, 7.0], "float64"),)}

    def of(tree: Any, index: Any) -> Any:
        first, second = f(tree, 2, index)
        return meta.sum(first["y"]) + 3.0 * second

    found = run(mode, grad(of), tree, meta.array(1))
    assert found["a"].tolist() == [20.0, 20.0]
    assert found["b"][0].tolist() == [0.0, 3.0, 0.0]
    assert run(mode, of, tree, meta.array(1)).item() == 5.0 + 15.0


@pytest.mark.parametrize("mode", MODES)
def test_arrays_of_others(mode: str) -> None:
    f = meta.custom_vjp(lambda x: {"y": x * 2.0, "one": torch.ones(2)})
    f.defvjp(
        lambda x: ({"y": x * 2.0, "one": torch.ones(2)}, (torch.full((3,), 3.0), 2)),
        lambda kept, dy: (dy["y"] * kept[0] * kept[1],),
    )
    found = run(mode, grad(lambda x: meta.sum(f(x)["y"])), torch.ones(3))
    assert found.tolist() == [6.0, 6.0, 6.0]


def test_a_call_that_nobody_differentiates_computes_the_function() -> None:
    ran = []

    @meta.custom_vjp
    def f(x: Any) -> Any:
        ran.append("f")
        return x * 2.0

    def fwd(x: Any) -> Any:
        ran.append("fwd")
        return x * 2.0, None

    f.defvjp(fwd, lambda _, dy: (dy,))
    x = meta.ones(2)
    f(x)
    assert ran == ["f"]
    grad(lambda x: meta.sum(f(x)))(x)
    assert ran == ["f", "fwd"]
    traced = meta.model.trace(lambda x: f(x))
    assert [b.value.callee.name for b in traced.program(x).module.main.body.bindings] == ["f"]


def test_it_costs_nothing() -> None:
    """The functions of a rule are inlined, whatever their size and how often they are called."""

    @meta.custom_vjp
    def f(x: Any) -> Any:
        for _ in range(20):
            x = meta.sin(x)
        return x

    def fwd(x: Any) -> Any:
        return f(x), x

    def bwd(x: Any, dy: Any) -> Any:
        for _ in range(20):
            dy = meta.cos(dy)
        return (dy,)

    f.defvjp(fwd, bwd)
    step = meta.model.trace(lambda x: grad(lambda x: meta.sum(f(f(x)) * f(x)))(x))
    module = step.program(meta.ones(3)).module
    done = dead_code(simplify(inline(module)))
    assert list(done.functions) == ["main"]


TEXT = """func @main(%x: float64[2]) -> float64[2] {
  %y: float64[2] = @f(%x)
  %z: float64[2] = multiply(%y, %y)
  return %z
}

func @f(%x: float64[2]) -> float64[2] attrs(fwd=@f_fwd, bwd=@f_bwd) {
  %y: float64[2] = round(%x)
  return %y
}

func @f_fwd(%x: float64[2]) -> (float64[2], float64[2]) {
  %y: float64[2] = round(%x)
  %kept: float64[2] = sin(%x)
  return (%y, %kept)
}

func @f_bwd(%dy: float64[2], %kept: float64[2]) -> (float64[2],) {
  %0: float64[2] = multiply(%dy, %kept)
  return (%0,)
}"""


def test_a_rule_is_text() -> None:
    module = parse(TEXT)
    assert str(module) == TEXT
    verify(module, typed=True)
    backward = autodiff(module, wrt=["x"])
    verify(backward, typed=True)
    assert str(parse(str(backward))) == str(backward)
    assert "@f_of(%x, %y, %kept)" in str(backward) and "attrs(bwd=@f_bwd)" in str(backward)
    forward = jvp_pass(module, wrt=["x"])
    verify(forward, typed=True)
    assert str(infer_type(forward)) == str(forward)


@pytest.mark.parametrize(
    "text", [TEXT.replace("@f_bwd)", "@g)", 1), TEXT.replace("bwd=@f_bwd", "bwd=%x")]
)
def test_a_rule_that_is_not_there(text: str) -> None:
    with pytest.raises(MetaError):
        parse(text)


@pytest.mark.parametrize(("own", "theirs"), [PAIRS["doubled"], PAIRS["doubled, forward"]])
def test_parsed_and_saved(own: Any, theirs: Any, tmp_path: Any) -> None:
    x, y = randn(3, seed=1), randn(3, seed=2)
    gradients, _ = derivatives_of_torch(theirs, (x, y), (x, y))
    given = ours((x, y))
    traced = meta.model.trace(lambda x, y: loss(own, meta)(x, y))
    module = parse(str(traced.program(*given).module))
    made = autodiff(module, wrt=[0, 1])
    _, found = run_module(made, [meta.array(1.0, "float64"), *given])
    close(list(found), gradients)
    step = meta.model.trace(lambda x, y: grad(loss(own, meta), wrt=(0, 1))(x, y))
    meta.vm.compile(step, *given).save(tmp_path / "step.meta")
    close(list(meta.vm.load(tmp_path / "step.meta")(*given)), gradients)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_rule_may_not_return(mode: str) -> None:
    def of(bwd: Callable[..., Any], fwd: Any = None) -> Any:
        @meta.custom_vjp
        def f(x: Any, y: Any) -> Any:
            return x * y

        f.defvjp(fwd or (lambda x, y: (x * y, None)), bwd)
        return lambda x, y: meta.sum(f(x, y))

    x = meta.ones((2, 3))
    for bwd, expected, found in (
        (lambda _, dy: dy, "(float32[2, 3], float32[2, 3])", "float32[2, 3]"),
        (lambda _, dy: (dy,), "(float32[2, 3], float32[2, 3])", "(float32[2, 3],)"),
        (lambda _, dy: (dy, [dy]), "float32[2, 3]", "list"),
        (lambda _, dy: (dy, meta.sum(dy)), "float32[2, 3]", "float32[]"),
        (lambda _, dy: (dy.astype("float64"), dy), "float32[2, 3]", "float64[2, 3]"),
        (lambda _, dy: (dy, 0.0), "float32[2, 3]", "float"),
    ):
        with pytest.raises(GradientError, match="the rule <lambda> of f") as caught:
            run(mode, grad(of(bwd)), x, x)
        error = caught.value
        assert str(error.expected) == expected and found in str(error.found)
        assert error.span.file == __file__ and error.span.line == bwd.__code__.co_firstlineno
    with pytest.raises(GradientError, match="does not return two things"):
        run(mode, grad(of(lambda _, dy: (dy, dy), lambda x, y: x * y)), x, x)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_forward_rule_may_not_return(mode: str) -> None:
    def of(rule: Callable[..., Any]) -> Any:
        @meta.custom_jvp
        def f(x: Any) -> Any:
            return meta.sum(x, 0)

        f.defjvp(rule)
        return lambda x: meta.sum(f(x))

    for rule in (
        lambda p, t: meta.sum(p[0]),
        lambda p, t: (meta.sum(p[0], 0), t[0]),
        lambda p, t: (p[0], t[0]),
        lambda p, t: (meta.sum(p[0], 0), (t[0],)),
    ):
        with pytest.raises(GradientError, match="the rule <lambda> of f"):
            run(mode, grad(of(rule)), meta.ones((2, 3)))
        with pytest.raises(GradientError, match="the rule <lambda> of f"):
            run(mode, lambda x, rule=rule: jvp(of(rule), (x,), (x,)), meta.ones((2, 3)))


@pytest.mark.parametrize("mode", MODES)
def test_a_rule_that_clips_has_no_forward_mode(mode: str) -> None:
    @meta.custom_vjp
    def clipped(x: Any) -> Any:
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, dy: (meta.clip(dy, -1.0, 1.0),))

    def of(x: Any) -> Any:
        return meta.sum(clipped(x) ** 3)

    x = meta.array([0.1, 1.0, 2.0], "float64")
    close(run(mode, grad(of), x), torch.tensor([0.03, 1.0, 1.0], dtype=torch.float64))
    close(
        run(mode, jacrev(jacrev(of)), x),
        torch.diag(torch.tensor([0.6, 0.0, 0.0], dtype=torch.float64)),
    )
    with pytest.raises(GradientError, match="linear"):
        run(mode, lambda x: jvp(of, (x,), (x,)), x)
    with pytest.raises(GradientError, match="linear"):
        run(mode, hessian(of), x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["vjp", "jvp"])
def test_closing_over(mode: str, kind: str) -> None:
    def of(x: Any, w: Any, held: Callable[[Any], Any] = lambda w: w) -> Any:
        w = held(w)
        if kind == "vjp":
            f = meta.custom_vjp(lambda x: x * w)
            f.defvjp(lambda x: (x * w, meta.cos(w)), lambda kept, dy: (dy * w * kept,))
        else:
            f = meta.custom_jvp(lambda x: x * w)
            f.defjvp(lambda p, t: (p[0] * w, t[0] * w * meta.cos(w)))
        return meta.sum(f(x))

    x, w = randn(3, seed=1), randn(3, seed=2)
    close(run(mode, grad(of), *ours((x, w))), w * torch.cos(w))
    found = run(mode, grad(lambda x, w: of(x, w, meta.detach), wrt=(0, 1)), *ours((x, w)))
    close(list(found), [w * torch.cos(w), torch.zeros(3, dtype=torch.float64)])
    for wrt in ((0, 1), 1):
        with pytest.raises(GradientError, match="closes over"):
            run(mode, grad(of, wrt=wrt), *ours((x, w)))


@pytest.mark.parametrize("mode", MODES)
def test_in_control_flow_and_checkpoints(mode: str) -> None:
    def of(x: Any, f: Any = doubled) -> Any:
        block = meta.model.checkpoint(lambda x: f(x, x))
        y = meta.cond(meta.sum(x) > -100.0, lambda: block(x), lambda: x)
        (y,), _ = meta.scan(lambda state, _: ((f(state[0], x),), None), (y,), meta.zeros(3))
        return meta.sum(y)

    def of_torch(x: torch.Tensor) -> torch.Tensor:
        y = Doubled.apply(x, x)
        for _ in range(3):
            y = Doubled.apply(y, x)
        return y.sum()

    x = randn(3, seed=1)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(of_torch(leaf), leaf, create_graph=True)
    close(run(mode, grad(of), *ours((x,))), expected)
    (product,) = torch.autograd.grad(expected.sum(), leaf)
    second = grad(lambda x: meta.sum(grad(of)(x)))
    close(run(mode, second, *ours((x,))), product)
    forward = run(mode, lambda x: jvp(lambda x: of(x, doubled_forward), (x,), (x,))[1], *ours((x,)))
    close(forward, (expected * x).sum())


def test_a_tape_goes_back_through_a_traced_program() -> None:
    x, y = randn(3, seed=1), randn(3, seed=2)
    for own, theirs in PAIRS.values():
        gradients, products = derivatives_of_torch(theirs, (x, y), (x, y))
        traced = meta.model.trace(lambda x, y, own=own: loss(own, meta)(x, y))
        leaves = ours((x, y))
        for leaf in leaves:
            leaf.requires_grad = True
        found = [meta.grad(traced(*leaves), leaf, create_graph=True) for leaf in leaves]
        close(found, gradients)
        along = meta.sum(found[0] * meta.array(x)) + meta.sum(found[1] * meta.array(y))
        close([meta.grad(along, leaf) for leaf in leaves], list(products))


@pytest.mark.parametrize("mode", MODES)
def test_what_was_written_after_a_call(mode: str) -> None:
    for f in (doubled, doubled_forward):

        def of(x: Any, f: Any = f) -> Any:
            held = x * 1.0
            y = f(held, x)
            meta.assign(held, x)
            return meta.sum(y)

        with pytest.raises(GradientError, match="written in place"):
            run(mode, grad(of), meta.ones(3, "float64"))


@pytest.mark.parametrize("mode", MODES)
def test_detach_stops_tangents_too(mode: str) -> None:
    def of(x: Any) -> Any:
        return meta.sum(meta.detach(x) * x * x)

    x = randn(3, seed=1)
    close(run(mode, lambda x: jvp(of, (x,), (x,))[1], *ours((x,))), 2 * (x**3).sum())
    close(run(mode, hessian(of), *ours((x,))), torch.diag(2 * x))


def test_calls_that_do_not_fit() -> None:
    @meta.custom_vjp
    def f(x: Any, n: Any = 2) -> Any:
        return x * n

    with pytest.raises(ArgumentError, match="f has no rule"):
        f(meta.ones(2))
    f.defvjp(lambda x, n: (x * n, None), lambda _, dy: (dy, None))
    with pytest.raises(ArgumentError, match="no array"):
        f(meta.ones(2), 2)
    with pytest.raises(ArgumentError, match="cannot be called"):
        f(meta.ones(2), 1, 2)
    with pytest.raises(ArgumentError, match="no argument 'm'"):
        meta.custom_vjp(lambda n: n, static="m")
    with pytest.raises(ArgumentError, match="by position"):
        meta.custom_jvp(lambda *, n: n)
    with pytest.raises(ArgumentError, match="of a function"):
        meta.custom_jvp(3)


def test_what_is_written_later_is_refused() -> None:
    class Counted(meta.Model):
        def build(self) -> None:
            self.w = meta.model.parameter(meta.ones(3))
            self.held = meta.ones(3)

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            y = doubled(x * self.w, self.held)
            self.held = self.held + 1.0
            return y

    step = meta.optim.with_sgd(lr=0.1)(Counted())
    step(meta.ones(3), meta.ones(3))  # a new value is no write
    module = parse(
        TEXT.replace("%z: float64[2] = multiply(%y, %y)", "%u: () = assign(%x, %y)")
        .replace("return %z", "return %y", 1)
        .replace("return (%y, %kept)", "return (%y, %x)")
    )
    with pytest.raises(GradientError, match="written in place"):
        autodiff(module, wrt=["x"])


@meta.custom_vjp
def product(x: Any, y: Any) -> Any:
    return meta.exp(x) * y


def product_fwd(x: Any, y: Any) -> Any:
    e = meta.exp(x)
    return e * y, (e, y)


product.defvjp(product_fwd, lambda kept, dz: (dz * kept[0] * kept[1], dz * kept[0]))


@meta.custom_jvp
def product_forward(x: Any, y: Any) -> Any:
    return meta.exp(x) * y


@product_forward.defjvp
def product_rule(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    e = meta.exp(x)
    return e * y, e * (y * dx + dy)


@pytest.mark.parametrize("f", [product, product_forward])
def test_differences_of_values(f: Callable[..., Any]) -> None:
    x, y = ours((randn(2, 3, seed=1), randn(2, 3, seed=2)))
    check_grads(lambda x, y: meta.sin(f(x * y, y)), (x, y), order=2)


def test_rules_run_in_the_precision_of_their_call() -> None:
    """What a program computes, the tape computes: in a block of mixed precision, too."""

    @meta.custom_vjp
    def backwards(x: Any, w: Any) -> Any:
        return meta.matmul(x, w)

    backwards.defvjp(
        lambda x, w: (backwards(x, w), (x, w)),
        lambda kept, dy: tuple(
            meta.matmul(a, b).astype("float32") for a, b in ((dy, kept[1].T), (kept[0].T, dy))
        ),
    )

    @meta.custom_jvp
    def forwards(x: Any, w: Any) -> Any:
        return meta.matmul(x, w)

    @forwards.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, w), (dx, dw) = primals, tangents
        return forwards(x, w), meta.matmul(dx, w) + meta.matmul(x, dw)

    x, w = ours((randn(4, 4, seed=1).float(), randn(4, 4, seed=2).float()))
    for f in (backwards, forwards):

        def of(x: Any, w: Any, f: Any = f) -> Any:
            with meta.amp.autocast_scope("bfloat16"):
                y = f(x, w)
            assert y.dtype == "bfloat16"
            return meta.sum(y.astype("float32"))

        eager, traced = (run(mode, grad(of, wrt=(0, 1)), x, w) for mode in ("eager", "traced"))
        for a, b in zip(eager, traced, strict=True):
            assert a.dtype == "float32"
            torch.testing.assert_close(a.torch(), b.torch(), rtol=0, atol=0)
