"""A compiled module as a folder, for `load_module` and for people::

    index.html             a page: the graph, what the passes did, kernels, memory
    meta-module.json       the module's name, and which array each constant is
    program/               the saved program (`vm/save/folder.py`); `meta.vm.load` reads it, too
    passes.json            the passes: how long each took, and which program it made
    passes/00-input.txt    the program as it was traced, and after each pass that changed it; a
    passes/00-input.json   variable has the same name in all. The JSON has the same as plain data
    kernels.json           the kernels in the order of the code: who runs each, its arguments, and
                           the files with its source
    kernels/               sources: TVM's script, CUDA, or the program of a fused function

Only ``program`` and ``meta-module.json`` are read again. Of a program that was loaded, neither the
passes nor the sources are known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meta.base.atomic_folder import is_replaceable, replacing_folder
from meta.base.errors import ArgumentError, FormatError, IRError
from meta.base.files import checksum, read_file
from meta.dialect.core import OpEnv
from meta.ir import Function, TensorType, parse_type, text
from meta.ir.json_records import module_record
from meta.vm.compiler.code import FusedRef, Kernel
from meta.vm.executable import Executable, load
from meta.vm.inspect.html_report import page
from meta.vm.inspect.pass_changes import SteadyPrinter
from meta.vm.modules.buffers import Memory
from meta.vm.modules.constants import Constant, type_of_array

MARKER, PROGRAM, PAGE = "meta-module.json", "program", "index.html"
SCHEMA, VERSION = "meta.module", 1
MAX_MARKER_BYTES = 64 << 20
"""Larger files are not ours."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)


def write_module(
    folder: Path, executable: Executable, constants: Mapping[str, Constant], name: str
) -> Path:
    """Write a module to a folder, which is made or replaced as a whole; return its path."""
    target = folder.resolve()
    if not is_replaceable(target, MARKER):
        raise ArgumentError(
            f"{target} holds something else than a compiled module",
            expected="a new folder, or one that a module was saved to before",
        )
    _require_apart(executable, constants)
    with replacing_folder(target) as part:
        executable.save(part / PROGRAM)
        (part / MARKER).write_text(_marker(executable, constants, name), encoding="utf-8")
        _write_passes(part, executable)
        _write_kernels(part, executable)
        (part / PAGE).write_text(page(executable), encoding="utf-8")
        readers = (part / PAGE).stat().st_mode & 0o444
        part.chmod(0o700 | readers | readers >> 2)
    return target


def _require_apart(executable: Executable, constants: Mapping[str, Constant]) -> None:
    """Raise ArgumentError for constants that share memory: each is saved by itself, so that what
    is set of one would no longer be seen in the other.
    """
    names = {id(c.array): name for name, c in constants.items()}
    for i, array in enumerate(executable.arrays):
        if Memory(a.tensor for a in executable.arrays[:i]).meets(array.tensor):
            raise ArgumentError(
                "constants that share memory cannot be saved, as each is saved by itself",
                found=f"{names.get(id(array), 'an array')} shares memory with another one",
                hint="make them one array of the model, or copies",
            )


def _marker(executable: Executable, constants: Mapping[str, Constant], name: str) -> str:
    numbers = {id(a): i for i, a in enumerate(executable.arrays)}
    record = {
        "schema": SCHEMA,
        "version": VERSION,
        "name": name,
        "constants": {n: numbers[id(c.array)] for n, c in constants.items() if c.used},
        "unused": {n: str(c.type) for n, c in constants.items() if not c.used},
    }
    return json.dumps({**record, "checksum": checksum(record)}, indent=1)


def _write_passes(part: Path, executable: Executable) -> None:
    """Write a list of the passes, and the program after each that changed it."""
    folder = part / "passes"
    folder.mkdir()
    printer = SteadyPrinter()
    before: list[str] = []
    found: list[dict[str, Any]] = []
    for number, record in enumerate(executable.passes()):
        lines = printer.lines_of(record.module)
        changed = lines != before
        name = f"{number:02d}-{_UNSAFE.sub('_', record.name)}" if changed else found[-1]["program"]
        found.append(
            {
                "pass": record.name,
                "seconds": record.seconds,
                "changed": changed,
                "program": name,
                "lines": len(lines),
            }
        )
        if changed:
            (folder / f"{name}.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
            document = json.dumps(module_record(record.module, printer.names_of), indent=1)
            (folder / f"{name}.json").write_text(document, encoding="utf-8")
        before = lines
    (part / "passes.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def _write_kernels(part: Path, executable: Executable) -> None:
    """Write the sources of kernels, as far as they are known, and a list of all kernels."""
    folder = part / "kernels"
    folder.mkdir()
    functions = executable.module.functions
    found = []
    for number, (kernel, env) in enumerate(
        zip(executable.code.kernels, executable.envs, strict=True)
    ):
        files = {}
        for ending, source in _sources(kernel, env, functions).items():
            file = f"{number:03d}-{_UNSAFE.sub('_', kernel.name)[:80]}{ending}"
            files[file] = source
            (folder / file).write_text(source, encoding="utf-8")
        found.append(
            {
                "number": number,
                "dialect": kernel.dialect,
                "operator": kernel.base,
                "call": str(kernel),
                "sources": list(files),
                "compiled": None if env.artifact is None else env.artifact.file.name,
                "workspace_bytes": env.workspace_bytes,
            }
        )
    (part / "kernels.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def _sources(kernel: Kernel, env: OpEnv, functions: Mapping[str, Function]) -> dict[str, str]:
    """Return the source of a kernel by the ending of the name of its file."""
    found = dict(env.source_text())
    if isinstance(kernel, FusedRef) and kernel.function in functions:
        found[".txt"] = text(functions[kernel.function], {}) + "\n"
    return found


def read_module(
    folder: Path, rebuild: bool, cuda_graph: bool | None
) -> tuple[Executable, dict[str, Constant], str]:
    """Return the program, the constants and the name of the module in a folder; FormatError for one
    that is not in good order.
    """
    record = _read_marker(folder / MARKER)
    executable = load(folder / PROGRAM, rebuild=rebuild, cuda_graph=cuda_graph)
    constants = {n: _constant(n, i, executable) for n, i in record["constants"].items()}
    for name, type_ in record["unused"].items():
        constants[name] = Constant(_type(name, type_), None, used=False)
    return executable, constants, record["name"]


def _read_marker(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(read_file(path, MAX_MARKER_BYTES))
    except FormatError:
        raise
    except OSError as error:
        raise FormatError(
            f"{path.parent} holds no compiled module",
            found=str(error),
            hint="write one with meta.compile_model(..., workdir=folder) or module.save(folder); "
            "what executable.save wrote is read by meta.vm.load",
        ) from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is damaged: {error}") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise FormatError(f"{path} is not of a compiled module", expected=SCHEMA)
    if record.get("version") != VERSION:
        raise FormatError(
            f"{path.parent} was written by another version of meta",
            expected=f"format {VERSION}",
            found=f"format {record.get('version')}",
            hint="compile the model once more",
        )
    if record.pop("checksum", None) != checksum(record):
        raise FormatError(f"{path} was changed after it was written")
    match record:
        case {"name": str(), "constants": dict(), "unused": dict()}:
            return record
    raise FormatError(f"{path} is damaged")


def _constant(name: str, number: object, executable: Executable) -> Constant:
    if type(number) is not int or not 0 <= number < len(executable.arrays):
        raise FormatError(f"the program has no array for the constant {name!r}", found=number)
    array = executable.arrays[number]
    return Constant(type_of_array(array), array, used=True)


def _type(name: str, found: object) -> TensorType:
    try:
        type_ = parse_type(found) if isinstance(found, str) else None
    except IRError:
        type_ = None
    if not isinstance(type_, TensorType):
        raise FormatError(f"the constant {name!r} has no type", found=found)
    return type_
