"""Importers: programs of other systems become models of `meta`.

One folder per source; `core` holds what they share. A new source is a folder with a `load` or
`from_...` function and its converters, and a line in `_MODULES`. What a source needs, as TVM or
onnx, is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meta.frontend.dynamo.report import CompileReport
    from meta.frontend.onnx import from_onnx
    from meta.frontend.relax import from_relax
    from meta.frontend.report import check
    from meta.frontend.torch import from_torch

_MODULES = {
    "check": "meta.frontend.report",
    "from_onnx": "meta.frontend.onnx",
    "from_relax": "meta.frontend.relax",
    "from_torch": "meta.frontend.torch",
}
_SOURCES = ("dynamo", "onnx", "relax", "relay", "torch")

__all__ = ["check", "explain_compile", "from_onnx", "from_relax", "from_torch"]


def explain_compile(model: Callable[..., Any], *args: Any, **kwargs: Any) -> CompileReport:
    """Say what ``torch.compile(model, backend="meta")`` makes of a PyTorch model; ``print`` it.

    model: a torch.nn.Module, or a function of tensors. args, kwargs: what it is called with. The
    report lists the operators of each graph, the kernels by dialect, the calls back into PyTorch
    with their reasons, and why TorchDynamo split the model, if it did. The model is compiled and
    run, forward and, where a result requires a gradient, backward: a copy of it, so that neither
    its state nor the arguments change. What was compiled before is forgotten
    (``torch._dynamo.reset``).

    >>> import torch
    >>> report = meta.explain_compile(torch.nn.ReLU(), torch.ones(2))
    >>> len(report.graphs), report.breaks, report.calls_back
    (1, (), ())
    """
    from meta.frontend.dynamo.report import explain

    return explain(model, args, kwargs)


if not TYPE_CHECKING:  # what else there is, a type checker is not to take for granted

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            try:
                return getattr(import_module(_MODULES[name]), name)
            except ModuleNotFoundError as error:
                if error.name != "onnx":
                    raise
                raise ImportError(f"{name} needs the package onnx: pip install onnx") from error
        if name in _SOURCES:
            return import_module(f"meta.frontend.{name}")
        raise AttributeError(f"module 'meta.frontend' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_SOURCES]
