"""`to_onnx`: a program becomes an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import GraphProto, ModelProto, defs, helper

from meta import passes
from meta.base.dtype import FROM_TORCH
from meta.base.errors import ArgumentError
from meta.base.files import replacing, writing
from meta.dialect.core.ir_calls import leaf_types
from meta.frontend.core import conversion_error
from meta.frontend.onnx import exporters  # noqa: F401
from meta.frontend.onnx.export.graph import (
    SMALL_BYTES,
    Graph,
    name_of,
    read_by,
    tensor_proto,
    value_info,
)
from meta.frontend.onnx.export.program import ProgramExporter
from meta.frontend.onnx.export.registry import export_call
from meta.frontend.onnx.registry import OnnxError
from meta.ir import Module, TensorType, TupleType
from meta.op.core import tree
from meta.vm import Executable, Program
from meta.vm.compilation import to_program
from meta.vm.modules import CompiledModule

LEAST_OPSET = 21
MOST_BYTES = 1 << 30
"""Weights of more bytes lie in a file of their own: a protobuf ends at 2 GiB."""
CLEAN_UP = (
    passes.infer_type,
    passes.inline,
    passes.promote_refs,
    passes.canonicalize,
    passes.simplify,
    passes.fold_constant,
    passes.deduplicate,
    passes.fuse_composites,
    passes.eliminate_common_subexpressions,
    passes.dead_code,
)
"""What runs before: no pass that knows a device."""


def write(
    model: Any,
    path: str | os.PathLike[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    opset: int,
    output_names: Sequence[str],
    external_data: bool | None,
) -> None:
    """Write a model as `meta.to_onnx` does."""
    known = defs.onnx_opset_version()
    if not LEAST_OPSET <= opset <= known:
        raise ArgumentError(
            "programs are not written in this opset",
            expected=f"{LEAST_OPSET} to {known}, which the package onnx knows",
            found=opset,
        )
    proto, weights = to_proto(_program(model, args, kwargs), opset, output_names)
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise OnnxError(f"onnx's checker refuses the program: {error}") from error
    inputs = [i for i in proto.graph.input if i.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    for name, tensor in weights.items():
        proto.graph.initializer.append(tensor_proto(name, tensor))
    if external_data is None:
        external_data = sum(t.nbytes for t in weights.values()) > MOST_BYTES
    _save(proto, Path(path), external_data)


def _save(proto: ModelProto, path: Path, external_data: bool) -> None:
    with writing(path):
        if not external_data:
            with replacing(path) as new:
                new.write_bytes(proto.SerializeToString())
            return
        data = path.with_name(f"{path.name}.data")
        data.unlink(missing_ok=True)  # onnx appends to what is there
        onnx.save_model(proto, path, save_as_external_data=True, location=data.name)


def _program(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    """Return the traced program of what is to be written."""
    compiled = model.executable if isinstance(model, CompiledModule) else model
    if not isinstance(compiled, Executable):
        return to_program(model, args, kwargs)
    records = compiled.passes()
    if not records:
        raise ArgumentError(
            "a program that was loaded is that of its kernels, and cannot be written as ONNX",
            hint="write the model from which it was compiled",
        )
    if args or kwargs:
        raise ArgumentError("what is compiled says itself what it takes",
                            hint="leave the arguments out")  # fmt: skip
    return Program(records[0].module, compiled.arrays, compiled.convention)


def to_proto(
    program: Program, opset: int, output_names: Sequence[str] = ()
) -> tuple[ModelProto, dict[str, torch.Tensor]]:
    """Return a program as a model whose weights, and large constants, are inputs; and these.

    Raises OnnxError that lists every call without a form, and ArgumentError for names that are not
    as many as there are outputs.
    """
    program.require_end()
    module: Module = reduce(lambda m, step: step(m), CLEAN_UP, program.module)
    graph, exporter = Graph(opset, export_call), ProgramExporter(module)
    names = list(output_names) or tree.leaf_names(program.convention.result, "output")
    inputs = exporter.inputs(graph)
    count = len(leaf_types(module.main.result_type or TupleType(())))
    if len(names) != count or len({*names}) != count or graph.names.keys() & {*names}:
        raise ArgumentError(
            "output_names are as many names as there are outputs, other than those of inputs",
            expected=f"{count} names",
            found=names,
        )
    graph.names.update(dict.fromkeys(names, 0))  # so that nothing inside has them
    outputs = exporter.main(graph)
    if exporter.failures:
        raise conversion_error(exporter.failures.values(), OnnxError)
    made = graph.proto("main", inputs, outputs)
    _rename(made, dict(zip([o.name for o in made.output], names, strict=True)))
    read = set[str]().union(*map(read_by, made.node))
    pairs = zip(inputs[len(inputs) - len(program.arrays) :], program.arrays, strict=True)
    weights = {name_of(x): array.tensor for x, array in pairs}
    for name in filter(read.__contains__, graph.constants):
        tensor = graph.constants[name]
        if tensor.nbytes <= SMALL_BYTES:
            made.initializer.append(tensor_proto(name, tensor))
        else:
            weights[name] = tensor
            type_ = TensorType(tuple(tensor.shape), FROM_TORCH[tensor.dtype])
            made.input.append(value_info(name, type_))
    version = helper.make_opsetid("", opset)
    proto = helper.make_model(
        made,
        opset_imports=[version],
        ir_version=helper.find_min_ir_version_for([version]),
        producer_name="meta",
    )
    return proto, weights


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Give values of a graph, and of those inside, other names."""
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(v, v) for v in values]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names)
    for declared in graph.output:
        declared.name = names.get(declared.name, declared.name)
