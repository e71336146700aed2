"""`Executable`: a compiled program with what users do with one: look at it, and save it.

What looks at it is imported when it does: a process that runs saved programs is to be small.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meta.base.gc_pause import gc_paused
from meta.base.log import timed
from meta.runtime.ndarray import ndarray
from meta.vm.run.compiled_program import CompiledProgram
from meta.vm.save.folder import read_executable, save

if TYPE_CHECKING:
    from meta.analysis import MemoryReport
    from meta.vm.inspect.debug import DebugRun
    from meta.vm.inspect.explain import ProgramExplanation
    from meta.vm.inspect.profile import Profile


class Executable(CompiledProgram):
    """A program that `meta.vm.compile` or `meta.vm.load` returns.

    >>> with meta.dialect.only("torch"):
    ...     run = meta.vm.compile(meta.model.Linear(3, 2), meta.ones((4, 3)))
    >>> run.kernels(), run(meta.ones((4, 3))).shape
    ({'torch.linear': 1}, (4, 2))
    """

    def kernels(self) -> dict[str, int]:
        """Return how often each kernel is launched in one call, by the name of its dialect operator
        or fused function; with control flow: how many instructions launch it.
        """
        from meta.vm.inspect.summary import kernel_counts

        return kernel_counts(self.code)

    def memory(self) -> MemoryReport:
        """Return the memory of a call: the arena, who is where in it and how long, the peak; what
        kernels take, as far as they say, and CUDA graphs keep. Arguments include what is prepared.
        """
        from meta.vm.inspect.summary import memory_report

        return memory_report(self)

    def profile(self, *args: Any, repeat: int = 10, warmup: int = 2, **kwargs: Any) -> Profile:
        """Run the program on these arguments and measure every instruction.

        The program is run ``warmup`` + ``repeat`` times; what it writes in place, it writes to
        copies. On CUDA the times are those between events on the current stream.
        """
        return self.profile_arrays(self.convention.flatten(*args, **kwargs), repeat, warmup)

    def profile_arrays(self, inputs: list[ndarray], repeat: int, warmup: int) -> Profile:
        """Do what `profile` does, on the arrays among the arguments, in order."""
        from meta.vm.inspect.profile import profile

        return profile(self.program, lambda: self.own_arguments(inputs), repeat, warmup)

    def debug(self, *args: Any, stop_at_nan: bool = False, **kwargs: Any) -> DebugRun:
        """Run the program on these arguments and return what each instruction read and made.

        What the program writes in place, it writes to copies. With ``stop_at_nan`` the run ends
        behind the first instruction that makes a NaN.
        """
        from meta.vm.inspect.debug import debug

        inputs = self.convention.flatten(*args, **kwargs)
        return debug(self.program, self.own_arguments(inputs), stop_at_nan)

    def explain(self) -> ProgramExplanation:
        """Say which dialect runs each instruction, and why not the others; and whether the program
        runs as CUDA graphs.
        """
        from meta.vm.inspect.explain import explain_program

        return explain_program(self)

    def show(
        self, path: str | os.PathLike[str] | None = None, *, profile: Profile | None = None
    ) -> Path:
        """Write a page of HTML about the program, without files beside it; return its path.

        It has the graph; the program before and after each pass, with what changed; the kernels,
        who runs each and why, and with ``profile`` (of `profile`) for how long; memory over time;
        sizes and types. Of a program that was loaded the passes are not kept. Without ``path``, it
        is a new file in the folder for temporary files.

        Raises ArgumentError for a profile of another program, FileError where it cannot be written.
        """
        from meta.vm.inspect.html_report import write_page

        return write_page(self, path, profile)

    def _repr_html_(self) -> str:
        from meta.vm.inspect.summary import notebook_html

        return notebook_html(self)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the program to a folder: code, constants, parameters and compiled kernels.

        `meta.vm.load` reads it in any process, with the programs of `sizes`. The folder is made, or
        replaced if it was saved to before: nobody sees half of a program. Raises ArgumentError for
        a folder of other things, for a Python argument of the model that is no literal, and for
        parameters that share memory to which the program writes.
        """
        save(self, folder)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        name: str = "meta_model",
        sources: str | os.PathLike[str] | None = None,
    ) -> tuple[Path, Path]:
        """Write the program as a shared library for C, free of Python and PyTorch, and its header
        beside it; return both paths.

        The library has the weights as they are, and what is computed of them alone. What runs on
        libraries that are not linked, such as PyTorch's, is compiled once more with generated
        kernels: results may differ in the last digits. It needs a C compiler (META_CC), and runs on
        x86-64 processors that have the instructions of this one (or of META_CPU_TARGET).

        Parameters
        ----------
        path: of the library, such as ``model.so``; the header is ``model.h``.
        name: with which the functions begin, for programs that are linked with several models.
        sources: a folder that keeps what the library is made of: C, objects, weights.

        Raises ArgumentError, with a line for each call, for what has no kernel without Python, for
        control flow, and for programs that write to weights; DeviceError for a program of another
        device; BackendError if the compiler fails; FileError where it cannot be written.
        docs/howto/c_library.md has an example, and what can be exported.
        """
        # Only now: `import meta` is to be quick.
        from meta.vm.export.library import export

        return export(self, path, name=name, sources=sources)

    def __repr__(self) -> str:
        count = sum(self.kernels().values())
        graph = ", CUDA graphs" if self.cuda_graph else ""
        return (
            f"<executable on {self.device}: {count} kernels, arena {self.arena_bytes} bytes{graph}>"
        )


def load(
    folder: str | os.PathLike[str],
    *,
    rebuild: bool = False,
    cuda_graph: bool | None = None,
    mmap: bool = False,
) -> Executable:
    """Return the executable that `Executable.save` wrote to a folder.

    It is called as the model was, and owns its parameters (``exe.arrays``). A compiler runs only
    if the kernels were compiled by another version of it or for another processor, or with
    ``rebuild``: then nothing in the folder is run as code. Without, loading runs the kernels' code:
    load folders of people whom you trust. ``cuda_graph`` is as for `compile`.

    With ``mmap`` (on the CPU) the parameters are those of the mapped file: they are read when they
    are first used, and processes that load the folder share their pages. What a process writes to
    them is its own. Do not write to the file meanwhile; saving to the folder makes another one.

    Raises FormatError, naming the file, for a folder that is damaged, incomplete or edited, for
    kernels that others may have written, and if a compiler would have to run that is not installed;
    DeviceError if the device that it was compiled for is not there.

    >>> from tempfile import TemporaryDirectory
    >>> with meta.dialect.only("torch"), TemporaryDirectory() as folder:
    ...     meta.vm.compile(meta.model.Linear(3, 2), meta.ones((4, 3))).save(f"{folder}/net")
    ...     meta.vm.load(f"{folder}/net")(meta.ones((4, 3))).shape
    (4, 2)
    """
    with gc_paused(), timed("loaded %s", folder):
        saved = read_executable(Path(folder), rebuild=rebuild, mmap=mmap)
        return Executable(
            saved.program,
            saved.arrays,
            saved.convention,
            cuda_graph=cuda_graph,
            prepared=saved.prepared,
            sized=saved.sized,
        )
