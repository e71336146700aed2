"""`from_torch`: a PyTorch module becomes a model, by `torch.export` and TVM's importer.

What the importer would read as something else without an error is told by torch's own graph first:
a program that writes to what it is given, and nodes that come out as other types.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from meta.base.errors import ArgumentError
from meta.base.source import user_span
from meta.frontend.core import Failure, failed
from meta.frontend.relax.model import RelaxModel, model_of
from meta.frontend.relax.registry import RelaxError
from meta.frontend.torch.operators import OPERATORS, decompositions
from meta.runtime.ndarray import array, ndarray

WRITTEN = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def require_no_writes(program: ExportedProgram) -> None:
    """Raise RelaxError for a program that writes to a buffer or an input: the importer drops it."""
    for spec in program.graph_signature.output_specs:
        if spec.kind in WRITTEN:
            raise RelaxError(
                f"the module writes to {spec.target!r}, which is not supported",
                hint="export it in eval mode, or take and return what it keeps",
            )


def require_torchs_types(program: ExportedProgram, imported: Mapping[Any, Any]) -> None:
    """Raise RelaxError for nodes that were imported with another type than torch's."""
    failures = []
    for node in program.graph.nodes:
        wanted, found = node.meta.get("val"), getattr(imported.get(node), "ty", None)
        if not node.users or not isinstance(wanted, torch.Tensor):
            continue
        if isinstance(found, relax.TensorType) and not _fits(found, wanted):
            why = f"the importer gives {found.dtype}{_shape(found)} instead of {_type(wanted)}"
            failures.append(Failure(str(node.target), why, place=node.name))
    if failures:
        raise failed(failures, RelaxError)


def _shape(type_: Any) -> list[Any] | str:
    return list(type_.shape.values) if isinstance(type_.shape, relax.ShapeExpr) else ""


def _type(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _fits(found: Any, wanted: torch.Tensor) -> bool:
    """Whether dtype, number of axes, and the extents that both know agree."""
    if str(found.dtype) != str(wanted.dtype).removeprefix("torch."):
        return False
    if not isinstance(found.shape, relax.ShapeExpr):
        return True
    extents = found.shape.values
    return len(extents) == wanted.ndim and all(
        int(a) == b
        for a, b in zip(extents, wanted.shape, strict=True)
        if isinstance(b, int) and isinstance(getattr(a, "value", None), int)
    )


class TorchModel(RelaxModel):
    """A model imported from PyTorch: called like the module, with results of the same structure."""

    def build(  # type: ignore[override]  # a constructor
        self, *program: Any, positional: int, structures: tuple[Any, Any]
    ) -> None:
        """Take what `RelaxModel` takes, how many inputs are positional in the exported program,
        and the structures (of torch's kind) of its inputs and results.
        """
        super().build(*program)
        self._positional, self._structures = positional, structures

    def _shared(self) -> tuple[Any, ...]:
        return (*super()._shared(), *self._structures)

    def convert(self, *inputs: Any) -> Any:
        """Call the operators of the program under the trace in force."""
        keywords = self.input_names[self._positional :]
        named = dict(zip(keywords, inputs[self._positional :], strict=True))
        leaves, structure = pytree.tree_flatten((inputs[: self._positional], named))
        given, taken = self._structures
        if structure != given:
            raise ArgumentError(
                "the inputs have another structure than the example inputs",
                expected=str(given),
                found=str(structure),
            )
        results = super().convert(*leaves)
        return pytree.tree_unflatten(results if isinstance(results, tuple) else (results,), taken)


def from_torch(
    module: Any,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> TorchModel:
    """Convert a PyTorch module to a model.

    module: a `torch.nn.Module`, exported as it is in eval mode; or a
        `torch.export.ExportedProgram`, for which the examples are not needed.
    example_inputs, example_kwargs: what forward is called with, as for `torch.export.export`.
    dynamic_shapes: which extents may vary, as there; others are those of the examples.

    The model is called as the module is and returns what it returns, dicts and tuples included.
    Its state has the names of `state_dict`; parameters that require a gradient do so here. It is
    in infer mode; in train mode batch normalisation takes the statistics of the batch and updates
    the running ones. Dropout is not in a module exported in eval mode, and so never drops here.

    Raises RelaxError, listing them, for operators that TVM's importer or the converters do not
    support, and for a module that torch.export does not take or that fails; ArgumentError for
    something else than a module.
    """
    if isinstance(module, ExportedProgram):
        program, forward = module, None
    elif isinstance(module, torch.nn.Module):
        if isinstance(example_inputs, torch.Tensor):
            raise ArgumentError("example_inputs is a tuple of inputs", hint="(x,)")
        with _eval_mode(module), torch.no_grad(), _exporting():
            program = torch.export.export(
                module,
                tuple(example_inputs),
                dict(example_kwargs or {}),
                dynamic_shapes=dynamic_shapes,
            )
        forward = inspect.signature(module.forward)
    else:
        raise ArgumentError(
            "from_torch takes a module", expected="torch.nn.Module", found=type(module).__name__
        )
    return _converted(program, forward)


def _converted(program: ExportedProgram, forward: inspect.Signature | None) -> TorchModel:
    with _exporting():
        program = program.run_decompositions(decompositions())
    require_no_writes(program)
    specs = program.graph_signature.input_specs
    for spec in specs:
        # A buffer would become a constant without a name.
        if spec.kind is InputKind.BUFFER and spec.persistent:
            spec.kind = InputKind.PARAMETER
    importer = ExportedProgramImporter()
    try:
        module = importer.from_exported_program(
            program,
            keep_params_as_input=True,
            unwrap_unit_return_tuple=False,
            no_bind_return_tuple=False,
            custom_convert_map=OPERATORS,
        )
    except RelaxError as error:  # of our own operators, which the importer called
        error.span = user_span()
        raise
    except Exception as error:
        # The importer says in exceptions of many kinds what it does not support.
        raise RelaxError(
            f"TVM's importer of PyTorch refuses the module: {error}",
            hint="write what it names with other operators of torch",
        ) from error
    require_torchs_types(program, importer.env)
    kept = [s for s in specs if s.kind is InputKind.PARAMETER and isinstance(s.arg, TensorArgument)]
    names = {s.arg.name: s.target for s in kept}
    tensors = {s.arg.name: program.state_dict[s.target] for s in kept}
    in_structure = program.call_spec.in_spec
    arguments, named = in_structure.unflatten([None] * in_structure.num_leaves)
    return model_of(
        TorchModel,
        module,
        [*_positional_names(forward, len(arguments)), *named],
        _arrays(tensors),
        names,
        trainable={n for n, t in tensors.items() if t.requires_grad},
        positional=len(arguments),
        structures=(in_structure, program.call_spec.out_spec),
    )


def _arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, ndarray]:
    """Return copies of tensors; one that has several names is one array."""
    copies: dict[int, ndarray] = {}
    for tensor in tensors.values():
        if id(tensor) not in copies:
            copies[id(tensor)] = array(tensor)
    return {n: copies[id(t)] for n, t in tensors.items()}


def _positional_names(forward: inspect.Signature | None, count: int) -> list[str]:
    """Return the names of forward's first parameters; of those behind ``*name``, numbered ones."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = forward.parameters.values() if forward is not None else ()
    names = [p.name for p in parameters if p.kind in kinds][:count]
    return [*names, *(f"in{i}" for i in range(len(names), count))]


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """Make a RelaxError of what torch.export or the module, which it runs, raises; keep back a
    warning that torch.export gives about its own code.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
        try:
            yield
        except Exception as error:
            raise RelaxError(
                f"torch.export refuses the module: {type(error).__name__}: {error}",
                hint="call the module with the example inputs; if that works, write what is named "
                "with other operators of torch",
            ) from error


@contextlib.contextmanager
def _eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Put a module in eval mode for a block."""
    modes = {m: m.training for m in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for m, mode in modes.items():
            m.training = mode
