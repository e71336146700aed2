"""Activations and normalisations that are written out become one call, from any frontend."""

from __future__ import annotations

import onnx.parser
import pytest
import torch
from torch import Tensor, nn

import meta
from meta.dialect.core.ir_calls import called_op
from meta.frontend import from_onnx, from_torch
from meta.ir import Module, bindings, parse
from meta.passes import fuse_composites, infer_type
from meta.passes.pattern.formula import _Expansion
from meta.passes.pattern.matches import Search
from tests.passes.composite_forms import FORMS, OTHERS, Form

X = torch.linspace(-6, 6, 600).view(30, 20) + torch.linspace(0, 1, 20)
VECTORS = torch.linspace(0.5, 2.0, 20), torch.linspace(-1.0, 1.0, 20), torch.ones(20)
"""A scale, a bias, and a factor of x, by which there is a gradient in any case."""
OPERATORS = {
    "tanh_gelu": "gelu",
    "exact_gelu": "gelu",
    "rms_norm": "rms_norm",
    "layer_norm": "layer_norm",
}
CLOSE = {"float64": 1e-11, "float32": 5e-6, "float16": 4e-3, "bfloat16": 3e-2}


class Network(nn.Module):
    """A form in torch, with its vectors as parameters."""

    def __init__(self, form: Form, dtype: torch.dtype) -> None:
        super().__init__()
        self.form = form
        self.w, self.b, self.factor = (nn.Parameter(v.to(dtype)) for v in VECTORS)

    def forward(self, x: Tensor) -> Tensor:
        return self.form(torch, x * self.factor, self.w, self.b)


class Traced(meta.Model):
    """A form over meta."""

    def build(self, form: Form, dtype: str) -> None:
        self.form = form
        self.w, self.b, self.factor = (meta.array(v, dtype=dtype) for v in VECTORS)
        for array in self.state().values():
            array.requires_grad = True

    @meta.model.trace
    def forward(self, x):
        return self.form(meta, x * self.factor, self.w, self.b)


def names(module: Module) -> list[str]:
    """Return the operators that a program calls."""
    found = [called_op(b.value) for f in module.functions.values() for b in bindings(f)]
    return [op.name for op in found if op is not None]


def model_of(form: Form, frontend: str, dtype: str) -> meta.Model:
    if frontend == "torch":
        kind = getattr(torch, dtype)
        return from_torch(Network(form, kind), (X.to(kind),))
    return Traced(form, dtype)


RUNS = [
    ("traced", "float32"),
    ("traced", "bfloat16"),
    ("torch", "float64"),
    pytest.param("torch", "float16", marks=pytest.mark.slow),
]


@pytest.mark.product
@pytest.mark.parametrize("frontend, dtype", RUNS)
@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_one_call_each_way(name: str, frontend: str, dtype: str) -> None:
    """In the program, and in that of its gradient; with the values of the formula in float64."""
    what, form = FORMS[name]
    x = meta.array(X, dtype=dtype)
    run = meta.vm.compile(model_of(form, frontend, dtype).eval(), x)
    digits = dtype == "float64" and name == "ten digits"  # which are too few
    called = names(run.module)
    assert not {"erf", "tanh", "mean", "rsqrt", "sqrt"}.intersection(called) or digits
    assert (OPERATORS[what] in called) != digits
    step = meta.model.value_and_grad(model_of(form, frontend, dtype))
    dy = meta.array(torch.linspace(-1, 1, 600).view(30, 20), dtype=dtype)
    assert (
        any(n.startswith(OPERATORS[what]) and "_dx" in n for n in names(step.program(dy, x).module))
        != digits
    )
    y, gradients = meta.vm.compile(step, dy, x)(dy, x)
    exact = Network(form, torch.float64)
    with torch.no_grad():
        for parameter in exact.parameters():  # as the dtype holds them
            parameter.copy_(parameter.to(getattr(torch, dtype)))
    wanted = exact(x.torch().double())
    wanted.backward(dy.torch().double())
    close = {"rtol": CLOSE[dtype], "atol": CLOSE[dtype]}
    for found in (run(x), y):
        assert found.dtype == dtype
        torch.testing.assert_close(found.torch().double(), wanted.detach(), **close)
    for key, parameter in exact.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found = gradients[key].torch().double()
        torch.testing.assert_close(found, grad, rtol=close["rtol"], atol=close["atol"] * 30)


@pytest.mark.product
@pytest.mark.parametrize("frontend", ["traced", "torch"])
@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str, frontend: str) -> None:
    x = meta.array(X)
    model = model_of(OTHERS[name], frontend, "float32")
    run = meta.vm.compile(model.eval(), x)
    whole = {"gelu", "rms_norm", "layer_norm"}.intersection(names(run.module))
    assert whole <= ({"rms_norm"} if name == "another axis" else set())
    wanted = OTHERS[name](torch, X.double(), *(v.double() for v in VECTORS[:2]))
    torch.testing.assert_close(run(x).torch().double(), wanted, rtol=1e-4, atol=1e-4)


ONNX: dict[str, tuple[str, str]] = {
    "GELU": (
        "gelu",
        """
        root = Constant<value = float {1.4142135}>()
        one = Constant<value = float {1.0}>()
        half = Constant<value = float {0.5}>()
        a = Div(x, root)
        c = Erf(a)
        d = Add(c, one)
        e = Mul(x, d)
        y = Mul(e, half)
        """,
    ),
    "GELU by tanh": (
        "gelu",
        """
        three = Constant<value = float {3.0}>()
        cubic = Constant<value = float {0.044715}>()
        root = Constant<value = float {0.7978846}>()
        one = Constant<value = float {1.0}>()
        half = Constant<value = float {0.5}>()
        a = Pow(x, three)
        c = Mul(cubic, a)
        d = Add(x, c)
        e = Mul(root, d)
        f = Tanh(e)
        h = Add(one, f)
        i = Mul(half, x)
        y = Mul(i, h)
        """,
    ),
    "RMS norm": (
        "rms_norm",
        """
        two = Constant<value = float {2.0}>()
        eps = Constant<value = float {0.00001}>()
        axes = Constant<value_ints = [-1]>()
        a = Pow(x, two)
        c = ReduceMean<keepdims = 1>(a, axes)
        d = Add(c, eps)
        e = Sqrt(d)
        f = Reciprocal(e)
        h = Mul(x, f)
        y = Mul(w, h)
        """,
    ),
    "layer norm": (
        "layer_norm",
        """
        two = Constant<value = float {2.0}>()
        eps = Constant<value = float {0.00001}>()
        axes = Constant<value_ints = [-1]>()
        m = ReduceMean<keepdims = 1>(x, axes)
        a = Sub(x, m)
        c = Pow(a, two)
        d = ReduceMean<keepdims = 1>(c, axes)
        e = Add(d, eps)
        f = Sqrt(e)
        h = Div(a, f)
        i = Mul(h, w)
        y = Add(i, b)
        """,
    ),
}
"""By name, an operator, and nodes that write it out, as PyTorch exported models for years."""


@pytest.mark.parametrize("name", ONNX)
def test_nodes_of_onnx(name: str) -> None:
    what, nodes = ONNX[name]
    inputs = "float[30, 20] x, float[20] w, float[20] b"
    text = (
        f'<ir_version: 10, opset_import: ["" : 18]> g ({inputs}) => (float[30, 20] y) {{{nodes}}}'
    )
    model = from_onnx(onnx.parser.parse_model(text))
    arrays = [*map(meta.array, (X, *VECTORS[:2]))]
    run = meta.vm.compile(model, *arrays)
    assert what in names(run.module)
    x, w, b = (v.double() for v in (X, *VECTORS[:2]))
    normal = {"normalized_shape": (20,), "eps": 1e-5}
    wanted = {
        "GELU": lambda: torch.nn.functional.gelu(x),
        "GELU by tanh": lambda: torch.nn.functional.gelu(x, approximate="tanh"),
        "RMS norm": lambda: torch.nn.functional.rms_norm(x, weight=w, **normal),
        "layer norm": lambda: torch.nn.functional.layer_norm(x, weight=w, bias=b, **normal),
    }[name]()
    found = run(*arrays)
    torch.testing.assert_close(found.torch().double(), wanted, rtol=1e-5, atol=1e-5)


def fused(body: str, params: str = "%x: float32[4, 8], %w: float32[8]") -> list[str]:
    """Return what a main calls after the pass."""
    return names(fuse_composites(infer_type(parse(f"func @main({params}) {{{body}}}"))))


ERF = """
  %a: float32[4, 8] = multiply(%x, 0.7071067811865476)
  %b: float32[4, 8] = erf(%a)
  %c: float32[4, 8] = add(%b, 1.0)
  %d: float32[4, 8] = multiply(%x, %c)
"""
PROGRAMS: dict[str, tuple[str, bool]] = {
    "a step is a result too": (
        f"{ERF} %y: float32[4, 8] = multiply(%d, 0.5) return (%y, %b)",
        False,
    ),
    "another call reads a step": (
        f"{ERF} %y: float32[4, 8] = multiply(%d, 0.5) %z: float32[4, 8] = add(%y, %c) return %z",
        False,
    ),
    "x is read by others": (
        f"{ERF} %y: float32[4, 8] = multiply(%d, 0.5) %z: float32[4, 8] = add(%y, %x) return %z",
        True,
    ),
    "x is written in between": (
        f"{ERF} %u: float32[4, 8] = assign(%x, %d) %y: float32[4, 8] = multiply(%d, 0.5) return %y",
        False,
    ),
    "a number has more axes": (
        f"{ERF} %h: float32[3, 4, 8] = full((3, 4, 8), 0.5) "
        "%y: float32[3, 4, 8] = multiply(%d, %h) return %y",
        False,
    ),
    "a number is an array": (
        f"{ERF} %h: float32[4, 8] = full((4, 8), 0.5) "
        "%y: float32[4, 8] = multiply(%d, %h) return %y",
        True,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_stands_around_it(name: str) -> None:
    body, whole = PROGRAMS[name]
    assert ("gelu" in fused(body)) == whole


MEAN = """
  %a: float32[4, 8] = multiply(%x, %x)
  %b: float32[4, 1] = mean(%a, axis=(-1,), keepdims=True)
  %c: float32[4, 1] = add(%b, {eps})
  %d: float32[4, 1] = rsqrt(%c)
  %e: float32[4, 8] = multiply(%x, %d)
  %y: float32[4, 8] = multiply(%e, %w)
  return %y
"""


@pytest.mark.parametrize(
    "vector, scaled", [("8", True), ("1, 8", True), ("4, 1", False), ("4, 8", False)]
)
def test_a_scale_is_a_vector(vector: str, scaled: bool) -> None:
    """Any other is multiplied afterwards."""
    found = fused(MEAN.format(eps="1e-6"), f"%x: float32[4, 8], %w: float32[{vector}]")
    assert "rms_norm" in found and ("multiply" in found) != scaled


def residual_blocks(count: int) -> Module:
    """Return blocks of a norm and an activation, written out, each added to what it is of."""
    lines, x = [], "%x"
    for i in range(count):
        lines.append(f"""
          %a{i}: float32[4, 8] = multiply({x}, {x})
          %b{i}: float32[4, 1] = mean(%a{i}, axis=-1, keepdims=True)
          %c{i}: float32[4, 1] = add(%b{i}, x2=1e-06)
          %d{i}: float32[4, 1] = rsqrt(%c{i})
          %e{i}: float32[4, 8] = multiply({x}, %d{i})
          %f{i}: float32[4, 8] = dense(%e{i}, %w)
          %g{i}: float32[4, 8] = multiply(%f{i}, 0.7071067811865476)
          %h{i}: float32[4, 8] = erf(%g{i})
          %i{i}: float32[4, 8] = add(%h{i}, 1.0)
          %j{i}: float32[4, 8] = multiply(%f{i}, %i{i})
          %k{i}: float32[4, 8] = multiply(%j{i}, 0.5)
          %x{i}: float32[4, 8] = add({x}, %k{i})""")
        x = f"%x{i}"
    head = "func @main(%x: float32[4, 8], %w: float32[8, 8]) -> float32[4, 8] {"
    return parse("\n".join([head, *lines, f"return {x}", "}"]))


def test_the_search_takes_as_long_for_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of many blocks are not expanded, and a search begins where it can end."""
    steps: list[int] = []
    search = Search.solutions
    expand = _Expansion.of

    def counted(self: _Expansion, *args: object) -> object:
        steps[-1] += 1
        return expand(self, *args)

    def counted_search(self: Search, *args: object) -> object:
        steps[-1] += 1
        return search(self, *args)

    monkeypatch.setattr(_Expansion, "of", counted)
    monkeypatch.setattr(Search, "solutions", counted_search)
    for count in (8, 16, 32):
        steps.append(0)
        found = names(fuse_composites(residual_blocks(count)))
        assert found.count("rms_norm") == found.count("gelu") == count
    assert steps[2] - steps[1] <= 2 * (steps[1] - steps[0])
