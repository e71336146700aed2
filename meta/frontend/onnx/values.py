"""ONNX's tensors and dtypes as arrays of `meta`, on the device of the program."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from meta.base.device import Device
from meta.base.dtype import TO_NUMPY, canonical
from meta.base.errors import ArgumentError
from meta.frontend.core import Unconvertible
from meta.frontend.onnx.subbyte_dtypes import CARRIER_DTYPES, NarrowValue, name_of
from meta.frontend.onnx.text import Text
from meta.runtime.ndarray import array, ndarray


def dtype_of(kind: int) -> str:
    """Return the name of a dtype by its number in `onnx.TensorProto`; Unconvertible if arrays have
    no such dtype.
    """
    try:
        return canonical(helper.tensor_dtype_to_np_dtype(kind))
    except (KeyError, ArgumentError):
        raise Unconvertible(f"arrays have no dtype {_kind_name(kind)}") from None


def _kind_name(kind: int) -> str:
    known = onnx.TensorProto.DataType.values()
    return str(onnx.TensorProto.DataType.Name(kind)) if kind in known else str(kind)


def numpy_of(tensor: Any) -> Any:
    """Return an `onnx.TensorProto` or `onnx.SparseTensorProto` as an array of NumPy."""
    if isinstance(tensor, onnx.SparseTensorProto):
        return _dense(tensor)
    if (
        tensor.data_type != onnx.TensorProto.STRING
        and name_of(tensor.data_type) not in CARRIER_DTYPES
    ):
        dtype_of(tensor.data_type)
    return numpy_helper.to_array(tensor)


def array_of(tensor: Any, device: Device) -> ndarray | NarrowValue | Text:
    """Return a tensor of a file as an array; Unconvertible for a dtype that arrays have not."""
    values = numpy_of(tensor)
    if values.dtype.kind == "O":
        return Text(values)
    dtype = str(values.dtype.name)
    if dtype in CARRIER_DTYPES:
        return NarrowValue(
            array(values.astype(TO_NUMPY[CARRIER_DTYPES[dtype]]), device=device), dtype
        )
    # What is read is a view of the file's bytes.
    return array(np.array(values, order="C"), device=device)


def _dense(sparse: Any) -> Any:
    """Return a sparse tensor with its zeros. Indices are flat, or one row of them per value."""
    values, indices = numpy_of(sparse.values), numpy_of(sparse.indices)
    shape = tuple(sparse.dims)
    result = np.zeros(shape, values.dtype)
    if indices.ndim == 1:
        result.reshape(-1)[indices] = values
    else:
        result[tuple(indices.T)] = values
    return result
