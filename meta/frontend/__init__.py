"""Importers: programs of other systems become models of `meta`.

One folder per source; `core` holds what they share. A new source is a folder with a `load` or
`from_...` function and its converters, and a line in `_MODULES`. What a source needs, as TVM or
onnx, is imported when it is first used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from meta.base.optional import optional_module

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

__all__ = ["check", "explain_compile", "from_onnx", "from_relax", "from_torch", "to_onnx"]


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


def to_onnx(
    model: Any,
    path: str | os.PathLike[str],
    *args: Any,
    opset: int = 21,
    output_names: Sequence[str] = (),
    external_data: bool | None = None,
    **kwargs: Any,
) -> None:
    """Write a model as an ONNX file, for another runtime; `from_onnx` is the other way.

    Parameters
    ----------
    model: a `meta.Model` in infer mode, a function decorated with `meta.model.trace`, an
        `ir.Module` whose main takes tensors, or what `meta.vm.compile` and `meta.compile_model`
        return, of which the program before the choice of kernels is written.
    path: of the file.
    args, kwargs: example arguments, as for `meta.vm.compile`: arrays of any shape and dtype, or
        types. A dimension that is named (``meta.ir.parse_type("float32[n, 64]")``) is a
        ``dim_param`` of that name, and the file serves all extents of it from 1. What is compiled,
        and a module, take none.
    opset: the version of ONNX's operators, from 21.
    output_names: of the outputs; by default "output", or that with the place in the structure that
        the model returns, "output.0".
    external_data: whether weights lie in a file beside it, ``path`` with ".data" behind; None: if
        they have more than 1 GiB.

    Inputs have the names of the model's parameters, weights those of its `state_dict`. Operators
    that ONNX has not are written as others where that is exact; onnx's checker, with its shape
    inference, has seen what is written. docs/howto/onnx_export.md has what differs from one
    runtime to another.

    Raises OnnxError that lists every call that ONNX cannot express, with its types and the user's
    line; ArgumentError for another opset, for names that do not fit, for a program that was loaded,
    and without the package onnx; FileError where the file cannot be written.

    >>> from tempfile import TemporaryDirectory
    >>> net = meta.model.Linear(3, 2)
    >>> with TemporaryDirectory() as folder:
    ...     meta.to_onnx(net, f"{folder}/net.onnx", meta.ir.parse_type("float32[n, 3]"))
    ...     again = meta.frontend.from_onnx(f"{folder}/net.onnx")
    >>> sorted(again.state()), again.input_names, again(meta.ones((4, 3))).shape
    (['bias', 'weight'], ('x',), (4, 2))
    """
    optional_module("onnx", "writes the files")
    from meta.frontend.onnx.export.model import write

    write(model, path, args, kwargs, opset, output_names, external_data)


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
