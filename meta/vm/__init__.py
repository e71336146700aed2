"""Floor 5: execution: eager calls, the interpreter, the compiler and the machine.

A file imports from its own folder and from those before it in this order, files right here from
all of them:

`eager/` runs an operator's call. `compiler/` makes `Code` of a program. `graphs/` records kernels
as CUDA graphs. `run/` links and runs programs. `inspect/` looks at compiled programs. `save/`
writes them to disk. `compilation.py` (`compile`) and `executable.py` put them together;
`namespace.py` has what is imported when it is first named; `modules/` is a face of the same
programs with tensors by name.

``executable.history`` has one record per pass, and is empty if the program came from the program
cache. Arguments may be types with symbolic dimensions: ``dims={"n": (1, 32)}`` gives their ranges,
and a call out of range raises.

**Out of memory** is an `OutOfMemory` with the bytes planned and free, from eager calls, compilation
(the arena), preparation, runs and loading; nothing of the failed call is kept. Where there is
memory to run a region but not to record it, its kernels run one by one from then on; where graphs
are required, that is the error, and the next call tries again.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meta.vm.executable import Executable, load

if TYPE_CHECKING:
    from meta.vm.namespace import (
        PassContext,
        Program,
        compile,
        interpret,
        measure_peaks,
        merge_traces,
    )

__all__ = [
    "Executable",
    "PassContext",
    "Program",
    "compile",
    "interpret",
    "load",
    "measure_peaks",
    "merge_traces",
]


def __getattr__(name: str) -> Any:
    """Import what makes programs: a process that only loads some does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module("meta.vm.namespace"), name)
    return found
