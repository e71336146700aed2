"""`compile_model` and `load_module`: where compiled modules come from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meta.base.errors import ArgumentError
from meta.op.core.tracing import Value
from meta.vm.compilation import compile, to_program
from meta.vm.compiler.pipeline import PassContext
from meta.vm.modules.constants import constants_of
from meta.vm.modules.module import CompiledModule

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)


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
    opt_level, dims, memory_budget, cuda_graph, tune: as for `meta.vm.compile`.

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
    """
    from meta.vm.modules.workdir import read_module

    executable, constants, name = read_module(Path(folder), rebuild, cuda_graph)
    return CompiledModule(executable, constants, name, Path(folder).resolve())
