"""``python -m meta compile`` and ``profile`` (of a model or a program, named with the types of its
arguments, a level and a device), and ``traces``: one trace of those of several ranks.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import meta
from meta.base.device import Device, require
from meta.base.dtype import is_float
from meta.base.errors import ArgumentError, FormatError, UnknownName
from meta.base.files import read_file, require_file
from meta.base.registry import nearest
from meta.cli.shared_arguments import TARGET
from meta.cli.table import columns, section, show
from meta.ir import Module, TensorType, parse, parse_type
from meta.vm import Executable, merge_traces
from meta.vm.modules import CompiledModule
from meta.vm.modules.module import legal_name


def compile_target(options: argparse.Namespace) -> tuple[Executable, list[TensorType]]:
    """Return the compiled target and the types of its arguments; errors as of `module`."""
    found, types = module(options)
    return found.executable, types


def module(
    options: argparse.Namespace, workdir: str | None = None
) -> tuple[CompiledModule, list[TensorType]]:
    """Return the target as a compiled module, which is saved to ``workdir``, and the types of its
    arguments.

    Raises ArgumentError or UnknownName for a target that is not there, and what
    `meta.compile_model` raises.
    """
    device = require(options.device)
    target = load(options.target)
    types = [tensor_type(text) for text in options.input]
    name = None
    given: Sequence[TensorType] = types
    if isinstance(target, Module):
        if types:
            raise ArgumentError("program text says itself what it takes", hint="leave --input out")
        types = [p.type for p in target.main.params if isinstance(p.type, TensorType)]
        name = legal_name(Path(options.target).stem)
    if isinstance(target, meta.Model):
        target.to(device=device)
        if options.freeze or getattr(options, "onnx", None):
            target.eval()
    made = meta.compile_model(
        target,
        *given,
        target=device,
        workdir=workdir,
        name=name,
        opt_level=options.opt_level,
        freeze=options.freeze,
    )
    return made, types


def load(target: str) -> Any:
    """Return the module of a file of program text, or what a name stands for.

    Importing the user's module runs its code.
    """
    where, colon, name = target.rpartition(":")
    if not colon and Path(target).suffix == ".meta":
        return parse(_program_text(target), file=target)
    is_dotted = all(part.isidentifier() for part in where.split("."))
    if not (where.endswith(".py") or is_dotted) or not name.isidentifier():
        raise ArgumentError("this names nothing to compile", expected=TARGET, found=repr(target))
    module = _file(where) if where.endswith(".py") else _module(where)
    if not hasattr(module, name):
        raise UnknownName(f"{where} has no {name!r}", hint=nearest(name, vars(module)))
    found = getattr(module, name)
    return found() if isinstance(found, type) and issubclass(found, meta.Model) else found


def _program_text(path: str) -> str:
    try:
        return read_file(path).decode()
    except UnicodeDecodeError as error:
        raise FormatError("program text is UTF-8", found=f"{path}: {error}") from None


def _file(path: str) -> ModuleType:
    """Run a file as a module; OSError if it is not there."""
    require_file(path)
    spec = importlib.util.spec_from_file_location("__meta_target__", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # one that the user's module asks for
        raise ArgumentError(
            f"there is no module {name!r}", hint="a file is named with its ending: model.py:Name"
        ) from None


def tensor_type(text: str) -> TensorType:
    """Return the type that a text names; ArgumentError for one that is no tensor's."""
    type_ = parse_type(text)
    if not isinstance(type_, TensorType):
        raise ArgumentError("an input is a tensor", expected="float32[2, 3]", found=text)
    return type_


def random_arguments(types: Sequence[TensorType], device: Device) -> list[meta.ndarray]:
    """Return arguments of these types: normally distributed floats, and zeros of other dtypes,
    which index anything. TypeInferError for an extent that is not known.
    """
    made = []
    for type_ in types:
        values = torch.zeros(type_.static_shape)
        if is_float(type_.dtype):
            values.normal_(generator=torch.Generator().manual_seed(0))
        made.append(meta.array(values, type_.dtype, device=device))
    return made


def run_compile(options: argparse.Namespace) -> int:
    """Print the record."""
    made, types = module(options, options.workdir)
    executable = made.executable
    if options.output:
        executable.save(options.output)
    if options.onnx:
        meta.to_onnx(executable, options.onnx)
    if options.export:
        executable.export(options.export)
    if options.html:
        executable.show(options.html)
    found = {"target": options.target, "inputs": list(map(str, types)), **record(executable)}
    show(options, found, text)
    return 0


def record(executable: Executable) -> dict[str, Any]:
    """Return what is known of a compiled program, as values that JSON has."""
    memory = executable.memory()
    return {
        "device": str(executable.device),
        "cuda_graph": str(executable.cuda_graph),
        "passes": [{"name": r.name, "seconds": r.seconds} for r in executable.passes()[1:]],
        "kernels": executable.kernels(),
        "arena_bytes": executable.arena_bytes,
        "peak_bytes": memory.peak,
        "workspace_bytes": memory.workspaces,
        "instructions": executable.explain().records(),
    }


def text(found: dict[str, Any]) -> str:
    """Return the record for a terminal."""
    title = f"{found['target']}({', '.join(found['inputs'])}) on {found['device']}"
    passes = [[p["name"], f"{p['seconds'] * 1e3:8.2f} ms"] for p in found["passes"]]
    instructions = [
        [i["instruction"], ".".join(filter(None, (i["dialect"], i["operator"]))), i["line"] or ""]
        for i in found["instructions"]
    ]
    lines = [title, *section("passes", passes), *section("instructions", instructions)]
    graph = [] if found["device"] == "cpu" else [found["cuda_graph"]]
    memory = (
        f"memory for intermediates: {found['arena_bytes']} bytes, with what is allocated beside "
        f"{found['peak_bytes']}; a kernel takes up to {found['workspace_bytes']} more"
    )
    return "\n".join([*lines, "", *graph, memory])


def run_profile(options: argparse.Namespace) -> int:
    """Print the measurements."""
    executable, types = compile_target(options)
    found = executable.profile(*random_arguments(types, executable.device), repeat=options.repeat)
    if options.trace:
        found.chrome_trace(options.trace)
    if options.html:
        executable.show(options.html, profile=found)
    record = {
        "target": options.target,
        "inputs": list(map(str, types)),
        "device": str(executable.device),
        "repeat": found.repeat,
        "seconds": found.seconds,
        "instructions": found.records(),
    }
    show(options, record, lambda _: found.table(top=None))
    return 0


def run_traces(options: argparse.Namespace) -> int:
    """Merge the files, and print how far the clocks of ranks were apart."""
    shifts = merge_traces(options.traces, options.output)
    ranks = [{"rank": rank, "microseconds": shift} for rank, shift in shifts.items()]
    show(options, {"output": options.output, "ranks": ranks}, _traces_text)
    return 0


def _traces_text(record: dict[str, Any]) -> str:
    rows = [(f"rank {r['rank']}", f"{r['microseconds']:+.1f} us") for r in record["ranks"]]
    return "\n".join([f"{record['output']}: {len(rows)} ranks, clocks moved by", *columns(rows)])
