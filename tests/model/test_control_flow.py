"""`cond`, `while_loop` and `scan`: eagerly and traced they give the same, and torch's gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base import config
from meta.base.errors import TraceError, TypeInferError
from meta.ir import bindings, parse, parse_type, structural_equal, verify
from meta.ir.expr import GlobalVar, If
from meta.model import Model, parameter, trace
from meta.op.core import tree
from meta.passes import autodiff
from meta.testing import check
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret


def f32(*shape: int, seed: int = 0) -> meta.ndarray:
    return meta.array(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


def both(function: Any, *args: Any) -> Any:
    """Run a function eagerly, traced and compiled, which must agree; return one result."""
    traced = trace(function)
    expected = function(*args)
    expected_leaves, structure = tree.flatten(expected)
    for run in (traced, meta.vm.compile(traced, *args)):
        leaves, found = tree.flatten(run(*args))
        assert tree.fingerprint(found) == tree.fingerprint(structure)
        assert [a.key for a in leaves] == [a.key for a in expected_leaves]
        check(leaves, expected_leaves, 1e-6, 1e-6)
    module = traced.program(*args).module
    verify(module, typed=True)
    assert structural_equal(parse(str(module)), module)
    return expected


def gradients(function: Any, *args: meta.ndarray) -> list[np.ndarray]:
    """Return the gradients of the sum of a function's results by its arguments."""
    leaves = [meta.array(a) for a in args]
    for leaf in leaves:
        leaf.requires_grad = True
    results = [r for r in tree.flatten(function(*leaves))[0] if "float" in r.dtype]
    total = op.sum(results[0])
    for r in results[1:]:
        total = total + op.sum(r)
    total.backward()
    return [leaf.grad.numpy() for leaf in leaves]


def both_gradients(function: Any, *args: meta.ndarray) -> list[np.ndarray]:
    """Return the gradients, which are the same by the tape through a traced function, and by the
    autodiff pass, interpreted and compiled.
    """
    expected, traced = gradients(function, *args), trace(function)
    module = autodiff(traced.program(*args).module, wrt=range(len(args)))
    verify(module, typed=True)
    dys = [op.ones(p.type.shape, p.type.dtype) for p in module.main.params[: -len(args)]]
    program = module_program(module)
    results = [
        gradients(traced, *args),
        [g.numpy() for g in interpret(program, *dys, *args)[1]],
        [g.numpy() for g in meta.vm.compile(program, *dys, *args)(*dys, *args)[1]],
    ]
    for found in results:
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-5)
    return expected


# cond


@pytest.mark.parametrize("x", [-2.0, 2.0])
def test_one_branch_is_taken(x: float) -> None:
    def f(x: Any) -> Any:
        return meta.cond(x > 0.0, lambda v: op.exp(v), lambda v: v * 3.0, x)

    assert both(f, meta.array(x)).item() == pytest.approx(np.exp(x) if x > 0 else 3 * x)
    (dx,) = both_gradients(f, meta.array(x))
    assert dx == pytest.approx(np.exp(x) if x > 0 else 3.0)


@pytest.mark.parametrize(("x", "expected"), [(-5.0, 0), (-0.5, 1), (0.5, 2), (5.0, 3)])
def test_nested_branches(x: float, expected: int) -> None:
    def f(x: Any) -> Any:
        double = x * 2.0

        def negative() -> Any:
            return meta.cond(double < -2.0, lambda: (x, 0), lambda: (double, 1))

        def positive() -> Any:
            return meta.cond(double > 2.0, lambda: (-x, 3), lambda: (-double, 2))

        return meta.cond(x < 0.0, negative, positive)

    value, which = both(f, meta.array(x))
    assert which.item() == expected
    assert value.item() == (-abs(x) if abs(x) > 1 else -abs(2 * x))


def test_branches_return_containers() -> None:
    def f(x: Any, flag: Any) -> Any:
        return meta.cond(
            flag,
            lambda s: {"a": [s["x"], 1.5], "none": None},
            lambda s: {"a": [s["x"] * 2.0, 2.5], "none": None},
            {"x": x},
        )

    assert both(f, f32(2), meta.array(False))["a"][1].item() == 2.5
    assert both(f, f32(2), meta.array(True))["a"][1].item() == 1.5


def test_a_python_bool_chooses_while_tracing() -> None:
    @trace
    def f(x: Any, flag: bool) -> Any:
        return meta.cond(flag, op.exp, lambda x: (x, x), x)

    assert len(f(f32(2), False)) == 2
    assert not any(isinstance(b.value, If) for b in bindings(f.program(f32(2), True).module.main))


def test_only_the_branch_that_is_taken_writes() -> None:
    @trace
    def f(x: Any, flag: Any) -> Any:
        def write() -> None:
            op.sgd(x, op.ones_like(x), op.zeros_like(x), 1.0, 0.0)

        meta.cond(flag, write, lambda: None)
        return x * 1.0

    x = meta.array([5.0])
    assert f(x, meta.array(False)).item() == 5.0
    assert f(x, meta.array(True)).item() == x.item() == 4.0


# while_loop


def test_a_series() -> None:
    """The sum of x ** k / k!, until the terms are small."""

    def exponential(x: Any) -> Any:
        def body(state: Any) -> Any:
            k, term, total = state
            return k + 1.0, term * x / k, total + term

        return meta.while_loop(lambda s: op.abs(s[1]) > 1e-9, body, (1.0, x * 0.0 + 1.0, 0.0))[2]

    x = meta.array(1.5)
    assert both(exponential, x).item() == pytest.approx(np.exp(1.5), 1e-5)
    assert both_gradients(exponential, x)[0] == pytest.approx(np.exp(1.5), 1e-5)


@pytest.mark.parametrize(("a", "b"), [(12, 18), (17, 5), (0, 4), (48, 36)])
def test_greatest_common_divisor(a: int, b: int) -> None:
    def gcd(a: Any, b: Any) -> Any:
        return meta.while_loop(lambda s: s[1] != 0, lambda s: (s[1], s[0] % s[1]), (a, b))[0]

    assert both(gcd, meta.array(a), meta.array(b)).item() == np.gcd(a, b)


def test_a_loop_in_a_loop_captures_through_both() -> None:
    def f(x: Any, w: Any) -> Any:
        half = w * 0.5

        def outer(state: Any) -> Any:
            def inner(s: Any) -> Any:
                return {"j": s["j"] + 1, "y": s["y"] * half + x * state["n"]}

            inner_state = {"j": 0, "y": state["y"]}
            y = meta.while_loop(lambda s: s["j"] < state["i"], inner, inner_state)["y"]
            return {"i": state["i"] + 1, "n": state["n"] + 1.0, "y": y}

        return meta.while_loop(lambda s: s["i"] < 4, outer, {"i": 0, "n": 1.0, "y": x})["y"]

    x, w = f32(3), f32(3, seed=1)
    both(f, x, w)
    dx, dw = both_gradients(f, x, w)
    a, b = (v.detach().torch().clone().requires_grad_() for v in (x, w))
    y = a
    for i in range(4):
        for _ in range(i):
            y = y * (b * 0.5) + a * (i + 1.0)
    y.sum().backward()
    np.testing.assert_allclose(dx, a.grad, 1e-5, 1e-6)
    np.testing.assert_allclose(dw, b.grad, 1e-5, 1e-6)
    names = trace(f).program(x, w).module.functions
    assert list(names) == ["main", "while_loop_1", "while_loop"]


def test_a_loop_with_a_branch_and_a_branch_with_a_loop() -> None:
    def collatz(n: Any) -> Any:
        def body(s: Any) -> Any:
            n, steps = s
            return meta.cond(n % 2 == 0, lambda: n // 2, lambda: n * 3 + 1), steps + 1

        loop = lambda: meta.while_loop(lambda s: s[0] != 1, body, (n, 0))[1]  # noqa: E731
        return meta.cond(n > 0, loop, lambda: -1)

    assert both(collatz, meta.array(27)).item() == 111
    assert both(collatz, meta.array(-27)).item() == -1


def test_a_loop_runs_in_constant_space() -> None:
    @trace
    def count(n: Any) -> Any:
        return meta.while_loop(lambda i: i < n, lambda i: i + 1, 0)

    with config.override(META_MAX_DEPTH=1):
        assert count(meta.array(2000)).item() == 2000


class Power(Model):
    """Applies a matrix until the vector is long."""

    def build(self) -> None:
        self.w = parameter(meta.array([[1.0, 1.0], [1.0, 0.0]]))
        self.unused = parameter(f32(1))

    @trace
    def forward(self, x: Any) -> Any:
        return meta.while_loop(
            lambda v: op.sum(v) < 10.0, lambda v: op.squeeze(op.matmul(self.w, v[:, None]), 1), x
        )


def test_a_closure_captures_a_parameter() -> None:
    model = Power()
    x = meta.array([1.0, 1.0])
    y = model(x)
    assert y.numpy().tolist() == [8.0, 5.0]
    program = model.program(x)
    assert [a is model.w for a in program.arrays] == [True]
    assert [p.name for p in program.module.functions["while_loop"].params] == ["state", "w"]
    op.sum(y).backward()
    w = model.w.detach().torch().clone().requires_grad_()
    torch.linalg.matrix_power(w, 4).sum().backward()
    np.testing.assert_allclose(model.w.grad.numpy(), w.grad)
    model.w.update([[2.0, 0.0], [0.0, 2.0]])
    assert model(x).numpy().tolist() == [8.0, 8.0]


# scan


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_over_containers(reverse: bool) -> None:
    def f(a: Any, b: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            new = state * 0.5 + x["a"] * x["b"][0]
            return new, {"new": new, "old": (state, 1)}

        return meta.scan(step, op.zeros_like(a[0]), {"a": a, "b": [b]}, reverse=reverse)

    a, b = f32(5, 2), f32(5, 1, seed=1)
    state, ys = both(f, a, b)
    expected, rows = torch.zeros(2), {}
    for i in reversed(range(5)) if reverse else range(5):
        expected = expected * 0.5 + a.torch()[i] * b.torch()[i]
        rows[i] = expected
    check(state, expected)
    check(ys["new"], torch.stack([rows[i] for i in range(5)]))
    assert ys["old"][1].numpy().tolist() == [1] * 5
    both_gradients(f, a, b)


def test_scan_without_rows_or_results() -> None:
    def f(x: Any) -> Any:
        return meta.scan(lambda s, _: (s * x, None), x, None, length=3)

    assert both(f, meta.array(2.0))[0].item() == 16.0
    assert both(f, meta.array(2.0))[1] is None
    assert both_gradients(f, meta.array(2.0))[0] == 32.0


@pytest.mark.product
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", [64, 65, 67, 81, 100])
def test_long_scans_run_in_blocks(count: int, reverse: bool) -> None:
    def f(xs: Any, k: Any) -> Any:
        return meta.scan(
            lambda s, x: ((s[0] * k + x, s[1] + 1), (s[0], s[1])), (k * 0.0, 0), xs, reverse=reverse
        )

    xs, k = f32(count), meta.array(0.9)
    (_, steps), (_, numbers) = both(f, xs, k)
    assert steps.item() == count
    assert numbers.numpy().tolist() == list(range(count))[:: -1 if reverse else 1]
    both_gradients(f, xs, k)


def test_a_long_scan_copies_few_rows() -> None:
    program = trace(lambda xs: meta.scan(lambda s, x: (s, x), 0.0, xs)[1]).program(f32(1000, 2))
    inner = program.module.functions["scan_1"]
    assert {str(p.type) for p in inner.params} == {"int64[]", "float32[]", "float32[32, 2]"}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_of_as_many_rows_as_a_name_says(reverse: bool) -> None:
    def f(xs: Any, k: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            new = state * k + x
            return new, new * x

        state, ys = meta.scan(step, k * 0.0, xs, reverse=reverse)
        return state * 2.0, ys

    dims = {"n": (1, 100)}
    types = (parse_type("float32[n, 2]"), parse_type("float32[2]"))
    exe = meta.vm.compile(trace(f), *types, dims=dims)
    module = autodiff(trace(f).program(*types).module, wrt=range(2))
    verify(module, typed=True)
    dy_types = [p.type for p in module.main.params[:-2]]
    backward = meta.vm.compile(module_program(module), *dy_types, *types, dims=dims)
    for count in (1, 2, 70):
        xs, k = f32(count, 2), f32(2, seed=1)
        for found, expected in zip(exe(xs, k), f(xs, k), strict=True):
            check(found, expected, 1e-5, 1e-5)
        found = backward(op.ones((2,)), op.ones((count, 2)), xs, k)[1]
        for one, other in zip(found, gradients(f, xs, k), strict=True):
            np.testing.assert_allclose(one.numpy(), other, 1e-4, 1e-4)


class LSTM(Model):
    """A cell of torch's formulas, run along the first axis."""

    def build(self, cell: torch.nn.LSTMCell) -> None:
        self.w_x, self.w_h = (parameter(w.detach()) for w in (cell.weight_ih, cell.weight_hh))
        self.b = parameter((cell.bias_ih + cell.bias_hh).detach())

    def step(self, state: Any, x: Any) -> Any:
        h, c = state
        gates = op.matmul_nt(x, self.w_x) + op.matmul_nt(h, self.w_h) + self.b
        i, f, g, o = op.split(gates, 4, 1)
        c = op.sigmoid(f) * c + op.sigmoid(i) * op.tanh(g)
        h = op.sigmoid(o) * op.tanh(c)
        return (h, c), h

    @trace
    def forward(self, xs: Any, h: Any, c: Any) -> Any:
        return meta.scan(self.step, (h, c), xs)


def test_an_lstm_is_torchs() -> None:
    torch.manual_seed(0)
    cell = torch.nn.LSTMCell(3, 4)
    model = LSTM(cell)
    xs, h, c = f32(6, 2, 3), f32(2, 4, seed=1), f32(2, 4, seed=2)
    expected = []
    state = (h.torch(), c.torch())
    for x in xs.torch():
        state = cell(x, state)
        expected.append(state[0])
    torch.stack(expected).square().sum().backward()

    def check_gradients(found: dict[str, meta.ndarray]) -> None:
        for ours, theirs in (
            ("w_x", cell.weight_ih), ("w_h", cell.weight_hh), ("b", cell.bias_hh)
        ):  # fmt: skip
            np.testing.assert_allclose(found[ours].numpy(), theirs.grad, 1e-4, 1e-5)

    traced = model.forward
    for run in (lambda *a: traced.function(model, *a), model, meta.vm.compile(model, xs, h, c)):
        (last_h, last_c), ys = run(xs, h, c)
        check((last_h, last_c, ys), (*state, torch.stack(expected)), 1e-5, 1e-5)
        if ys.requires_grad:
            for weight in model.parameters():
                weight.grad = None
            op.sum(ys * ys).backward()
            check_gradients({n: w.grad for n, w in model.named_parameters()})
    step = meta.model.value_and_grad(model)
    dy = ((op.zeros_like(h), op.zeros_like(c)), 2.0 * ys)
    for run in (step, meta.vm.compile(step, dy, xs, h, c)):
        (_, found), by_name = run(dy, xs, h, c)
        check(found, ys, 1e-5, 1e-5)
        check_gradients(by_name)


# Symbolic dimensions.


def test_loops_and_branches_on_arrays_of_any_extent() -> None:
    @trace
    def f(x: Any, k: Any) -> Any:
        y = meta.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, s[1] * 0.5 + x * k), (0, x))[1]
        y = meta.cond(op.sum(y) > 0.0, lambda: y * 2.0, lambda: -y)
        return meta.scan(lambda s, row: (s + row, s * row), op.sum(y, 1), op.permute_dims(y))

    types = parse_type("float32[n, 3]"), parse_type("float32[]")
    verify(f.program(*types).module, typed=True)
    compiled = meta.vm.compile(f, *types)
    for rows in (1, 2, 5):
        x, k = f32(rows, 3, seed=rows), meta.array(0.5)
        check(compiled(x, k), f.function(x, k), 1e-5, 1e-5)


# Several functions in one program.


def test_the_functions_of_an_inlined_gradient_come_along() -> None:
    class Scaled(Model):
        def build(self) -> None:
            self.w = parameter(f32(2))

        @trace
        def forward(self, x: Any, n: Any) -> Any:
            doubled = meta.while_loop(lambda i: i < 10, lambda i: i * 2, n)
            return self.w * x * op.astype(doubled, "float32")

    step = meta.model.value_and_grad(Scaled())

    class Twice(Model):
        def build(self) -> None:
            self.step = step

        @trace
        def forward(self, dy: Any, x: Any, n: Any) -> Any:
            n = meta.while_loop(lambda i: i < 3, lambda i: i + 1, n)
            return self.step(dy, x, n), self.step(dy, x * 2.0, n)

    model, x, n = Twice(), f32(2), meta.array(1)
    (_, first), (_, second) = model(op.ones_like(x), x, n)
    np.testing.assert_allclose(first["w"].numpy(), x.numpy() * 12)
    np.testing.assert_allclose(second["w"].numpy(), x.numpy() * 24)
    module = model.program(op.ones_like(x), x, n).module
    verify(module, typed=True)
    called = {
        b.value.callee.name
        for b in bindings(module.main)
        if isinstance(getattr(b.value, "callee", None), GlobalVar)
    }
    assert called == set(module.functions) - {"main"}
    assert len(called) == 3


# What is refused, in the same words wherever it can be noticed.


def line(function: Any) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno}"


def one_type(x: Any) -> Any:
    return {"a": x, "b": (x, 1)}


def another_type(x: Any) -> Any:
    return {"a": x[:1], "b": (x, 1)}


@pytest.mark.parametrize("pred", [1, 1.0, [True], [[True]]])
def test_a_predicate_is_one_bool(pred: Any) -> None:
    def f(x: Any) -> Any:
        return meta.cond(meta.array(pred), lambda: x, lambda: x)

    def g(x: Any) -> Any:
        return meta.while_loop(lambda x: meta.array(pred), lambda x: x, x)

    for function in (f, g):
        for run in (function, trace(function)):
            with pytest.raises(TypeInferError, match="must be a bool array without axes") as caught:
                run(f32(2))
            assert caught.value.span.file == __file__


def test_branches_that_differ() -> None:
    @trace
    def f(x: Any) -> Any:
        return meta.cond(op.sum(x) > 0.0, one_type, another_type, x)

    with pytest.raises(TraceError, match="the branches of cond return different types") as caught:
        f(f32(2))
    message = str(caught.value)
    assert "{'a': float32[2], 'b': (float32[2], int64[])}" in message
    assert "{'a': float32[1], 'b': (float32[2], int64[])}" in message
    assert f"one_type at {line(one_type)}" in message
    assert f"another_type at {line(another_type)}" in message
    assert caught.value.span.line == f.function.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    "body",
    [
        lambda s: (s[0], s[1], s[1]),
        lambda s: [s[0], s[1]],
        lambda s: (s[1], s[0]),
        lambda s: (s[0], op.astype(s[1], "float64")),
        lambda s: (s[0], None),
    ],
    ids=["length", "container", "shape", "dtype", "none"],
)
def test_a_body_that_changes_the_type(body: Any) -> None:
    def loops(x: Any) -> Any:
        return meta.while_loop(lambda s: op.sum(s[1]) < 100.0, body, (x, 1.0))

    def scans(x: Any) -> Any:
        return meta.scan(lambda s, _: (body(s), None), (x, 1.0), None, length=2)

    for function in (loops, scans):
        for run in (function, trace(function)):
            with pytest.raises(TraceError, match="changes the type of its state") as caught:
                run(f32(2))
            assert caught.value.expected == "(float32[2], float32[]), as it is given"
            assert f" at {__file__}:" in caught.value.found


@pytest.mark.parametrize(
    ("xs", "length"),
    [
        (None, None),
        (None, 0),
        (np.zeros((0, 2)), None),
        (np.zeros((2, 2)), 3),
        ((np.zeros(2), np.zeros(3)), None),
        (1.0, None),
    ],
)
def test_rows_that_scan_cannot_run_along(xs: Any, length: int | None) -> None:
    def f(x: Any) -> Any:
        return meta.scan(lambda s, _: (s, None), x, xs, length)

    for run in (f, trace(f)):
        with pytest.raises(TypeInferError, match="scan needs rows"):
            run(f32(2))


def test_a_step_of_scan_returns_a_pair() -> None:
    def f(x: Any) -> Any:
        return meta.scan(lambda s, x: s + x, 0.0, x)

    for run in (f, trace(f)):
        with pytest.raises(TraceError, match="does not return what scan needs"):
            run(f32(2))


def test_rows_of_several_types() -> None:
    shapes = iter([(1,), (2,)])
    with pytest.raises(TraceError, match=r"the rows that .* returns differ"):
        meta.scan(lambda s, x: (s, op.zeros(next(shapes))), 0.0, f32(2))


def test_a_traced_value_does_not_leave_its_block() -> None:
    @trace
    def f(x: Any) -> Any:
        kept = []
        meta.cond(op.sum(x) > 0.0, lambda: kept.append(x + 1.0), lambda: None)
        return kept[0] * 2.0

    with pytest.raises(TraceError, match="outside the function that it was traced in"):
        f(f32(2))
