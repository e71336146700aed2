"""Running what is written as ONNX: by onnxruntime, and by onnx's reference evaluator where that has
no kernel of a dtype.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx.reference import ReferenceEvaluator

from meta.base.dtype import FROM_TORCH, TO_NUMPY, TO_TORCH

onnxruntime.set_default_logger_severity(4)  # what it has no kernel for is told by its error
PROVIDERS = ["CPUExecutionProvider"]
UNKNOWN_TO_PYTHON = ("bfloat16", "float8")
"""Dtypes of which onnxruntime takes no arrays of NumPy's."""


def options(optimised: bool) -> Any:
    """Return options of a session on one thread."""
    found = onnxruntime.SessionOptions()
    found.intra_op_num_threads = found.inter_op_num_threads = 1
    if not optimised:
        found.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return found


def to_numpy(tensor: torch.Tensor) -> Any:
    """Return a tensor as an array of NumPy's, or of ml_dtypes'."""
    dtype = TO_NUMPY[FROM_TORCH[tensor.dtype]]
    flat = tensor.detach().contiguous().reshape(-1)
    if not flat.numel():
        return np.zeros(tuple(tensor.shape), dtype)
    return flat.view(torch.uint8).numpy().view(dtype).reshape(tuple(tensor.shape))


def to_torch(array: Any) -> torch.Tensor:
    """Return an array of NumPy's, or of ml_dtypes', as a tensor."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    if array.dtype.name.startswith(UNKNOWN_TO_PYTHON):
        bits = np.int16 if array.dtype.itemsize == 2 else np.uint8
        return torch.from_numpy(array.view(bits).copy()).view(TO_TORCH[array.dtype.name])
    return torch.from_numpy(array.copy())


def by_onnxruntime(model: Any, inputs: Sequence[Any], optimised: bool = True) -> list[Any]:
    """Return the outputs of a model, a protobuf or the path of a file; what has no kernel raises
    what onnxruntime raises.
    """
    given = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(given, options(optimised), providers=PROVIDERS)
    feeds = dict(zip([i.name for i in session.get_inputs()], inputs, strict=True))
    return list(session.run(None, feeds))


def run(model: onnx.ModelProto, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], bool]:
    """Return the outputs of a model, and whether onnxruntime has run it. RuntimeError where neither
    it nor the reference evaluator can.
    """
    feeds = [to_numpy(t) for t in inputs]
    kinds = {i.type.tensor_type.elem_type for i in (*model.graph.input, *model.graph.output)}
    names = {onnx.helper.tensor_dtype_to_np_dtype(kind).name for kind in kinds}
    if not any(name.startswith(UNKNOWN_TO_PYTHON) for name in names):
        try:
            return [to_torch(a) for a in by_onnxruntime(model, feeds, optimised=False)], True
        except Exception as error:  # classes of onnxruntime's own, which have no common one
            why = error
    else:
        why = TypeError("onnxruntime takes no arrays of this dtype")
    given = dict(zip([i.name for i in model.graph.input], feeds, strict=True))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Any = ReferenceEvaluator(model).run(None, given)
    except Exception as error:
        raise RuntimeError(f"{why}\n{error}") from error
    return [to_torch(a) for a in found], False
