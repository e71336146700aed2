"""`load`: a Relay program, and the parameters that go with it, as a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from meta.base.errors import ArgumentError
from meta.frontend.relay import ast
from meta.frontend.relay.errors import ParamsError
from meta.frontend.relay.model import RelayModel
from meta.frontend.relay.params import read_params
from meta.frontend.relay.read import Source, read_with_params
from meta.runtime.ndarray import as_array

Params = Source | Mapping[str, Any] | None


def load(source: Source, params: Params = None, *, name: str | None = None) -> RelayModel:
    """Load a Relay program that TVM 0.6 to 0.19 wrote, as a model in infer mode.

    Parameters
    ----------
    source: the path of a file, its bytes, or the program itself as a str: text, JSON, or a Model
        Library Format archive. What it is, is told by its content.
    params: the path or the bytes of a parameter file (``relay.save_param_dict``), or arrays by
        name. They are paired with the parameters of ``main`` by name; what fits none is in
        ``model.unused_params``. The parameters of ``main`` that get none are the model's inputs.
        Those of an archive are used if nothing else is given.
    name: which module of an archive, if it holds several.

    The names of the state are those of the arrays ("conv1.weight"). Functions that a compiler's
    hints mark (Primitive, Composite, Compiler) are inlined: `meta` fuses by itself.

    Raises RelayError for what is no Relay program, is damaged, or cannot be converted, then with
    everything that stands against it; ParamsError for parameters that do not fit.

    >>> model = load("fn (%x: Tensor[(2), float32]) { nn.relu(%x) * 2f }")
    >>> import meta
    >>> model(meta.array([-1.0, 3.0])).numpy().tolist()
    [0.0, 6.0]
    """
    module, arrays = load_parts(source, params, name=name)
    return RelayModel(module, arrays)


def load_parts(
    source: Source, params: Params = None, *, name: str | None = None
) -> tuple[ast.Module, dict[str, torch.Tensor]]:
    """Return what `load` makes a model of: the program and the arrays."""
    module, inside = read_with_params(source, name)
    return module, inside if params is None else _arrays(params)


def _arrays(params: Source | Mapping[str, Any]) -> dict[str, torch.Tensor]:
    if isinstance(params, str | bytes | os.PathLike):
        return read_params(params)
    try:
        return {name: as_array(value).torch() for name, value in params.items()}
    except (ArgumentError, AttributeError, TypeError) as error:
        raise ParamsError(
            "these are no parameters",
            expected="a file, or arrays by name",
            found=f"{type(params).__name__}: {error}",
        ) from error
