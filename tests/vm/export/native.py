"""Exported libraries, called by ctypes from the process of the tests."""

import ctypes
from pathlib import Path

import torch

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32),
    *(torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
"""The dtypes of a library, in the order of the header's enumeration."""
OK, ARGUMENT, DIMENSION, INDEX, MEMORY, PROCESSOR, KERNEL, BUSY = range(8)


class Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("extents", ctypes.POINTER(ctypes.c_char_p)),
        ("written", ctypes.c_int),
    )

    def text(self):
        extents = ", ".join(self.extents[i].decode() for i in range(self.rank))
        return f"{self.name.decode()}: {str(DTYPES[self.dtype]).removeprefix('torch.')}[{extents}]"


class Dim(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("least", ctypes.c_int64), ("most", ctypes.c_int64))


class Library:
    """A library, and a model of it."""

    def __init__(self, path: Path, name: str = "meta_model", threads: int = 1) -> None:
        self.library, self.name = ctypes.CDLL(str(path)), name
        for one in ("name", "error"):
            self.function(one).restype = ctypes.c_char_p
        for one, kind in (("input", Info), ("output", Info), ("dimension", Dim)):
            self.function(one).restype = ctypes.POINTER(kind)
        for one in ("input_bytes", "output_bytes"):
            self.function(one).restype = ctypes.c_int64
        self.model = self.create(threads)

    def function(self, name):
        return getattr(self.library, f"{self.name}_{name}")

    def create(self, threads=1):
        made = ctypes.c_void_p()
        status = self.function("create")(threads, ctypes.byref(made))
        assert status == OK, self.error(None)
        return made

    def destroy(self):
        self.function("destroy")(self.model)

    def error(self, model):
        return self.function("error")(model).decode()

    def described(self, kind):
        count = self.function(f"{kind}_count")()
        return [self.function(kind)(i).contents for i in range(count)]

    def dims(self):
        """Return the number of each dimension by its name."""
        count = self.function("dim_count")()
        return {self.function("dimension")(i).contents.name.decode(): i for i in range(count)}

    def run(self, inputs, model=None, **dims):
        """Run it on tensors; return the results."""
        order = sorted(dims, key=self.dims().__getitem__)
        numbers = (ctypes.c_int64 * len(order))(*(dims[n] for n in order))
        results = []
        for i, info in enumerate(self.described("output")):
            shape = (ctypes.c_int64 * info.rank)()
            assert self.function("output_shape")(i, numbers, shape) == OK
            results.append(torch.empty(list(shape), dtype=DTYPES[info.dtype]))
            assert self.function("output_bytes")(i, numbers) == results[-1].nbytes
        status = self.launch(inputs, results, numbers, model)
        assert status == OK, self.error(model or self.model)
        return results

    def launch(self, inputs, outputs, numbers=None, model=None):
        """Return the status of a run."""

        def pointers(tensors):
            values = (t if t is None or isinstance(t, int) else t.data_ptr() for t in tensors)
            return (ctypes.c_void_p * len(tensors))(*values)

        given = pointers(inputs), pointers(outputs)
        return self.function("run")(model or self.model, *given, numbers)
