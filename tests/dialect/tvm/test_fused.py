"""Functions of several operators as one kernel."""

import pytest
import torch
import tvm

import meta
from meta import op
from meta.base.device import CPU
from meta.dialect.tvm import fused, schedule_cuda
from meta.dialect.tvm.target import cuda
from meta.ir import Var, parse


def test_names_of_variables_do_not_reach_the_source(monkeypatch) -> None:
    """They come from files: "0.weight" is no name in CUDA, and worse ones are thinkable."""
    function = parse(
        "func @main(%a: float32[4], %b: float32[4]) -> float32[4] {\n"
        "  %c: float32[4] = tvm.add(%a, %b)\n"
        "  %d: float32[4] = tvm.relu(%c)\n  return %d\n}"
    ).main
    for var in (*function.params, *(b.var for b in function.body.bindings)):
        assert isinstance(var, Var)
        var.name = f"0 {var.name}; #"
    target = cuda()
    made: list[tvm.tirx.PrimFunc] = []

    monkeypatch.setattr(fused, "deferred", lambda kernel, device: made.append(kernel))
    fused.fuse(function, CPU)
    scheduled = schedule_cuda.schedule(made[0], target)
    with target:
        module = tvm.compile(tvm.IRModule({"main": scheduled}), target).mod
    source = "".join(part.inspect_source() for part in module.imports)
    assert "x0" in source and "x1" in source
    assert "; #" not in source and "0_a" not in source


# What is named in the second function, or repeated, depends on the first one.
FUNCTIONS_OF_FUNCTIONS = {
    "i1 of logaddexp": (
        lambda x: op.i1(op.logaddexp(x, op.exp(x))),
        lambda x: torch.special.i1(torch.logaddexp(x, x.exp())),
    ),
    "digamma of logaddexp2": (
        lambda x: op.digamma(op.logaddexp2(x, x)),
        lambda x: torch.digamma(torch.logaddexp2(x, x)),
    ),
    "three": (
        lambda x: op.i0e(op.trigamma(op.erfinv(x))),
        lambda x: torch.special.i0e(torch.special.polygamma(1, torch.erfinv(x))),
    ),
    "of a sum": (
        lambda x: op.lgamma(op.digamma(op.mean(op.exp(x)))),
        lambda x: torch.lgamma(torch.digamma(x.exp().mean())),
    ),
}


@pytest.mark.product
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS_OF_FUNCTIONS)
def test_functions_of_functions(name: str, dtype: str) -> None:
    """They compile in a moment, and in bfloat16 at all."""
    function, oracle = FUNCTIONS_OF_FUNCTIONS[name]
    x = torch.linspace(0.5, 0.9, 33).to(getattr(torch, dtype))
    with meta.dialect.prefer("tvm"):
        run = meta.vm.compile(meta.model.trace(function), meta.ndarray(x), opt_level=3)
    tolerance = 1e-5 if dtype == "float32" else 0.1
    found = run(meta.ndarray(x)).torch().double()
    torch.testing.assert_close(found, oracle(x.double()), rtol=tolerance, atol=tolerance)


@pytest.mark.product
@pytest.mark.parametrize("name", ["i0", "i0e", "i1", "i1e", "digamma", "trigamma", "erfinv"])
@pytest.mark.parametrize("shape", [(), (1,), (33,)])
@pytest.mark.parametrize("first", ["double", "mean"])
def test_bfloat16_that_is_computed_and_then_named(
    name: str, shape: tuple[int, ...], first: str
) -> None:
    x = torch.full(shape, 0.25, dtype=torch.bfloat16)
    function = getattr(op, name)

    def model(x: meta.ndarray) -> meta.ndarray:
        return function(op.add(x, x) if first == "double" else op.mean(op.add(x, x)))

    with meta.dialect.prefer("tvm"):
        run = meta.vm.compile(meta.model.trace(model), meta.ndarray(x), opt_level=3)
        half = torch.full(() if first == "mean" else shape, 0.5)
        expected = function(meta.ndarray(half)).torch()
    torch.testing.assert_close(run(meta.ndarray(x)).torch().float(), expected, rtol=8e-3, atol=0)


BACKWARDS = {
    "repeat, slice": (37, lambda x: op.strided_slice(op.repeat(x, 2, 0), (105,), (70,), (-1,))),
    "repeat, flip": (9, lambda x: op.flip(op.repeat(x, 3, 0), (0,))),
    "repeat, copy, flip": (9, lambda x: op.flip(op.negative(op.repeat(x, 2, 0)), (0,))),
    "reshape, flip": (30, lambda x: op.flip(op.reshape(op.negative(x), (5, 6)), (0, 1))),
    "two reshapes, flip": (
        30,
        lambda x: op.flip(op.reshape(op.flip(op.reshape(x, (6, 5)), (0,)), (10, 3)), (0, 1)),
    ),
    "tile, flip": (7, lambda x: op.flip(op.tile(x, (3,)), (0,))),
    "roll, flip": (7, lambda x: op.flip(op.roll(x, 3), (0,))),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_divided_indices_are_read_backwards(name: str) -> None:
    extent, function = BACKWARDS[name]
    x = meta.ndarray(torch.arange(extent, dtype=torch.float32))
    with meta.dialect.prefer("tvm"):
        run = meta.vm.compile(meta.model.trace(function), x, opt_level=3)
    with meta.dialect.prefer("torch"):
        expected = function(x)
    assert torch.equal(run(x).torch(), expected.torch())
