"""A compiled program as a folder: what `Executable.save` writes and the program cache keeps.

::

    manifest.json          versions, device, hashes of the other files, one record per kernel
    code.json              the instructions (`code_json`)
    program.txt            the program that they were emitted from (`meta.ir.text`)
    fused.txt              those of its functions whose kernels are made when it is loaded; its main
                           computes what is prepared, if anything is
    constants.safetensors  constants of all
    kernels/<sha256>.so    compiled kernels, named after their content

Everything is checked against the manifest before it is used, and the manifest against its own
checksum: a truncated or edited file raises FormatError. The hashes find accidents. They are no
signature: loading a kernel runs its code, so load folders from people whom you trust.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from meta.base.atomic_folder import is_replaceable, replacing_folder
from meta.base.device import Device, require
from meta.base.errors import ArgumentError, FormatError, IRError
from meta.base.files import checksum, read_file, sha256
from meta.dialect.core import OpEnv, compile_together
from meta.dialect.core.catalog import DIALECTS
from meta.ir import Function, Module, TensorType, TupleType, parse, text, verify
from meta.passes.call_graph import preparation_of
from meta.runtime.ndarray import ndarray
from meta.runtime.out_of_memory import copy_to_device
from meta.runtime.tensor_file import read_tensors, write_tensors
from meta.vm.compiler.calling_convention import (
    Convention,
    convention_from_json,
    convention_to_json,
)
from meta.vm.compiler.code import Code, FusedRef
from meta.vm.compiler.code_analysis import summaries
from meta.vm.compiler.kernels import BoundProgram, artifact_records, bind_kernels, restored
from meta.vm.run.compiled_program import CompiledProgram
from meta.vm.save.code_json import code_from_json, code_to_json, constant_name

SCHEMA, VERSION = "meta.executable", 3
MANIFEST, CODE, PROGRAM, FUSED = "manifest.json", "code.json", "program.txt", "fused.txt"
CONSTANTS, KERNELS = "constants.safetensors", "kernels"
MAX_MANIFEST_BYTES = 64 << 20
"""Larger manifests are not ours."""
_FIELDS = ("schema", "version", "written_by", "device", "environments", "kernels", "files", "more")
_KINDS = {"device": str, "environments": dict, "kernels": list, "files": dict}


def write_folder(
    folder: Path,
    program: BoundProgram,
    *,
    more: Any = None,
    files: Mapping[str, Callable[[Path], None]] | None = None,
    place: Callable[[Path, Path], Any] = shutil.copyfile,
) -> None:
    """Write a program to ``folder``, which appears complete or not at all; an older one goes.

    ``more``: plain data for the manifest. ``files``: further files by name, and what writes each.
    ``place`` puts a kernel's file to its place: a copy, or a link. Whom the umask lets read the
    folder may read it; only its owner may write to it, since it is run. Raises FileError where it
    cannot be written; then nothing of it is left, and an older folder is as it was.
    """
    code, kernels, device, module = program.code, program.kernels, program.device, program.module()
    files = files or {}
    with replacing_folder(folder) as part:
        constants = {
            constant_name(i): c for i, c in enumerate(code.constants) if isinstance(c, torch.Tensor)
        }
        (part / PROGRAM).write_text(text(module, constants), encoding="utf-8")
        fused = text(_without_artifact(module, code, kernels), constants)
        (part / FUSED).write_text(fused, encoding="utf-8")
        (part / CODE).write_text(json.dumps(code_to_json(code)), encoding="utf-8")
        write_tensors(part / CONSTANTS, constants)
        for name, write in files.items():
            write(part / name)
        (part / KERNELS).mkdir(mode=0o700)
        for file in {k.artifact.file for k in kernels if k.artifact is not None}:
            place(file, part / KERNELS / file.name)
        manifest = {
            "schema": SCHEMA,
            "version": VERSION,
            "written_by": {"torch": version("torch")},
            "device": str(device),
            "environments": _environments(code, kernels, device),
            "kernels": artifact_records(kernels),
            "files": {
                name: _hash(part / name) for name in (CODE, PROGRAM, FUSED, CONSTANTS, *files)
            },
            "more": more,
        }
        (part / MANIFEST).write_text(
            json.dumps({**manifest, "checksum": checksum(manifest)}, indent=1), encoding="utf-8"
        )
        _open_to_readers(part)


def _without_artifact(module: Module, code: Code, kernels: Sequence[OpEnv]) -> Module:
    """Return the fused functions whose kernels are not kept, and the preparation as main."""
    names = [
        ref.function
        for ref, env in zip(code.kernels, kernels, strict=True)
        if isinstance(ref, FusedRef) and env.artifact is None
    ]
    found = {name: module.functions[name] for name in names}
    preparation = preparation_of(module)
    return module.with_functions(found if preparation is None else {**found, "main": preparation})


def _open_to_readers(folder: Path) -> None:
    """Let those read a folder that is private so far who may read a new file in it."""
    readers = (folder / MANIFEST).stat().st_mode & 0o444
    for path in (folder / KERNELS).iterdir():
        if path.stat().st_nlink == 1:  # a link has the mode of what it is a link to
            path.chmod(0o600 | readers)
    for path in (folder / KERNELS, folder):
        path.chmod(0o700 | readers | readers >> 2)


def read_folder(folder: Path, *, rebuild: bool = False) -> tuple[BoundProgram, Any]:
    """Return what `write_folder` wrote: the program, and ``more``.

    Kernels are loaded from the folder if they were compiled by the same version of their compiler
    for the same kind of processor; else, and with ``rebuild``, they are compiled once more from the
    program. Raises FormatError for a folder that is not in good order, DeviceError if its device is
    not there.
    """
    manifest = read_manifest(folder)
    device = require(manifest["device"])
    tensors = read_tensors(folder / CONSTANTS)
    # Read now: the folder may be another program's, or gone, when somebody asks for the module.
    program = _text(folder / PROGRAM)
    try:
        document = json.loads(_text(folder / CODE))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{folder / CODE} is no JSON: {error}") from None
    # Copied out of the mapped file: aligned as torch's own memory is, and safe from later edits.
    on_device = {name: copy_to_device(tensor, device) for name, tensor in tensors.items()}
    code = code_from_json(document, on_device)  # the module's are the same tensors

    @cache
    def module() -> Module:
        return _module(program, PROGRAM, on_device)

    records = manifest["kernels"]
    if len(records) != len(code.kernels) or not all(r is None or type(r) is dict for r in records):
        raise FormatError(
            "the manifest does not fit the code", expected=f"{len(code.kernels)} kernels"
        )
    found = {} if rebuild else _restored(folder, code, manifest, device)
    missing = [i for i in range(len(code.kernels)) if i not in found]
    compiled = any(records[i] is not None for i in missing)
    fused = _module(_text(folder / FUSED), FUSED, on_device)
    source = module() if compiled else fused
    refs = [code.kernels[i] for i in missing]
    for ref in refs:
        if isinstance(ref, FusedRef) and ref.function not in source.functions:
            raise FormatError(f"the program has no function {ref.function!r}")
    found.update(zip(missing, bind_kernels(refs, source.functions, device), strict=True))
    kernels = tuple(found[i] for i in range(len(code.kernels)))
    made = BoundProgram(code, kernels, device, module, _preparation(code, fused))
    return made, manifest["more"]


def _preparation(code: Code, fused: Module) -> Function | None:
    """Return what computes the parameters of the code that are prepared."""
    if not code.prepared:
        return None
    found = fused.functions.get("main")
    types = [type_ for _, type_ in code.params]
    if found is not None:
        result = TupleType(tuple(types[-code.prepared :]))
        arrays = types[: -code.prepared][-len(found.params) :]
        if found.result_type == result and [p.type for p in found.params] == arrays:
            return found
    raise FormatError("the program does not say how what is prepared is computed")


def _text(path: Path) -> str:
    try:
        return read_file(path).decode()
    except (OSError, UnicodeDecodeError) as error:  # the folder is being replaced, for one
        raise FormatError(f"{path} cannot be read", found=str(error)) from None


def _module(source: str, file: str, tensors: Mapping[str, torch.Tensor]) -> Module:
    try:
        found = parse(source, file, tensors)
    except IRError as error:
        raise FormatError(
            error.what, expected=error.expected, found=error.found, span=error.span
        ) from error
    verify(found, typed=True)
    return found


def _restored(
    folder: Path, code: Code, manifest: Mapping[str, Any], device: Device
) -> dict[int, OpEnv]:
    """Return the kernels that can be loaded, by number."""
    found: dict[int, OpEnv] = {}
    environments = manifest["environments"]
    for i, record in enumerate(manifest["kernels"]):
        if record is None:
            continue
        dialect = code.kernels[i].dialect
        if dialect not in DIALECTS or not DIALECTS[dialect].restorer:
            raise FormatError("the manifest does not fit the code", found=code.kernels[i].name)
        if environments.get(dialect) == DIALECTS[dialect].environment(device):
            found[i] = restored(code, i, record, folder / KERNELS, device)
    return found


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest after comparing all hashes; FormatError if one is not as it was."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(read_file(path, MAX_MANIFEST_BYTES))
    except FormatError:
        raise
    except OSError as error:
        raise FormatError(
            f"{folder} holds no compiled program",
            found=str(error),
            hint="write one with exe.save(folder)",
        ) from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is damaged: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise FormatError(f"{path} is no manifest of a compiled program", expected=SCHEMA)
    if manifest.get("version") != VERSION:
        raise FormatError(
            f"{folder} was written by another version of meta",
            expected=f"format {VERSION}",
            found=f"format {manifest.get('version')}",
            hint="convert it: compile the model and save it once more",
        )
    if manifest.pop("checksum", None) != checksum(manifest) or set(manifest) != set(_FIELDS):
        raise FormatError(f"{path} was changed after it was written")
    for name, kind in _KINDS.items():
        if not isinstance(manifest[name], kind):
            raise FormatError(f"{path} is damaged: {name}", found=type(manifest[name]).__name__)
    for name, expected in manifest["files"].items():
        if _hash(folder / name) != expected:
            raise FormatError(
                f"{folder / name} was changed after it was written, or is incomplete",
                hint="copy the folder once more, or compile and save the model again",
            )
    return manifest


def _hash(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise FormatError(f"{path} cannot be read", found=str(error)) from None


def _environments(code: Code, kernels: Sequence[OpEnv], device: Device) -> dict[str, str]:
    """Return, by dialect, where the compiled kernels run."""
    names = {
        ref.dialect
        for ref, env in zip(code.kernels, kernels, strict=True)
        if env.artifact is not None
    }
    return {name: DIALECTS[name].environment(device) for name in sorted(names)}


ARRAYS = "arrays.safetensors"
"""Parameters and running statistics, by their number among the executable's arrays."""


def read_executable(
    folder: Path, *, rebuild: bool
) -> tuple[BoundProgram, list[ndarray], Convention]:
    """Return what `save` wrote: the program, its arrays, and how it is called; see
    `meta.vm.load`.
    """
    program, more = read_folder(folder, rebuild=rebuild)
    convention = convention_from_json(more)
    tensors = read_tensors(folder / ARRAYS)
    with torch.inference_mode(False):  # else nothing would count what is written to them
        arrays = [
            ndarray(copy_to_device(tensors[str(i)], program.device))  # out of the mapped file
            for i in range(len(tensors))
            if str(i) in tensors
        ]
    last = len(program.code.params) - program.code.prepared
    params = program.code.params[max(last - len(arrays), 0) : last]
    if len(arrays) != len(tensors) or len(arrays) != len(params):
        raise FormatError(f"{folder / ARRAYS} does not hold the program's arrays")
    for array, (name, type_) in zip(arrays, params, strict=True):
        if TensorType(array.shape, array.dtype) != type_:
            found = f"{array.dtype}{list(array.shape)}"
            raise FormatError(f"the array of %{name} does not fit", expected=type_, found=found)
    return program, arrays, convention


def save(executable: CompiledProgram, folder: str | os.PathLike[str]) -> None:
    """Write an executable to a folder, which is made; see `Executable.save`."""
    target = Path(folder).resolve()
    if not is_replaceable(target, MANIFEST):
        raise ArgumentError(
            f"{target} holds something else than a compiled program",
            expected="a new folder, or one that was saved to before",
        )
    _check_sharing(executable)
    _check_kernels(executable)
    arrays = {str(i): array.tensor for i, array in enumerate(executable.arrays)}
    write_folder(
        target,
        executable.program,
        more=convention_to_json(executable.convention),
        files={ARRAYS: lambda path: write_tensors(path, arrays)},
    )


def _check_kernels(executable: CompiledProgram) -> None:
    """Compile again what the cache lost; ArgumentError for a kernel whose file is gone."""
    compile_together(executable.envs)
    for env in executable.envs:
        if env.artifact is not None and not env.artifact.file.is_file():
            raise ArgumentError(
                "a compiled kernel of this program is no longer on disk",
                expected=env.artifact.file,
                hint="compile the program again; one that was loaded is saved before its folder is "
                "removed",
            )


def _check_sharing(executable: CompiledProgram) -> None:
    """Raise ArgumentError for memory of several arrays that is written: each is saved by itself."""
    first = len(executable.code.params) - executable.code.prepared - len(executable.arrays)
    places: dict[int, list[int]] = {}
    for i, array in enumerate(executable.arrays):
        if array.size:
            places.setdefault(array.tensor.untyped_storage().data_ptr(), []).append(first + i)
    written = summaries(executable.code)[executable.code.entry].written
    for shared in places.values():
        if len(shared) > 1 and not written.isdisjoint(shared):
            names = ", ".join(f"%{executable.code.params[i][0]}" for i in shared)
            raise ArgumentError(
                "arrays that share memory cannot be saved with a program that writes to them",
                found=names,
                hint="make them one array of the model, or copies",
            )
