"""Compiled modules: a compiled program that is run on tensors by name, with buffers of the caller,
whose weights are set by name, and that a folder holds with all that was made on the way.

`compile_model` makes a `CompiledModule` of an `Executable`; there is no other way of compiling.
`signature.py` says how inputs and results are named, `buffers.py` where results go, `constants.py`
how weights are set, `workdir.py` what is in the folder.
"""

from meta.vm.modules.benchmark import Benchmark
from meta.vm.modules.module import CompiledModule, compile_model, load_module

__all__ = ["Benchmark", "CompiledModule", "compile_model", "load_module"]
