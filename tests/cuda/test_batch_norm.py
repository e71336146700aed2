"""Batch normalisation of the `cuda` dialect on a device, with what is done in the same launches: at
sizes of networks, and those that take each of the kernels' ways. The generated gradient of max
pooling, which is beside it in them, too.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.dialect import only
from meta.ir import Module, parse
from meta.passes import infer_type
from meta.testing.compare import check

pytestmark = pytest.mark.cuda
BOUNDS = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 1e-3}
NORM = "batch_norm_train(%x, %m, %v, %w, %b, momentum=0.3, eps=0.001, axis={last})"
GRADIENT = "batch_norm_train_dxwb(%g, %x, %w, b=None, eps=0.001, axis={last})"
FIELDS = "%dx = %d.0\n %dw = %d.1\n %db = %d.2"
FORWARD = {
    "plain": "%r = {norm}",
    "relu": "%a = {norm}\n %r = relu(%a)",
    "add": "%a = {norm}\n %r = add(%z, %a)",
    "add_relu": "%a = {norm}\n %c = add(%a, %z)\n %r = relu(%c)",
}
MASKED = "%g = relu_dx(x=None, y=%z, dy=%dy)"
BACKWARD = {
    "plain": ("%g = add(%dy, 0.0)", ""),
    "relu": (MASKED, ""),
    "kept": (MASKED, ", %g"),
    "sum": ("%t = add(%dy, %more)\n %g = relu_dx(x=%z, y=None, dy=%t)", ""),
    "sum_kept": ("%t = add(%dy, %more)\n %g = relu_dx(x=None, y=%z, dy=%t)", ", %g"),
}
SHAPES = [
    ("float16", (64, 7, 7, 2048), 0),
    ("float16", (16, 56, 56, 64), 0),
    ("float16", (8, 28, 28, 512), 0),
    ("float16", (16, 56, 56, 64), 1),  # nothing is aligned
    ("bfloat16", (3, 5, 7, 72), 0),
    ("bfloat16", (4, 9, 9, 7), 0),
    ("float32", (2, 3, 1032), 0),
    ("float32", (500, 3), 0),
]


def program(types: dict[str, str], body: str) -> Module:
    head = ", ".join(f"%{name}: {type_}" for name, type_ in types.items())
    return infer_type(parse(f"func @main({head}) {{\n{body}\n}}"))


def numbers(shape: tuple[int, ...], dtype: str, seed: int, at: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    count = torch.Size(shape).numel() + at
    flat = torch.randn(count, generator=generator, device="cuda") + 0.5
    return flat.to(getattr(torch, dtype))[at:].view(shape)


def first(x: torch.Tensor) -> torch.Tensor:
    return x.double().movedim(-1, 1)


def run(types: dict[str, str], body: str, tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of a program, of which no generated kernel does an activation."""
    arrays = [meta.ndarray(tensors[name]) for name in types]
    with only("cuda", "tvm"):
        executable = meta.vm.compile(program(types, body), *arrays)
        found = executable(*arrays)
    generated = [k for k in executable.kernels() if k.startswith("tvm")]
    assert not any(name in k for k in generated for name in ("relu", "silu", "swish", "gelu"))
    return [a.torch() for a in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("then", FORWARD)
@pytest.mark.parametrize(("dtype", "shape", "at"), SHAPES)
def test_forward(then: str, dtype: str, shape: tuple[int, ...], at: int) -> None:
    x, z = (numbers(shape, dtype, seed, at) for seed in (1, 2))
    w, b, mean, var = (numbers(shape[-1:], "float32", seed).abs() for seed in (3, 4, 5, 6))
    known = mean.double(), var.double()
    wanted = F.batch_norm(first(x), *known, w.double(), b.double(), True, 0.3, 1e-3)
    wanted = wanted + first(z) if "add" in then else wanted
    wanted = wanted.relu() if "relu" in then else wanted
    data, one = f"{dtype}{list(shape)}", f"float32[{shape[-1]}]"
    types = {"x": data, "z": data, **dict.fromkeys("mvwb", one)}
    norm = NORM.format(last=len(shape) - 1)
    body = FORWARD[then].format(norm=norm) + "\n return %r"
    tensors = {"x": x, "z": z, "m": mean, "v": var, "w": w, "b": b}
    (found,) = run(types, body, tensors)
    check(found, wanted.movedim(1, -1), BOUNDS[dtype], BOUNDS[dtype])
    check(mean, known[0], 1e-4, 1e-4)
    check(var, known[1], 1e-3, 1e-3)


@pytest.mark.parametrize("before", BACKWARD)
@pytest.mark.parametrize(("dtype", "shape", "at"), SHAPES)
def test_backward(before: str, dtype: str, shape: tuple[int, ...], at: int) -> None:
    x, z, dy, more = (numbers(shape, dtype, seed, at) for seed in (1, 2, 3, 4))
    w = numbers(shape[-1:], "float32", 5)
    total = dy + more if "sum" in before else dy
    masked = total if before == "plain" else total * (z > 0)
    exact = [first(x).requires_grad_(), w.double().requires_grad_()]
    exact.append(torch.zeros_like(exact[1], requires_grad=True))
    y = F.batch_norm(exact[0], None, None, exact[1], exact[2], True, 0.1, 1e-3)
    dx, dw, db = torch.autograd.grad(y, exact, first(masked))
    data, one = f"{dtype}{list(shape)}", f"float32[{shape[-1]}]"
    types = {"x": data, "z": data, "dy": data, "more": data, "w": one}
    text, kept = BACKWARD[before]
    gradient = GRADIENT.format(last=len(shape) - 1)
    body = f"{text}\n %d = {gradient}\n {FIELDS}\n return (%dx, %dw, %db{kept})"
    found = run(types, body, {"x": x, "z": z, "dy": dy, "more": more, "w": w})
    again = run(types, body, {"x": x, "z": z, "dy": dy, "more": more, "w": w})
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    check(found[0], dx.movedim(1, -1), BOUNDS[dtype], BOUNDS[dtype])
    for one, wanted in zip(found[1:3], (dw, db), strict=True):
        check(one, wanted, 1e-3 * wanted.abs().max().item(), 1e-3)
    if kept:
        assert torch.equal(found[3], masked)


ACTIVATIONS = {
    "relu": (F.relu, "relu(%a)", "relu_dx(y=None, x=%n, dy=%dy)"),
    "silu": (F.silu, "silu(%a)", "silu_dx(%n, %dy)"),
    "hardswish": (F.hardswish, "hardswish(%a)", "hardswish_dx(%n, %dy)"),
    "gelu": (F.gelu, "gelu(%a)", "gelu_dx(%n, y=None, dy=%dy)"),
    "leaky_relu": (F.leaky_relu, "leaky_relu(%a)", "leaky_relu_dx(%n, %dy)"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "shape", "at"), SHAPES)
def test_other_activations(name: str, dtype: str, shape: tuple[int, ...], at: int) -> None:
    """Forward, and the gradients, for which the normalisation is done again."""
    activation, value, gradient = ACTIVATIONS[name]
    x, dy = (numbers(shape, dtype, seed, at) for seed in (1, 2))
    w, b, mean, var = (numbers(shape[-1:], "float32", seed).abs() for seed in (3, 4, 5, 6))
    exact = [first(x).requires_grad_(), w.double().requires_grad_(), b.double().requires_grad_()]
    y = activation(F.batch_norm(exact[0], None, None, *exact[1:], True, 0.3, 1e-3))
    expected = torch.autograd.grad(y, exact, first(dy))
    data, one = f"{dtype}{list(shape)}", f"float32[{shape[-1]}]"
    types, axis = {"x": data, "dy": data, **dict.fromkeys("mvwb", one)}, len(shape) - 1
    over = ", ".join(map(str, range(axis))) + "," * (axis == 1)
    body = f"""%a = {NORM.format(last=axis)}
      %r = {value}
      %u = astype(%x, dtype="float32")
      %e = mean(%u, axis=({over}))
      %s = var(%u, axis=({over}))
      %n = batch_norm_infer(%x, %e, %s, %w, %b, eps=0.001, axis={axis})
      %g = {gradient}
      %d = {GRADIENT.format(last=axis)}
      {FIELDS}
      return (%r, %dx, %dw, %db)"""
    tensors = {"x": x, "dy": dy, "m": mean, "v": var, "w": w, "b": b}
    found = run(types, body, tensors)
    check(found[0], y.movedim(1, -1), BOUNDS[dtype], BOUNDS[dtype])
    check(found[1], expected[0].movedim(1, -1), BOUNDS[dtype], BOUNDS[dtype])
    for one_, wanted in zip(found[2:], expected[1:], strict=True):
        check(one_, wanted, 1e-3 * wanted.abs().max().item(), 1e-3)


@pytest.mark.parametrize("window", [(3, 2, 1, 1, False), (2, 2, 0, 1, False), (3, 2, 1, 2, True)])
@pytest.mark.parametrize("shape", [(8, 112, 112, 64), (2, 37, 41, 72), (3, 17, 16, 5)])
def test_max_pooling(shape: tuple[int, ...], window: tuple[object, ...]) -> None:
    """Of few values, so that most windows have several maxima."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randint(0, 4, shape, generator=generator, device="cuda").half()
    x[0, 5, 5] = float("nan")
    data = meta.ndarray(x)
    with only("torch"):
        y = meta.max_pool2d(data, *window, layout="NHWC")
        dy = meta.ndarray(torch.randint_like(y.torch(), 1, 5))
        wanted = meta.max_pool2d_dx(data, y, dy, *window, True, "NHWC")
    with only("tvm"):
        found = meta.max_pool2d_dx(data, y, dy, *window, True, "NHWC")
    assert torch.equal(found.torch(), wanted.torch())
