"""`RelayModel`, a Relay program as a `Model`, and `load`, which makes one of files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from meta.base.call_context import current
from meta.base.dtype import is_float
from meta.base.errors import ArgumentError
from meta.frontend.core import ImportedModel
from meta.frontend.relay import ast
from meta.frontend.relay.convert import RelayProgram, convert
from meta.frontend.relay.convert.program import require_supported
from meta.frontend.relay.errors import ParamsError, RelayError
from meta.frontend.relay.params import Source, pair, read_params
from meta.frontend.relay.read import read_with_params
from meta.op.core import tree
from meta.op.core.tracing import Symbol, Trace, Value
from meta.runtime.ndarray import as_array, ndarray


class RelayModel(ImportedModel):
    """A model whose code is a Relay program.

    The parameters of ``main`` that an array is given for are its state, by the array's name;
    floating point ones require a gradient, but for running statistics. The others are its inputs,
    in order. It begins in infer mode; after `train`, batch normalisation and dropout are
    converted to their training forms. What it returns is what ``main`` does: an array, or tuples.

    Attributes
    ----------
    input_types: the declared types of the inputs, in order; None where there is none.
    unused_params: names of arrays that fit no parameter of ``main``; normal for an optimised
        program.
    """

    def build(  # type: ignore[override]  # a constructor
        self, module: ast.Module, params: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Take a program and arrays for parameters of its ``main``.

        Raises RelayError for a program that cannot be converted, with everything that stands
        against it, and ParamsError for arrays that do not fit.
        """
        given = params or {}
        self._program = RelayProgram(module)
        pairing = pair(module, given)
        require_supported(self._program)
        self.unused_params = tuple(pairing.unused)
        main = self._program.main
        statistics = _statistics(self._program)
        arrays: dict[str, ndarray] = {}
        for var in main.params:
            if var in pairing.bound:
                name = pairing.bound[var]
                arrays[name] = _array(name, given[name])
                arrays[name].requires_grad = is_float(arrays[name].dtype) and var not in statistics
        # By parameter of main, the name of its array; None for an input.
        self._sources = tuple(pairing.bound.get(var) for var in main.params)
        self.input_types = tuple(var.type or var.checked_type for var in pairing.free)
        super().build(arrays, [var.name for var in pairing.free])

    def convert(self, *inputs: Any) -> Any:
        """Convert the program for inputs of these types; raises RelayError where that fails."""
        trace = current()
        assert isinstance(trace, Trace)
        given = iter(inputs)
        args = tuple(
            _as_value(next(given)) if name is None else trace.lift(self.arrays[name])
            for name in self._sources
        )
        result = convert(self._program, trace, args, self.training)
        for leaf in tree.flatten(result)[0]:
            if not isinstance(leaf, Symbol | ndarray):
                raise RelayError(
                    "main returns a value that is no tensor",
                    expected="a tensor, or tuples of tensors",
                    found=leaf.type,
                    hint="take it apart in the program: match a data value, call a function",
                )
        return result


def _as_value(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(_as_value, value))
    return value if isinstance(value, Value) else as_array(value)


def _array(name: str, tensor: torch.Tensor) -> ndarray:
    try:
        return ndarray(tensor.detach().contiguous().clone())
    except ArgumentError as error:
        raise ParamsError(f"the array {name!r} cannot be used: {error.what}") from error


def _statistics(program: RelayProgram) -> set[ast.Expr]:
    """Return the variables that are running statistics: training updates them by no gradients."""
    found: set[ast.Expr] = set()
    for call in program.calls():
        if isinstance(call.op, ast.Op) and call.op.name == "nn.batch_norm":
            found.update(call.args[3:5])
    return found


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
    module, arrays = load_module(source, params, name=name)
    return RelayModel(module, arrays)


def load_module(
    source: Source, params: Params = None, *, name: str | None = None
) -> tuple[ast.Module, dict[str, torch.Tensor]]:
    """Return what `load` makes a model of: the program and the arrays."""
    module, inside = read_with_params(source, name)
    if params is None:
        return module, inside
    if isinstance(params, str | bytes | os.PathLike):
        return module, read_params(params)
    try:
        return module, {name: as_array(value).tensor for name, value in params.items()}
    except (ArgumentError, AttributeError, TypeError) as error:
        raise ParamsError(
            "these are no parameters",
            expected="a file, or arrays by name",
            found=f"{type(params).__name__}: {error}",
        ) from error
