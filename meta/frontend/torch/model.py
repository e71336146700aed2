"""`from_torch`: a PyTorch module becomes a model, by `torch.export` and converters of ATen."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import fx
from torch.export import ExportedProgram

from meta.base.dtype import is_float
from meta.base.errors import ArgumentError
from meta.base.files import require_file
from meta.frontend.aten.registry import AtenError, bind_arguments, name_of
from meta.frontend.core import ImportedModel
from meta.frontend.core.memory_order import Order
from meta.frontend.torch.export import ExportedModule, export_module, of_program
from meta.frontend.torch.program import NO_ORDERS, TorchProgram
from meta.runtime.ndarray import array, ndarray


class Programs:
    """The programs of a module, in eval mode and, exported when it is first wanted, in train mode.

    Copies of a model have them in common.
    """

    def __init__(self, export: Callable[[bool], ExportedModule]) -> None:
        self._export = export
        self._made: dict[bool, TorchProgram] = {}

    def of(self, training: bool) -> TorchProgram:
        """Return the program in a mode; AtenError if something in it is not supported."""
        if training not in self._made:
            program = TorchProgram(self._export(training))
            program.require_supported()
            self._made[training] = program
        return self._made[training]


class TorchModel(ImportedModel):
    """A model imported from PyTorch: called like the module, with results of the same structure."""

    def build(  # type: ignore[override]  # a constructor
        self,
        programs: Programs,
        arrays: Mapping[str, ndarray],
        input_names: Sequence[str],
        positional: int,
        transient: Sequence[str],
        orders: Mapping[str | int, Order] = NO_ORDERS,
    ) -> None:
        """Take the programs, the state, the names of the inputs, how many of these are positional
        in the exported program, which of the state torch does not save, and which arrays have
        their axes in another order (see `TorchProgram`).
        """
        super().build(arrays, input_names)
        self._programs_of_torch, self._positional = programs, positional
        self._transient, self._orders = tuple(transient), dict(orders)

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchModel:
        """Return a model with arrays of its own, of the same programs, which are never written."""
        memo[id(self._programs_of_torch)] = self._programs_of_torch
        return cast(TorchModel, super().__deepcopy__(memo))

    def convert(self, *inputs: Any) -> Any:
        """Call the operators of the program under the trace in force."""
        program = self.torch_program()
        unknown = sorted(set(program.state.values()) - set(self.arrays))
        if unknown:
            raise AtenError(
                f"in train mode the module writes to {unknown[0]!r}, which is not in its state",
                hint="register the buffer with persistent=True",
            )
        keywords = self.input_names[self._positional :]
        named = dict(zip(keywords, inputs[self._positional :], strict=True))
        positional = inputs[: self._positional]
        return program(self.arrays, positional, named, self.training, self._orders)

    def torch_program(self, training: bool | None = None) -> TorchProgram:
        """Return what torch.export made of the module in a mode; None is the model's."""
        return self._programs_of_torch.of(self.training if training is None else training)

    def load_state_dict(
        self, state: Mapping[str, object], *, strict: bool = True, assign: bool = False
    ) -> Any:
        """As `Model.load_state_dict`; buffers that torch does not save stay as they are."""
        kept = {n: self.arrays[n] for n in self._transient if n not in state}
        return super().load_state_dict({**state, **kept}, strict=strict, assign=assign)


def from_torch(
    module: Any,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> TorchModel:
    """Convert a PyTorch module to a model.

    module: a `torch.nn.Module`; or a `torch.export.ExportedProgram` or the path of a ``.pt2`` file
        of one, for which the examples are not needed.
    example_inputs, example_kwargs: what forward is called with, as for `torch.export.export`.
        Objects with tensors in them, such as caches, are taken apart by their attributes.
    dynamic_shapes: which extents may vary, as there; others are those of the examples.

    The model is called as the module is and returns what it returns: dicts, data classes, output
    and cache objects of the same classes, with arrays in them. Its state has the names of
    `state_dict`; parameters that require a gradient do so here, tied ones are one array. A buffer
    that the module writes to is updated by each call.

    The model is in infer mode, in which the module is exported at once. For train mode (dropout,
    statistics of the batch, whatever else the module does) it is exported when the model first
    runs in that mode, and kept for that. An exported program is what it is: it is in the mode that
    it was exported in, and the other one is an error if it has dropout or batch normalisation.

    Raises AtenError, listing them, for operators that are not supported, for a module that
    torch.export does not take, and for one that writes to its inputs; TraceError for one that draws
    random numbers by something else than torch; ArgumentError for something else than a module.

    >>> import torch
    >>> net = meta.frontend.from_torch(torch.nn.Linear(3, 2), (torch.ones(4, 3),))
    >>> net(meta.ones((4, 3))).shape
    (4, 2)
    """
    if isinstance(module, str | Path):
        module = load(module)
    if isinstance(module, ExportedProgram):
        return _of_program(module)
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(
            "from_torch takes a module", expected="torch.nn.Module", found=type(module).__name__
        )
    if isinstance(example_inputs, torch.Tensor):
        raise ArgumentError("example_inputs is a tuple of inputs", hint="(x,)")
    inputs, keywords = tuple(example_inputs), dict(example_kwargs or {})

    def export(training: bool) -> ExportedModule:
        return export_module(module, inputs, keywords, dynamic_shapes, training=training)

    names = _positional_names(inspect.signature(module.forward), len(inputs))
    return _model(Programs(export), False, [*names, *keywords], len(inputs))


def model_on_tensors(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any],
    arrays: Mapping[str, ndarray],
    orders: Mapping[str | int, Order],
) -> TorchModel:
    """Export a module in train mode, parts of it in the mode that they are in; return a model whose
    state is ``arrays``, by the names of the module's state.

    orders: of arrays of the state, by name, and of leaves of the inputs, by number, the order in
    which they have their axes. Raises what `from_torch` does.
    """

    def export(training: bool) -> ExportedModule:
        return export_module(module, tuple(inputs), dict(keywords), None, training=training)

    programs = Programs(export)
    program = programs.of(True)
    own = {name: arrays[name] for name in program.tensors()}
    names = [f"in{i}" for i in range(len(inputs))]
    transient = [n for n in own if n not in program.exported.program.state_dict]
    model = TorchModel(programs, own, [*names, *keywords], len(inputs), transient, orders)
    return cast(TorchModel, model.train())


def load(path: str | Path) -> ExportedProgram:
    """Read the file of an exported program; AtenError if it is none."""
    require_file(path)
    try:
        with warnings.catch_warnings():
            # torch 2.11 says so of what it has read itself, and writes to none of it.
            warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
            return torch.export.load(str(path))
    except Exception as error:  # torch raises many kinds
        raise AtenError(
            f"torch.export.load refuses the file: {type(error).__name__}: {error}",
            found=str(path),
        ) from error


def _of_program(program: ExportedProgram) -> TorchModel:
    modes = modes_of(program.graph_module)
    made = of_program(program)

    def export(training: bool) -> ExportedModule:
        require_mode(modes, training)
        return made

    # An input that is a tensor has the name of its placeholder.
    args, kwargs = program.call_spec.in_spec.unflatten(list(program.graph_signature.user_inputs))
    names = [a if isinstance(a, str) else f"in{i}" for i, a in enumerate(args)]
    return _model(Programs(export), True in modes, [*names, *kwargs], len(args))


def _model(
    programs: Programs, training: bool, input_names: Sequence[str], positional: int
) -> TorchModel:
    program = programs.of(training)
    tensors = program.tensors()
    arrays = _arrays(tensors)
    for name, tensor in tensors.items():
        arrays[name].requires_grad = tensor.requires_grad and is_float(arrays[name].dtype)
    saved = program.exported.program.state_dict
    transient = [n for n in arrays if n not in saved]
    model = TorchModel(programs, arrays, input_names, positional, transient)
    return cast(TorchModel, model.train(training))


def _arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, ndarray]:
    """Return copies of tensors; one that has several names is one array."""
    copies: dict[int, ndarray] = {}
    for tensor in tensors.values():
        if id(tensor) not in copies:
            copies[id(tensor)] = array(tensor.detach())
    return {n: copies[id(t)] for n, t in tensors.items()}


def _positional_names(forward: inspect.Signature, count: int) -> list[str]:
    """Return the names of forward's first parameters; of those behind ``*name``, numbered ones."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in forward.parameters.values() if p.kind in kinds][:count]
    return [*names, *(f"in{i}" for i in range(len(names), count))]


# In which mode, train or eval, a program was exported, by the operators that differ.


_MODE_ARGUMENTS = {
    "batch_norm": "training",
    "_native_batch_norm_legit": "training",
    "_native_batch_norm_legit_functional": "training",
    "native_batch_norm": "training",
    "cudnn_batch_norm": "training",
    "dropout": "train",
    "native_dropout": "train",
    "alpha_dropout": "train",
    "feature_dropout": "train",
    "feature_alpha_dropout": "train",
    "rrelu": "training",
}
"""Operators with an argument that is the mode, and its name."""
_NAMES = ("eval", "train")


def modes_of(module: fx.GraphModule) -> dict[bool, str]:
    """Return the modes (True is train mode) that operators of a program are in, with the first
    operator of each.
    """
    found: dict[bool, str] = {}
    for inner in module.modules():
        for node in inner.graph.nodes if isinstance(inner, fx.GraphModule) else ():
            mode = _mode(node)
            if mode is not None:
                found.setdefault(mode, node.format_node() or node.name)
    return found


def _mode(node: fx.Node) -> bool | None:
    overload = node.target
    if not isinstance(overload, torch._ops.OpOverload):
        return None
    name = name_of(overload).partition(".")[0]
    operands, others = bind_arguments(overload, node.args, node.kwargs)
    arguments: dict[str, Any] = dict(others)
    if name == "_native_batch_norm_legit_no_training":
        return False
    if name == "scaled_dot_product_attention":
        return True if arguments.get("dropout_p", 0.0) else None
    if name not in _MODE_ARGUMENTS or arguments.get("p") == 0.0:
        return None
    if "batch_norm" in name and len(operands) > 3 and operands[3] is None:
        return None  # no running statistics: alike in both modes
    mode = arguments.get(_MODE_ARGUMENTS[name])
    return mode if isinstance(mode, bool) else None


def require_mode(modes: Mapping[bool, str], training: bool) -> None:
    """Raise AtenError for a program that does something else in this mode."""
    if not modes or (training in modes and (training or True not in modes)):
        return
    raise AtenError(
        f"the program was exported in {_NAMES[not training]} mode, and differs in "
        f"{_NAMES[training]} mode",
        found=modes[not training],
        hint="import the torch.nn.Module, or what torch.export makes of it in "
        f"{_NAMES[training]} mode",
    )
