"""`load`: the executable that was saved to a folder."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from meta.base.errors import FormatError
from meta.ir import TensorType
from meta.runtime.ndarray import ndarray
from meta.runtime.out_of_memory import copy_to_device
from meta.runtime.tensor_file import read_tensors
from meta.vm.compiler.calling_convention import convention_from_json
from meta.vm.executable import Executable
from meta.vm.save.folder import ARRAYS, read_folder


def load(
    folder: str | os.PathLike[str], *, rebuild: bool = False, cuda_graph: bool | None = None
) -> Executable:
    """Return the executable that `Executable.save` wrote to a folder.

    It is called as the model was, and owns its parameters (``exe.arrays``). A compiler runs only
    if the kernels were compiled by another version of it or for another processor, or with
    ``rebuild``: then nothing in the folder is run as code. Without, loading runs the kernels' code:
    load folders of people whom you trust. ``cuda_graph`` is as for `compile`.

    Raises FormatError, naming the file, for a folder that is damaged, incomplete or edited, for
    kernels that others may have written, and if a compiler would have to run that is not installed;
    DeviceError if the device that it was compiled for is not there.
    """
    source = Path(folder)
    program, more = read_folder(source, rebuild=rebuild)
    convention = convention_from_json(more)
    tensors = read_tensors(source / ARRAYS)
    with torch.inference_mode(False):  # else nothing would count what is written to them
        arrays = [
            ndarray(copy_to_device(tensors[str(i)], program.device))  # out of the mapped file
            for i in range(len(tensors))
            if str(i) in tensors
        ]
    last = len(program.code.params) - program.code.prepared
    params = program.code.params[max(last - len(arrays), 0) : last]
    if len(arrays) != len(tensors) or len(arrays) != len(params):
        raise FormatError(f"{source / ARRAYS} does not hold the program's arrays")
    for array, (name, type_) in zip(arrays, params, strict=True):
        if TensorType(array.shape, array.dtype) != type_:
            found = f"{array.dtype}{list(array.shape)}"
            raise FormatError(f"the array of %{name} does not fit", expected=type_, found=found)
    return Executable(program, arrays, convention, cuda_graph=cuda_graph)
