"""Running models and functions in ways that tests need."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from meta.dialect import only
from meta.ir import Function, Module
from meta.model import Model
from meta.model.trace import Traced
from meta.passes import infer_type
from meta.vm import compile


def with_dialect(names: str | Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: the function runs with these dialects only.

    >>> @meta.testing.with_dialect("torch")
    ... def test():
    ...     return meta.exp(meta.zeros(1)).item()
    >>> test()
    1.0
    """
    chosen = (names,) if isinstance(names, str) else tuple(names)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with only(*chosen):
                return function(*args, **kwargs)

        return run

    return decorate


def run_vm_model(model: Model | Traced | Module, device: str, args: Sequence[Any]) -> Any:
    """Compile a model for these arguments, run it once under the VM and return its result
    (ndarrays).

    >>> meta.testing.run_vm_model(meta.model.ReLU(), "cpu", [meta.array([-1.0, 2.0])]).tolist()
    [0.0, 2.0]
    """
    return compile(model, *args, device=device)(*args)


def run_infer_type(program: Module | Function) -> Any:
    """Return a module (or function) with inferred types.

    >>> function = meta.ir.parse_function("fn(%x: float32[2]) { %y = exp(%x) return %y }")
    >>> str(meta.testing.run_infer_type(function).result_type)
    'float32[2]'
    """
    if isinstance(program, Function):
        return infer_type(Module({"main": program})).main
    return infer_type(program)
