"""`from_onnx`: an ONNX model becomes a model, by TVM's importer."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, helper, numpy_helper
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from meta import op
from meta.base.dtype import canonical
from meta.base.errors import ArgumentError, FormatError
from meta.base.files import require_file
from meta.frontend.onnx.graph import DEFAULT_DOMAINS, prepared
from meta.frontend.relax.model import RelaxModel, model_of
from meta.frontend.relax.registry import RelaxError
from meta.frontend.relax.tensor_expressions import NamingBuilder
from meta.op.core.tracing import Symbol
from meta.runtime.ndarray import array, ndarray

MAX_MODEL_BYTES = 2 << 30
"""What protobuf takes; larger models keep their tensors in other files."""


class OnnxModel(RelaxModel):
    """A model imported from ONNX: takes the graph's inputs, returns its output or outputs.

    Attributes
    ----------
    output_names: the names of the outputs, in order.
    """

    def build(  # type: ignore[override]  # a constructor
        self, *program: Any, outputs: Sequence[tuple[str, str]]
    ) -> None:
        """Take what `RelaxModel` takes, and the name and the dtype of each output."""
        super().build(*program)
        self._outputs = tuple(outputs)
        self.output_names = tuple(name for name, _ in outputs)

    def convert(self, *inputs: Any) -> Any:
        """Call the operators of the graph; the results are of the dtypes that it declares."""
        result = super().convert(*inputs)
        results = result if isinstance(result, tuple) else (result,)
        cast = tuple(
            op.astype(r, dtype) if isinstance(r, Symbol | ndarray) and dtype != r.dtype else r
            for r, (_, dtype) in zip(results, self._outputs, strict=True)
        )
        return cast if len(cast) > 1 else cast[0]


def from_onnx(model: Any, constants: Mapping[str, object] | None = None) -> OnnxModel:
    """Convert an ONNX model to a model.

    model: the path of a file, or an `onnx.ModelProto`.
    constants: values for some of the graph's inputs, which are no inputs then. An input that says
        a shape, axes or the like must be one: the importer needs its value.

    The model takes the graph's inputs, by position or by name, and returns its output, or a tuple
    of them. Initializers of floating point are its parameters by their names, except the running
    statistics of batch normalisation; those that say shapes and the like are constants. It is in
    infer mode; in train mode batch normalisation takes the statistics of the batch and updates the
    running ones, and dropout drops.

    Raises RelaxError for a file that is no valid ONNX model, and for what TVM's importer or the
    converters do not support; ArgumentError for constants that are no inputs.
    """
    proto = prepared(_loaded(model), dict(constants or {}))
    importer = ONNXGraphImporter({}, None, keep_params_in_input=True, sanitize=False)
    importer.bb = NamingBuilder()
    versions = [o.version for o in proto.opset_import if o.domain in DEFAULT_DOMAINS]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            module = importer.from_onnx(proto.graph, max(versions, default=1))
    except Exception as error:
        # The importer says in exceptions of many kinds what it does not support.
        said = " ".join(output.getvalue().split())
        raise RelaxError(
            f"TVM's importer of ONNX refuses the model: {_text(error)}", hint=said or None
        ) from error
    graph = proto.graph
    state = {i.name: array(numpy_helper.to_array(i)) for i in graph.initializer}
    inputs = [i.name for i in graph.input if i.name not in state]
    names = [str(p.name) for p in module["main"].params]
    by_parameter = dict(zip(names[len(names) - len(state) :], state, strict=True))
    model_state = {p: state[n] for p, n in by_parameter.items()}
    outputs = [(o.name, _dtype(o)) for o in graph.output]
    return model_of(OnnxModel, module, inputs, model_state, by_parameter, outputs=outputs)


def _loaded(model: Any) -> onnx.ModelProto:
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
            raise RelaxError(f"{place} cannot be read: {error}") from error
        except (DecodeError, ValueError, onnx.checker.ValidationError) as error:
            raise RelaxError(f"{place} is no ONNX model: {_text(error)}") from error
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise RelaxError(f"{place} is no valid ONNX model: {_text(error)}") from error
    return proto


def _load_external(proto: onnx.ModelProto, folder: str) -> None:
    """Read the tensors that a model keeps in files of their own, all of them ordinary files."""
    tensors = external_data_helper._get_all_tensors(proto)
    for tensor in filter(external_data_helper.uses_external_data, tensors):
        location = external_data_helper.ExternalDataInfo(tensor).location
        with contextlib.suppress(FileNotFoundError):  # onnx says of which tensor it is
            require_file(os.path.join(folder, location))
    onnx.load_external_data_for_model(proto, folder)


def _dtype(output: onnx.ValueInfoProto) -> str:
    """Return the name of the dtype that an output declares."""
    kind = output.type.tensor_type.elem_type
    try:
        return canonical(helper.tensor_dtype_to_np_dtype(kind))
    except (KeyError, ArgumentError):
        raise RelaxError(
            f"the output {output.name!r} is no array of a dtype that there is",
            found=onnx.TensorProto.DataType.Name(kind),
        ) from None


def _text(error: Exception) -> str:
    """Return the last line of an error's text, which with TVM's is the message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
