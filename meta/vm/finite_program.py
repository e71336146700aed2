"""META_CHECK_FINITE in a compiled program: every kernel is checked.

A fused kernel that fails is looked into: its operators are run one by one, on the same arguments.
What a fused kernel keeps to itself is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from meta.base import config
from meta.base.dtype import FROM_TORCH
from meta.base.errors import NonFiniteError
from meta.ir import Module, TensorType
from meta.runtime.ndarray import ndarray
from meta.vm.code import FusedRef, KernelRef
from meta.vm.finite import kinds_of, require_finite
from meta.vm.interpreter import run_module
from meta.vm.watch import Observer, Site, operands


def finite_observer(module: Callable[[], Module]) -> Observer:
    """Return an observer of a compiled program's kernels (see `watch.py`) that checks them.

    module: returns the program, with its fused functions.
    """

    def observe(site: Site, run: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        given = values[: len(site.instruction.args)]
        fused = isinstance(site.kernel, FusedRef)
        # A fused kernel may write over what it was given.
        kept = (
            tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in given) if fused else ()
        )
        before = kinds_of((*given, *_constants(site)))
        described = ", ".join(map(_described, given))
        result = run(*values)
        try:
            outs = operands(site, values, result)[1]
            require_finite(before, outs, site.operator, f"{site.operator}({described})", site.span)
        except NonFiniteError as error:
            if fused:
                _look_inside(module(), site.operator, kept)
                error.hint = "it is a fused kernel, and its operators, one by one, do not do this"
            raise
        return result

    return observe


def _look_inside(module: Module, function: str, values: tuple[Any, ...]) -> None:
    """Run a fused function's operators one by one, checked; raises at the first that fails."""
    arguments = [ndarray(v) if isinstance(v, torch.Tensor) else v for v in values]
    inner = module.with_functions({**module.functions, "main": module.functions[function]})
    with config.override(META_CHECK_FINITE=True):
        run_module(inner, arguments)


def _constants(site: Site) -> Iterable[float]:
    if not isinstance(site.kernel, KernelRef):
        return ()
    return (a for a in site.kernel.args if isinstance(a, float))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(TensorType(tuple(value.shape), FROM_TORCH[value.dtype]))
    return repr(value)
