"""A compiled program as a folder: what `Executable.save` writes and the program cache keeps.

::

    manifest.json          versions, device, hashes of the other files, one record per kernel
    code.json              the instructions (`code_json`)
    program.txt            the program that they were emitted from (`meta.ir.text`)
    fused.txt              those of its functions whose kernels are made when it is loaded
    preparation.txt        what computes what is prepared of the arrays, if anything is
    prepared.safetensors   what that makes of the arrays as they were saved
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
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from meta.base.atomic_folder import is_replaceable, replacing_folder
from meta.base.device import Device, require
from meta.base.dtype import FROM_TORCH
from meta.base.errors import ArgumentError, FormatError, IRError
from meta.base.files import checksum, read_file, sha256
from meta.base.log import LOG
from meta.dialect.core import KERNEL, OpEnv, compile_together
from meta.dialect.core.catalog import DIALECTS
from meta.ir import Function, Module, TensorType, TupleType, parse, text, verify
from meta.runtime.ndarray import ndarray
from meta.runtime.out_of_memory import copy_to_device
from meta.runtime.tensor_file import read_tensors, write_tensors
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.calling_convention import (
    Convention,
    convention_from_json,
    convention_to_json,
)
from meta.vm.compiler.code import Code, FusedRef
from meta.vm.compiler.code_analysis import summaries
from meta.vm.compiler.kernels import (
    BoundProgram,
    adapt_results,
    artifact_records,
    bind_kernels,
    restored,
)
from meta.vm.run.compiled_program import CompiledProgram
from meta.vm.save.code_json import code_from_json, code_to_json, constant_name

SCHEMA, VERSION = "meta.executable", 4
MANIFEST, CODE, PROGRAM, FUSED = "manifest.json", "code.json", "program.txt", "fused.txt"
PREPARATION = "preparation.txt"
CONSTANTS, KERNELS = "constants.safetensors", "kernels"
MAX_MANIFEST_BYTES = 64 << 20
"""Larger manifests are not ours."""
_FIELDS = (
    *("schema", "version", "written_by", "device", "environments", "families", "kernels"),
    *("files", "more"),
)
_KINDS = {"device": str, "environments": dict, "families": dict, "kernels": list, "files": dict}


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
        for name, own in (
            (FUSED, _without_artifact(module, code, kernels)),
            (PREPARATION, _preparation_of(module)),
        ):
            (part / name).write_text(text(own, constants), encoding="utf-8")
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
            "families": _families(code, kernels, module),
            "kernels": artifact_records(kernels),
            "files": {
                name: _hash(part / name)
                for name in (CODE, PROGRAM, FUSED, PREPARATION, CONSTANTS, *files)
            },
            "more": more,
        }
        (part / MANIFEST).write_text(
            json.dumps({**manifest, "checksum": checksum(manifest)}, indent=1), encoding="utf-8"
        )
        _open_to_readers(part)


def _without_artifact(module: Module, code: Code, kernels: Sequence[OpEnv]) -> Module:
    """Return the fused functions whose kernels are not kept."""
    names = [
        ref.function
        for ref, env in zip(code.kernels, kernels, strict=True)
        if isinstance(ref, FusedRef) and env.artifact is None
    ]
    return module.with_functions({name: module.functions[name] for name in names})


def _preparation_of(module: Module) -> Module:
    """Return the preparation as main, if there is one."""
    from meta.passes.call_graph import preparation_of

    found = preparation_of(module)
    return module.with_functions({} if found is None else {"main": found})


def _families(code: Code, kernels: Sequence[OpEnv], module: Module) -> dict[str, list[str]]:
    """Return, by dialect, the families of the kernels that are made when the program is loaded:
    those files of the dialect are enough.
    """
    found: dict[str, set[str]] = {}
    for ref, env in zip(code.kernels, kernels, strict=True):
        dialect = DIALECTS.get(ref.dialect)
        if dialect is None or env.artifact is not None:
            continue
        if isinstance(ref, FusedRef):
            made: Any = dialect.patterns.get(module.functions[ref.function].attrs.get(KERNEL))
        else:
            made = dialect.ops.get(ref.base)
        family = None if made is None else dialect.family_of(made.site)
        found.setdefault(dialect.name, set()).update([family] if family else [])
    return {name: sorted(families) for name, families in sorted(found.items())}


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
    for name, families in manifest["families"].items():
        for family in map(str, families if name in DIALECTS else ()):
            DIALECTS[name].load_family(family)
    fused, prepares = _text(folder / FUSED), _text(folder / PREPARATION)
    refs = [code.kernels[i] for i in missing]
    functions: Mapping[str, Function] = {}
    if any(isinstance(ref, FusedRef) for ref in refs):
        functions = (module() if compiled else _module(fused, FUSED, on_device)).functions
    for ref in refs:
        if isinstance(ref, FusedRef) and ref.function not in functions:
            raise FormatError(f"the program has no function {ref.function!r}")
    instructions = [i for f in code.functions.values() for i in f.instructions()]
    calls = {i.kernel: i for i in instructions if isinstance(i, bc.Invoke)}
    for i, ref, env in zip(missing, refs, bind_kernels(refs, functions, device), strict=True):
        called = i in calls and (isinstance(ref, FusedRef) or ref.is_static)
        found[i] = adapt_results(env, ref, calls[i], functions, device) if called else env
    kernels = tuple(found[i] for i in range(len(code.kernels)))
    preparation = None
    if code.prepared:
        preparation = partial(_preparation, code, prepares, on_device)
    return BoundProgram(code, kernels, device, module, preparation), manifest["more"]


def _preparation(code: Code, source: str, tensors: Mapping[str, torch.Tensor]) -> Function:
    """Return what computes the parameters of the code that are prepared."""
    found = _module(source, PREPARATION, tensors).functions.get("main")
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
        here = DIALECTS[dialect].environment(device)
        if environments.get(dialect) != here:
            LOG.info("%s is compiled anew: it was for %s", folder, environments.get(dialect))
        else:
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


ARRAYS, PREPARED = "arrays.safetensors", "prepared.safetensors"
"""Parameters and running statistics, by their number among the executable's arrays; what is
prepared, by its number among the results."""
SIZES = "sizes"
"""Of programs of sizes of their own, a folder each."""


@dataclass(frozen=True)
class SavedExecutable:
    """What `save` wrote: the program, its arrays, what is prepared, how it is called, and programs
    of sizes of symbolic dimensions.
    """

    program: BoundProgram
    arrays: list[ndarray]
    prepared: list[torch.Tensor]
    convention: Convention
    sized: list[BoundProgram]


def read_executable(folder: Path, *, rebuild: bool, mmap: bool) -> SavedExecutable:
    """Return what `save` wrote; see `meta.vm.load`."""
    program, more = read_folder(folder, rebuild=rebuild)
    code, device = program.code, program.device
    if mmap and device.kind != "cpu":
        raise ArgumentError(
            "a mapped file is memory of the host, where this program does not run",
            expected="a program compiled for cpu",
            found=device,
            hint="meta.vm.load(folder), without mmap",
        )
    last = len(code.params) - code.prepared
    with torch.inference_mode(False):  # else nothing would count what is written to them
        tensors = _numbered(folder / ARRAYS, device, mmap)
        arrays = list(map(ndarray, tensors))
        _require_types(folder / ARRAYS, tensors, code.params[max(last - len(tensors), 0) : last])
        prepared: list[torch.Tensor] = []
        if code.prepared and (folder / PREPARED).exists():  # no folder of the program cache has it
            prepared = _numbered(folder / PREPARED, device, mmap)
            _require_types(folder / PREPARED, prepared, code.params[last:])
    folders = sorted((folder / SIZES).glob("*"))
    sized = [read_folder(own, rebuild=rebuild)[0] for own in folders]
    return SavedExecutable(program, arrays, prepared, convention_from_json(more), sized)


def _numbered(path: Path, device: Device, mmap: bool) -> list[torch.Tensor]:
    """Return the tensors of a file in order: those of the mapped file, whose pages processes share
    until they write to them, or copies.
    """
    tensors = read_tensors(path)
    found = [tensors[str(i)] for i in range(len(tensors)) if str(i) in tensors]
    if len(found) != len(tensors):
        raise FormatError(f"{path} does not hold the program's arrays")
    return found if mmap else [copy_to_device(tensor, device) for tensor in found]


def _require_types(
    path: Path, tensors: Sequence[torch.Tensor], params: Sequence[tuple[str, TensorType]]
) -> None:
    if len(tensors) != len(params):
        raise FormatError(f"{path} does not hold the program's arrays")
    for tensor, (name, type_) in zip(tensors, params, strict=True):
        found = TensorType(tuple(tensor.shape), FROM_TORCH[tensor.dtype])
        if found != type_:
            raise FormatError(f"the array of %{name} does not fit", expected=type_, found=found)


def save(executable: CompiledProgram, folder: str | os.PathLike[str]) -> None:
    """Write an executable to a folder, which is made; see `Executable.save`."""
    target = Path(folder).resolve()
    if not is_replaceable(target, MANIFEST):
        raise ArgumentError(
            f"{target} holds something else than a compiled program",
            expected="a new folder, or one that was saved to before",
        )
    _check_sharing(executable)
    sized = executable.sized_programs()
    for program in (executable, *sized):
        _check_kernels(program)
    arrays = [array.tensor for array in executable.arrays]
    files = {ARRAYS: arrays, PREPARED: executable.prepared()}
    write_folder(
        target,
        executable.program,
        more=convention_to_json(executable.convention),
        files={
            name: partial(write_tensors, tensors={str(i): t for i, t in enumerate(tensors)})
            for name, tensors in files.items()
            if tensors or name == ARRAYS
        }
        | {f"{SIZES}/{i}/{MANIFEST}": partial(_write_sized, own) for i, own in enumerate(sized)},
    )


def _write_sized(program: CompiledProgram, manifest: Path) -> None:
    """Write a program of a size to the folder of its manifest, which says what else is there."""
    manifest.parent.parent.mkdir(mode=0o700, exist_ok=True)
    write_folder(manifest.parent, program.program)


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
