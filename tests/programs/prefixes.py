"""Runs a program after every prefix of the pipeline, and names the pass that is to blame."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

import meta
from meta.base.device import CPU
from meta.base.dtype import TO_TORCH
from meta.base.errors import MetaError
from meta.ir import Block, Module, TensorType, Tuple, text, type_of, verify
from meta.passes import autodiff
from meta.passes.manager import pass_name
from meta.testing import check
from meta.vm.compiler.pipeline import MAX_LEVEL, pipeline
from meta.vm.run.interpreter import run_module


def inputs(module: Module) -> list[meta.ndarray]:
    """Return arguments of main, the same for the same types."""
    generator = torch.Generator().manual_seed(0)
    return [_input(p.type, generator) for p in module.main.params]


def _input(type_: Any, generator: torch.Generator) -> meta.ndarray:
    assert isinstance(type_, TensorType)
    if type_.dtype == "bool":
        return meta.array(torch.randint(0, 2, type_.static_shape, generator=generator).bool())
    if type_.dtype == "int32":
        return meta.array(torch.randint(0, 3, type_.static_shape, generator=generator).int())
    values = torch.randn(type_.static_shape, generator=generator, dtype=torch.float64)
    return meta.array(values.to(TO_TORCH[type_.dtype]))


def outcome(run: Any, module: Module) -> list[torch.Tensor]:
    """Return the results of a run and its arguments afterwards, which it may have written."""
    arguments = inputs(module)
    return [t.torch().detach() for t in (*_flat(run(*arguments)), *arguments)]


ROUNDING = 1e-6
"""How far sums may be apart that a library takes in another order: those of a product that was
given another form, a dense for a matmul of a transposed operand, say.
"""
PRODUCT = re.compile(r"\b(?:batch_)?matmul\w*|\bdense\w*")


def tolerance(after: Module, before: Module) -> float:
    """Return how far results may be apart: not at all where the products are the same."""
    same = products(after) == products(before)
    return 0.0 if same else ROUNDING


def products(module: Module) -> Counter[str]:
    """Return how often each form of a product is in a program."""
    return Counter(PRODUCT.findall(text(module)))


def check_prefixes(module: Module) -> None:
    """Check that the program, verified after each pass, still computes the same bits, but for the
    rounding of products that have another form.
    """

    def interpreted(m: Module) -> list[torch.Tensor]:
        return outcome(lambda *args: run_module(m, args), module)

    expected = interpreted(module)
    before = module
    for step in pipeline(CPU, MAX_LEVEL).passes:
        name = pass_name(step)
        try:
            after = step(before)
            verify(after, typed=True)
            found = interpreted(after)
        except (MetaError, AssertionError) as error:
            raise AssertionError(_blame(name, before, None, str(error))) from error
        bound = tolerance(after, module)
        wrong = _differences(found, expected, bound, bound)
        assert not wrong, _blame(name, before, after, wrong)
        before = after


def check_compiled(module: Module, opt_level: int, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Check that the VM gives what the interpreter gives, in a second call too."""
    expected = outcome(lambda *args: run_module(module, args), module)
    run = meta.vm.compile(module, *inputs(module), opt_level=opt_level)
    bound = tolerance(run.module, module)
    rtol, atol = max(rtol, bound), max(atol, bound)
    first = outcome(run, module)
    copies = [t.clone() for t in first]
    for found in (first, outcome(run, module), first):
        wrong = _differences(found, expected, rtol, atol)
        assert not wrong, _blame(f"opt_level={opt_level}, in the VM", module, run.module, wrong)
    assert not _differences(first, copies), "a second call wrote to the first one's results"


def check_gradients(module: Module) -> Module:
    """Check autodiff's program against the eager tape; return it, or the module itself if its first
    result depends on no argument.
    """
    floats = [
        i
        for i, p in enumerate(module.main.params)
        if "float" in p.type.dtype  # type: ignore
    ]
    arguments = inputs(module)
    for i in floats:
        arguments[i].requires_grad = True
    y = _flat(run_module(module, arguments))[0]
    if not y.requires_grad:
        return module
    y.backward(meta.array(torch.ones_like(y.torch())))
    backward = autodiff(_first_result(module), wrt=floats)
    verify(backward, typed=True)
    dy = meta.array(torch.ones_like(y.torch()))
    _, gradients = run_module(backward, [dy, *inputs(module)])
    for i, gradient in zip(floats, gradients, strict=True):
        name = module.main.params[i].name
        expected = arguments[i].grad
        try:
            if expected is None:
                assert not gradient.torch().any(), "the tape has no gradient"
            else:
                check(gradient, expected, 1e-6, 1e-6, what=f"gradient of {name}")
        except AssertionError as error:
            raise AssertionError(_blame("autodiff", module, backward, str(error))) from error
    return backward


def _first_result(module: Module) -> Module:
    """Return a module whose main returns the first field of its result."""
    main = module.main
    assert isinstance(main.body.result, Tuple)
    result = main.body.result.fields[0]
    body = Block(main.body.bindings, result)
    return module.with_functions(
        {**module.functions, "main": replace(main, body=body, result_type=type_of(result))}
    )


def _flat(value: Any) -> list[Any]:
    return [v for item in value for v in _flat(item)] if isinstance(value, tuple) else [value]


def _differences(
    found: list[torch.Tensor], expected: list[torch.Tensor], rtol: float = 0.0, atol: float = 0.0
) -> str:
    """Say which results differ in type or value (NaN equals NaN, 0.0 is not -0.0); "" if none."""
    lines = []
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        same = a.dtype == b.dtype and a.shape == b.shape and _equal(a, b, rtol, atol)
        if not same:
            lines.append(f"  result {i}: {a}\n  expected: {b}")
    return "\n".join(lines)


def _equal(a: torch.Tensor, b: torch.Tensor, rtol: float, atol: float) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    if not torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
        return False
    zero = (a == 0) & (b == 0)
    return rtol > ROUNDING or torch.equal(a[zero].signbit(), b[zero].signbit())


def _blame(name: str, before: Module, after: Module | None, why: str) -> str:
    parts = [f"to blame: {name}", why, "before:", text(before)]
    return "\n".join(parts + (["after:", text(after)] if after is not None else []))
