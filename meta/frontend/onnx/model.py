"""`from_onnx`: an ONNX model becomes a model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, ValueInfoProto, external_data_helper

from meta.base.errors import ArgumentError, FormatError
from meta.base.files import require_file
from meta.frontend.core import ImportedModel, Unconvertible, active_trace
from meta.frontend.onnx.program import Program, read_program
from meta.frontend.onnx.registry import OnnxError
from meta.frontend.onnx.text import as_lists
from meta.frontend.onnx.values import CARRIER_DTYPES, as_declared, carrier, dtype_of, name_of
from meta.frontend.onnx.walker import Walker
from meta.op.core.tracing import Symbol
from meta.runtime.ndarray import ndarray

MAX_MODEL_BYTES = 2 << 30
"""What protobuf takes; larger models keep their tensors in other files."""


class OnnxModel(ImportedModel):
    """A model imported from ONNX: takes the graph's inputs, returns its output or outputs.

    Attributes
    ----------
    output_names: the names of the outputs, in order.
    """

    def build(  # type: ignore[override]  # a constructor
        self, program: Program, arrays: Mapping[str, ndarray], input_names: Sequence[str]
    ) -> None:
        """Take a checked program and its state by name."""
        super().build(arrays, input_names)
        self._program = program
        self.output_names = tuple(o.name for o in program.graph.output)

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxModel:
        """Return a model with arrays of its own, of the same program, which is never written to."""
        memo[id(self._program)] = self._program
        return cast(OnnxModel, super().__deepcopy__(memo))

    def convert(self, *inputs: Any) -> Any:
        """Call the operators of the graph under the trace in force."""
        trace, program = active_trace(), self._program
        values: dict[str, Any] = {n: trace.lift(a) for n, a in self.arrays.items()}
        values |= {n: a.to(device=trace.device) for n, a in program.constants.items()}
        for declared, value in zip(program.inputs, inputs, strict=True):
            _require_declared_type(declared, value)
            values[declared.name] = as_declared(declared.type, value)
        walker = Walker(program.functions, self.training)
        results = as_lists(carrier(walker.main(program.graph, program.opsets, values)))
        return results if len(results) > 1 else results[0]


def _require_declared_type(declared: ValueInfoProto, value: Any) -> None:
    """Raise OnnxError for an input of another type than the graph declares."""
    if not declared.type.HasField("tensor_type") or not isinstance(value, Symbol | ndarray):
        return
    tensor = declared.type.tensor_type
    try:
        name = name_of(tensor.elem_type)
        dtype = CARRIER_DTYPES[name] if name in CARRIER_DTYPES else dtype_of(tensor.elem_type)
    except Unconvertible as error:
        raise OnnxError(f"the input {declared.name!r}: {error.why}", hint=error.hint) from None
    # PaddlePaddle states -1 for an extent that it does not know.
    extents = [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
        for d in tensor.shape.dim
    ]
    fits = not tensor.HasField("shape") or (
        len(extents) == value.ndim
        and all(
            a is None or not isinstance(b, int) or a == b
            for a, b in zip(extents, value.shape, strict=True)
        )
    )
    if dtype != value.dtype or not fits:
        names = [
            d.dim_param or ("?" if known is None else known)
            for d, known in zip(tensor.shape.dim, extents, strict=True)
        ]
        raise OnnxError(
            f"the input {declared.name!r} has another type",
            expected=f"{dtype}[{', '.join(map(str, names))}]",
            found=f"{value.dtype}[{', '.join(map(str, value.shape))}]",
        )


def from_onnx(model: Any, constants: Mapping[str, object] | None = None) -> OnnxModel:
    """Convert an ONNX model to a model.

    model: the path of a file, or an `onnx.ModelProto`.
    constants: values for some of the graph's inputs, which are no inputs then. An input that says
        axes or the like must be one, where its value has to be known.

    The model takes the graph's inputs, by position or by name, and returns its output, or a tuple
    of them. Initializers of floating point are its parameters by their names, except the running
    statistics of batch normalisation; those that say shapes and the like are constants. It is in
    infer mode; in train mode batch normalisation takes the statistics of the batch and updates the
    running ones, and dropout drops.

    Raises OnnxError for a file that is no valid ONNX model, and, listing all of them, for nodes
    that no converter takes; those that a converter cannot express are listed when the model is
    called. ArgumentError for constants that are no inputs.
    """
    program, arrays = read_program(_load_checked(model), dict(constants or {}))
    return OnnxModel(program, arrays, [i.name for i in program.inputs])


def _load_checked(model: Any) -> onnx.ModelProto:
    """Return a checked model."""
    if not isinstance(model, onnx.ModelProto | str | os.PathLike):
        raise ArgumentError(
            "from_onnx takes a file or a model",
            expected="a path or onnx.ModelProto",
            found=type(model).__name__,
        )
    if isinstance(model, onnx.ModelProto):
        proto, place = model, "the model"
    else:
        place = os.fspath(model)
        try:
            require_file(place, MAX_MODEL_BYTES)
            proto = onnx.load(place, load_external_data=False)
            _load_external(proto, os.path.dirname(place))
        except FormatError:
            raise
        except OSError as error:
            raise OnnxError(f"{place} cannot be read: {error}") from error
        except (DecodeError, ValueError, onnx.checker.ValidationError) as error:
            raise OnnxError(f"{place} is no ONNX model: {_text(error)}") from error
    try:
        onnx.checker.check_model(_for_checker(proto))
    except onnx.checker.ValidationError as error:
        raise OnnxError(f"{place} is no valid ONNX model: {_text(error)}") from error
    return proto


def _for_checker(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model as the checker wants it: what it demands and nobody needs is put in.

    Until version 3 of the format the inputs had to name the initializers too, and versions before
    had no opsets. Inputs and outputs of the graph have to have shapes, and outputs types, which not
    all writers know.
    """
    old = proto.ir_version < 4
    untyped = [o for o in proto.graph.output if not o.HasField("type")]
    values = (*proto.graph.input, *proto.graph.output)
    if not old and not untyped and all(map(_has_shape, values)):
        return proto
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    if old:
        shown.ir_version = 4
        if not shown.opset_import:
            shown.opset_import.add(version=1)
    for output in shown.graph.output:
        if not output.HasField("type"):
            output.type.tensor_type.elem_type = TensorProto.FLOAT
    for value in (*shown.graph.input, *shown.graph.output):
        if not _has_shape(value):
            value.type.tensor_type.shape.SetInParent()
    return shown


def _has_shape(value: ValueInfoProto) -> bool:
    """Whether a value is no tensor, or states its shape."""
    is_tensor = value.type.WhichOneof("value") == "tensor_type"
    return not is_tensor or bool(value.type.tensor_type.HasField("shape"))


def _load_external(proto: onnx.ModelProto, folder: str) -> None:
    """Read the tensors that a model keeps in files of their own, all of them ordinary files."""
    tensors = external_data_helper._get_all_tensors(proto)
    for tensor in filter(external_data_helper.uses_external_data, tensors):
        location = external_data_helper.ExternalDataInfo(tensor).location
        with contextlib.suppress(FileNotFoundError):  # onnx says of which tensor it is
            require_file(os.path.join(folder, location))
    onnx.load_external_data_for_model(proto, folder)


def _text(error: Exception) -> str:
    """Return the last line of an error's text, which with onnx's is the message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
