"""`CompiledModule`: a compiled program that is run on tensors by name."""

from __future__ import annotations

import gc
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from meta.base.errors import ArgumentError
from meta.base.files import replacing
from meta.op.core.tracing import Value
from meta.vm.compilation import compile, to_program
from meta.vm.compiler.pipeline import PassContext
from meta.vm.executable import Executable
from meta.vm.inspect.profile import Profile
from meta.vm.modules.benchmark import Benchmark, benchmark
from meta.vm.modules.buffers import Buffers
from meta.vm.modules.constants import Constant, Constants, constants_of
from meta.vm.run.signature import signature_of

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)


class CompiledModule:
    """A compiled program that takes and returns tensors by name; `meta.compile_model` makes it.

    It is thin over an `Executable`, its attribute ``executable``, which has what is not here:
    ``explain``, ``memory``, ``show``, ``debug``. Calls from several threads run one after the
    other; each gets its own results, and a weight is never set in the middle of a run. The arrays
    are those of the model that was compiled: whoever sets a constant sets it in the model as well.
    A module that was loaded has arrays of its own.

    Attributes
    ----------
    name: of the module. folder: where `save` wrote it last, or where it was loaded from; None
    before.
    """

    def __init__(
        self,
        executable: Executable,
        constants: Mapping[str, Constant],
        name: str,
        folder: Path | None = None,
    ) -> None:
        self.name, self.folder = name, folder
        self._signature = signature_of(executable)
        self._executable: Executable | None = executable
        self._buffers: Buffers | None = Buffers(executable, self._signature)
        self._constants: Constants | None = Constants(executable, constants)
        self._lock = threading.Lock()

    @property
    def executable(self) -> Executable:
        """The compiled program. ArgumentError for a module that is closed."""
        found = self._executable
        if found is None:
            raise ArgumentError(
                f"the module {self.name!r} is closed",
                hint="compile or load it once more; close() released its program",
            )
        return found

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._executable is None

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in the order of a list of them."""
        return list(self._signature.inputs)

    @property
    def output_names(self) -> list[str]:
        """The names of the results, in the order of a list of buffers."""
        return list(self._signature.outputs)

    @property
    def constant_names(self) -> list[str]:
        """The names that `set_many_constants` takes and the program uses; of tied weights, all."""
        return [n for n, c in self._opened()[2].by_name.items() if c.used]

    def get_output_maximum_shape(self, output: str | int) -> tuple[int, ...]:
        """Return the largest shape that a result may have, by its name or number: a buffer of this
        shape serves every call.

        Raises UnknownName for a result that there is not, and ArgumentError where a dimension has
        no largest extent, or depends on values.
        """
        self._opened()
        return self._signature.maximum_shape(output)

    def run_with_tensors(self, inputs: object, outputs: object = None) -> dict[str, torch.Tensor]:
        """Run the program; return its results by name, each of its real shape.

        Parameters
        ----------
        inputs: a dict by name, or a list in the order of `input_names`. Each is a torch tensor, an
            array, or an exporter of DLPack, on the module's device; it need not be contiguous.
        outputs: buffers for the results, as a dict or a list like the inputs, or None: all results
            are allocated. A buffer is contiguous and may be larger than the result along dimensions
            that differ from call to call (see `get_output_maximum_shape`); the result is then a
            view of its beginning. None in the place of a buffer: this result is allocated.

        What a kernel fills, it fills in the buffer; other results are copied there. Where a run
        fails, buffers may hold anything.

        Raises ArgumentError, UnknownName or DeviceError, before anything runs, for an input or a
        buffer that does not fit: it names the input or output, the dimension, its range and the
        extent found. Buffers may not share memory with each other, with inputs, or with constants.
        A result whose shape depends on values is compared with its buffer after the run.
        """
        with self._lock:
            return self._run(inputs, outputs)

    def _run(self, inputs: object, outputs: object) -> dict[str, torch.Tensor]:
        executable, places, _ = self._opened()
        arrays, extents = self._signature.bound(inputs)
        buffers = places.of(outputs, arrays, extents)
        into = () if outputs is None else [b.place() for b in buffers]
        results = list(_tensors(executable.on_arrays(arrays, into)))
        if outputs is None:
            results = places.apart(results, arrays)
        return {b.name: b.fill(r) for b, r in zip(buffers, results, strict=True)}

    def _opened(self) -> tuple[Executable, Buffers, Constants]:
        executable, buffers, constants = self.executable, self._buffers, self._constants
        assert buffers is not None and constants is not None
        return executable, buffers, constants

    def benchmark_with_tensors(
        self,
        inputs: object,
        outputs: object = None,
        *,
        count: int = 10,
        repeat: int = 5,
        warmup: int = 2,
    ) -> Benchmark:
        """Call `run_with_tensors` ``warmup`` times, and then ``repeat`` times ``count`` times;
        return the mean time of a call, the spread of the repeats, and the memory.

        What the program writes in place (running statistics; an input) is as before when it is
        done. Raises what `run_with_tensors` raises, and ArgumentError for numbers of calls that
        make no sense.
        """
        with self._lock:
            executable, *_ = self._opened()
            with self._unchanged(inputs):
                return benchmark(
                    lambda: self._run(inputs, outputs),
                    executable.device,
                    executable.memory().peak,
                    count,
                    repeat,
                    warmup,
                )

    @contextmanager
    def _unchanged(self, inputs: object) -> Iterator[None]:
        """Set what the program writes back to what it was before a block."""
        executable, *_ = self._opened()
        arrays, _extents = self._signature.bound(inputs)
        given = [*arrays, *executable.arrays]
        written = [given[i] for i in sorted(executable.written) if i < len(given)]
        before = [a.tensor.detach().clone() for a in written]
        try:
            yield
        finally:
            with executable.between_runs(), torch.no_grad():
                for array, values in zip(written, before, strict=True):
                    array.tensor.copy_(values)

    def profile(
        self,
        inputs: object,
        *,
        path: str | os.PathLike[str] | None = None,
        repeat: int = 10,
        warmup: int = 2,
    ) -> Profile:
        """Measure each instruction of the program on these inputs; return the times.

        path: a JSON file to write them to: the device, the seconds of all kernels, and a record for
        each instruction with its operator, dialect, seconds, share and bytes. It is written all or
        nothing; FileError where it cannot be. What the program writes in place, it writes to
        copies.
        """
        with self._lock:
            executable, *_ = self._opened()
            arrays, _extents = self._signature.bound(inputs)
            found = executable.profile_arrays(arrays, repeat, warmup)
        if path is not None:
            record = {
                "module": self.name,
                "device": str(found.device),
                "repeat": found.repeat,
                "seconds": found.seconds,
                "instructions": found.records(),
            }
            with replacing(path) as part:
                part.write_text(json.dumps(record, indent=1), encoding="utf-8")
        return found

    def set_constant_with_tensor(self, name: str, tensor: object) -> None:
        """Set one weight; see `set_many_constants`."""
        self.set_many_constants({name: tensor})

    def set_many_constants(self, constants: Mapping[str, object]) -> None:
        """Set weights by name, all or none; nothing is compiled.

        The values are copied to the arrays of the module, on its device, and count from the next
        run on. What the program keeps that is computed of them is computed again before that run.
        A constant has the shape and dtype that it has in the model, also where the program computes
        in another dtype. A weight under several names (tied weights) is set by any of them; where
        several are given, their values must be equal. Names of the model that the program does not
        use are checked as the others are.

        Raises UnknownName for a name that there is not; ArgumentError, which lists all that does
        not fit, for another shape or dtype, and for an array that cannot be written; OutOfMemory.
        Then no constant was set.
        """
        with self._lock:
            self._opened()[2].set(constants)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the module to a folder, for `meta.load_module` and for people; return its path.

        The folder has the program with its weights as they are (``program/``), the program after
        each pass (``passes/``, as text and JSON), the sources of kernels (``kernels/``), and a page
        (``index.html``). It appears complete or not at all, and replaces a module that was written
        there before. Raises ArgumentError for a folder of other things and for what
        `Executable.save` refuses, FileError where it cannot be written.
        """
        # Only now: `import meta` is to be quick.
        from meta.vm.modules.workdir import write_module

        with self._lock:
            executable, _, constants = self._opened()
            self.folder = write_module(Path(folder), executable, constants.by_name, self.name)
        return self.folder

    def close(self) -> None:
        """Release the program and its memory, after a run that is under way; any later use is an
        ArgumentError. It may be called again. The arrays of a model stay with the model.
        """
        with self._lock:
            circles = self._executable is not None and bool(self._executable.cuda_graph)
            self._executable = self._buffers = self._constants = None
        if circles:
            gc.collect()  # recorded graphs, and the memory in them, refer to one another

    def __enter__(self) -> CompiledModule:
        self._opened()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise ArgumentError(
            "a compiled module is not pickled or copied: it has kernels and memory of this process",
            hint="module.save(folder) and meta.load_module(folder)",
        )

    def __repr__(self) -> str:
        inputs = ", ".join(f"{n}: {t}" for n, t in self._signature.inputs.items())
        results = ", ".join(f"{n}: {t}" for n, t in self._signature.outputs.items())
        state = " closed" if self.closed else ""
        return f"<module {self.name} on {self._signature.device}: ({inputs}) -> {results}{state}>"


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    """Iterate over the tensors of a result, nested tuples taken apart."""
    if isinstance(result, tuple):
        for part in result:
            yield from _tensors(part)
    else:
        yield result.tensor


def compile_model(
    model: Any,
    *args: Any,
    target: object = None,
    workdir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    opt_level: int | None = None,
    dims: Mapping[str, tuple[int, int | None]] | None = None,
    memory_budget: int | None = None,
    cuda_graph: bool | None = None,
    tune: float | None = None,
    freeze: bool = False,
    **kwargs: Any,
) -> CompiledModule:
    """Compile a model to a module that is run on tensors by name; see `CompiledModule`.

    Parameters
    ----------
    model, args, kwargs: as for `meta.vm.compile`: a `meta.Model`, a traced function or an
        `ir.Module`, and example arguments or types (``meta.ir.parse_type("float32[n, 8]")``).
        Inputs are named after the parameters, results after the keys of the dict that is returned
        (else ``output``, or ``output_0``, ...), constants after the model's arrays.
    target: the device to run on; by default where the arguments and parameters are.
    workdir: a folder for modules: this one is saved to ``workdir/name``, see
        `CompiledModule.save`. None: nothing is written.
    name: of the module: letters, digits, "_", "-" and ".", as it is the name of a folder. By
        default that of the model's class or of the function.
    opt_level, dims, memory_budget, cuda_graph, tune, freeze: as for `meta.vm.compile`; weights that
        are set by name are packed anew.

    There are no output tensors of a graph to compile, as in AITemplate: symbols live while a
    function is traced. Compile the function that computes them.

    Raises what `meta.vm.compile` raises, ArgumentError for a name that is none, and what
    `CompiledModule.save` raises.

    >>> import meta
    >>> net = meta.model.Linear(3, 2).eval()
    >>> with meta.compile_model(net, meta.ir.parse_type("float32[n, 3]"), dims={"n": (1, 8)}) as m:
    ...     print(m.input_names, m.output_names, m.get_output_maximum_shape("output"))
    ...     print(tuple(m.run_with_tensors({"x": meta.ones((5, 3))})["output"].shape))
    ['x'] ['output'] (8, 2)
    (5, 2)
    """
    if isinstance(model, Value) or _are_values(model):
        raise ArgumentError(
            "values of a trace are not compiled",
            expected="a meta.Model, a function decorated with meta.model.trace, or an ir.Module",
            found=repr(model),
            hint="compile the function that computes them; its parameters are the inputs",
        )
    own = legal_name(getattr(model, "__name__", type(model).__name__)) if name is None else name
    if not _NAME.fullmatch(own):
        raise ArgumentError(
            "this is no name of a module, which is the name of a folder as well",
            expected='up to 100 letters, digits, "_", "-" and ".", the first no "." or "-"',
            found=repr(own),
            hint="name=",
        )
    with PassContext(opt_level=opt_level):
        program = to_program(model, args, kwargs)
    executable = compile(
        program,
        *args,
        device=target,
        opt_level=opt_level,
        dims=dims,
        memory_budget=memory_budget,
        cuda_graph=cuda_graph,
        tune=tune,
        freeze=freeze,
        **kwargs,
    )
    module = CompiledModule(executable, constants_of(model, program), own)
    if workdir is not None:
        module.save(Path(workdir) / own)
    return module


def _are_values(model: object) -> bool:
    return isinstance(model, list | tuple) and any(isinstance(v, Value) for v in model)


def legal_name(text: str) -> str:
    """Return a name for a module that is close to a text."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", text, flags=re.ASCII).strip("_")[:100] or "module"


def load_module(
    folder: str | os.PathLike[str], *, rebuild: bool = False, cuda_graph: bool | None = None
) -> CompiledModule:
    """Return the module that `compile_model` with a ``workdir``, or `CompiledModule.save`, wrote.

    It needs neither the model's source nor a compiler; ``rebuild`` and ``cuda_graph`` are as for
    `meta.vm.load`. It has weights of its own. Raises FormatError, naming the file, for a folder
    that is no module in good order, and what `meta.vm.load` raises.

    >>> from tempfile import TemporaryDirectory
    >>> net, x = meta.model.Linear(3, 2), meta.ones((4, 3))
    >>> with meta.dialect.only("torch"), TemporaryDirectory() as folder:
    ...     meta.compile_model(net, x, workdir=folder, name="net").close()
    ...     with meta.load_module(f"{folder}/net") as module:
    ...         module.input_names, module.run_with_tensors({"x": x})["output"].shape
    (['x'], torch.Size([4, 2]))
    """
    from meta.vm.modules.workdir import read_module

    executable, constants, name = read_module(Path(folder), rebuild, cuda_graph)
    return CompiledModule(executable, constants, name, Path(folder).resolve())
