"""`export`: a compiled program as a shared library with a C header.

Kernels are object files of the dialects that have some (`Backend.linkable`); the program between
them is C (`program.py`), and so is what a process needs besides (``runtime.c``). A C compiler links
all of it, with the weights as they are in memory.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from meta.base import config
from meta.base.device import Device
from meta.base.errors import ArgumentError, BackendError, DeviceError
from meta.base.files import replacing
from meta.dialect.core import Candidate, Dialect, OpEnv, dialects, only
from meta.dialect.core.dispatch import answers
from meta.dialect.core.ir_calls import base_op
from meta.dialect.core.openv import ObjectCode
from meta.dialect.core.preference import current
from meta.ir import Call, Module, TensorType, TupleType
from meta.ir.operators import resolve_op
from meta.ir.types import UnknownDim
from meta.op.core.call import CallValues, View
from meta.passes.call_graph import preparation_of
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Code, Kernel, KernelRef
from meta.vm.compiler.code_analysis import CONSTANT, summaries
from meta.vm.compiler.kernels import find_kernels
from meta.vm.compiler.recipe import Recipe
from meta.vm.export.processor import feature_rows
from meta.vm.export.program import (
    DTYPES,
    WRITTEN,
    Block,
    BodyWriter,
    LinkedKernel,
    Weights,
    program_text,
)
from meta.vm.export.rows import block_sizes, in_rows, program_of_rows
from meta.vm.run.compiled_program import CompiledProgram
from meta.vm.run.preparation import Preparation
from meta.vm.run.signature import Signature, signature_of

HERE = Path(__file__).parent
MAX_WEIGHTS = 1 << 31
"""Bytes of constants: code reaches no further within a library."""
HINT = "let the caller compute what these lines do, or write it with operators of generated kernels"
HINT_LOADED = (
    "a program that was loaded is not compiled again; save one that was compiled within "
    "meta.dialect.prefer('tvm')"
)


@dataclass(frozen=True, slots=True)
class _Program:
    """A program as it may be exported, and what stands against it: a line for each thing. rows: of
    how many rows; 0: of all.
    """

    code: Code
    module: Module
    kernels: list[OpEnv | None]
    problems: list[str]
    rows: int = 0


def export(
    executable: CompiledProgram,
    path: str | os.PathLike[str],
    *,
    name: str = "meta_model",
    sources: str | os.PathLike[str] | None = None,
) -> tuple[Path, Path]:
    """Write a library and its header; see `Executable.export`."""
    library = Path(path)
    header = library.with_suffix(".h")
    if not (name.isidentifier() and name.isascii()):
        raise ArgumentError("functions cannot be named so", expected="a name of C", found=name)
    if header == library:
        raise ArgumentError("a library is not named as its header", expected="model.so", found=path)
    compiler = _compiler(executable)
    programs, signature = _exportable(executable), signature_of(executable)
    kernels, objects = _linked(programs, executable.device)
    weights = Weights()
    bodies = [
        BodyWriter(program.code, linked, _parameters(executable, program), weights)
        for program, linked in zip(programs, kernels, strict=True)
    ]
    if weights.size > MAX_WEIGHTS:
        raise ArgumentError(
            "the constants of this program are too large for a library",
            expected=f"at most {MAX_WEIGHTS:,} bytes",
            found=f"{weights.size:,}",
        )
    blocks = [Block(p.rows, body) for p, body in zip(programs, bodies, strict=True)]
    features = feature_rows(objects.features)
    text = program_text(executable.convention.name, signature, blocks, features)
    ranks = {t.ndim for t in (*signature.inputs.values(), *signature.outputs.values())}
    rank = max({1, *ranks, *(r for body in bodies for r in body.ranks)})
    with _folder(sources) as folder:
        (folder / "program.inc").write_text(text)
        runtime = _named((HERE / "runtime.c").read_text(), name)
        runtime = runtime.replace("@HEADER@", header.name).replace("@RANK@", str(rank))
        (folder / "runtime.c").write_text(runtime)
        public = _named((HERE / "model.h").read_text(), name)
        public = public.replace("@SIGNATURE@", _signature_comment(signature))
        (folder / header.name).write_text(public)
        (folder / "exports.map").write_text(f"{{ global: {name}_*; local: *; }};\n")
        with (folder / "weights.bin").open("wb") as file:
            file.writelines(weights.contents)
        for i, content in enumerate(objects.files):
            (folder / f"kernels{i}.o").write_bytes(content)
        with replacing(library) as part:
            command = _command(compiler, part.resolve(), library.name, len(objects.files))
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if ran.returncode:
                raise BackendError(
                    "the C compiler cannot make the library",
                    expected=" ".join(command),
                    found=ran.stderr.strip()[-2000:],
                )
        with replacing(header) as part:
            part.write_text(public)
    return library, header


def _compiler(executable: CompiledProgram) -> str:
    """Return the C compiler; an error where libraries cannot be made, or of such a program."""
    if executable.device.kind != "cpu":
        raise DeviceError(
            "a C library runs on the CPU",
            expected="a program that was compiled for the CPU",
            found=executable.device,
        )
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise ArgumentError(
            "C libraries are written on Linux, for x86-64",
            found=f"{sys.platform} on {platform.machine()}",
        )
    if _generator().unavailable:
        raise ArgumentError(
            f"the kernels of a C library are those of {_generator().name}, which cannot be used",
            found=_generator().unavailable,
        )
    wanted = config.get("META_CC")
    for one in (wanted,) if wanted else ("cc", "gcc", "clang"):
        found = shutil.which(one)
        if found:
            return found
    raise ArgumentError(
        "a C library is linked by a C compiler, and there is none",
        expected=wanted or "cc, gcc or clang on PATH",
        hint="install gcc or clang, or name a compiler in META_CC",
    )


FLAGS = "-std=gnu11 -O1 -Werror=implicit-function-declaration -fPIC -fvisibility=hidden -pthread"
LINK = "-shared -static-libgcc -Wl,--version-script=exports.map,-z,noexecstack,--no-undefined"


def _command(compiler: str, output: Path, soname: str, objects: int) -> list[str]:
    files = ["runtime.c", *(f"kernels{i}.o" for i in range(objects)), "-lm"]
    names = [f"-Wl,-soname,{soname}", "-o", str(output)]
    return [compiler, *FLAGS.split(), *LINK.split(), *names, *files]


@contextmanager
def _folder(sources: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Give a folder for what the library is made of: one that is kept, or gone after the block."""
    if sources is not None:
        Path(sources).mkdir(parents=True, exist_ok=True)
    made = tempfile.TemporaryDirectory(prefix="meta-export-") if sources is None else None
    with made or nullcontext(os.fspath(sources or "")) as folder:
        yield Path(folder)


def _named(text: str, name: str) -> str:
    return text.replace("meta_model", name).replace("META_MODEL", name.upper())


def _signature_comment(signature: Signature) -> str:
    rows = [(f"input {n}", str(t)) for n, t in signature.inputs.items()]
    rows += [(f"output {n}", str(t)) for n, t in signature.outputs.items()]
    rows += [(f"dimension {n}", str(r)) for n, r in signature.ranges.items()]
    return "\n".join(f" *   {what}: {kind}".replace("*/", "* /") for what, kind in rows)


# What can be exported.


def _exportable(executable: CompiledProgram) -> list[_Program]:
    """Return the program as it is, or compiled once more with generated kernels where it has
    others, for a few rows at a time if it is only so that it has them. ArgumentError, with all that
    stands against it.
    """
    program = _examined(executable.code, executable.program.module(), executable)
    recipe = executable.recipe
    if program.problems and recipe is not None:
        module, code = recipe.emitted(_generator().name)
        program = _examined(code, module, executable)
    programs = [program]
    if program.problems and recipe is not None and _is_in_rows(executable):
        programs = _by_rows(executable, recipe)
    problems = [problem for one in programs for problem in one.problems]
    if problems:
        raise ArgumentError(
            f"{executable.convention.name} cannot become a C library",
            expected=f"kernels of {_generator().name}; no control flow, no random numbers, no "
            "writes to weights",
            found="\n            ".join(dict.fromkeys((*program.problems, *problems))),
            hint=HINT if recipe is not None else HINT_LOADED,
        )
    return programs


def _is_in_rows(executable: CompiledProgram) -> bool:
    signature = signature_of(executable)
    types = (*signature.inputs.values(), *signature.outputs.values())
    return len(signature.ranges) == 1 and all(map(in_rows, types))


def _by_rows(executable: CompiledProgram, recipe: Recipe) -> list[_Program]:
    """Return programs of ever fewer rows, the last one of one."""
    ((dim, range_),) = signature_of(executable).ranges.items()
    programs = []
    for rows in block_sizes(range_):
        traced, problems = program_of_rows(recipe.traced, dim, rows, executable.device)
        if traced is None:
            return [_Program(executable.code, recipe.traced, [], problems, rows)]
        module, code = recipe.emitted(_generator().name, traced=traced)
        programs.append(replace(_examined(code, module, executable), rows=rows))
    return programs


def _generator() -> Dialect:
    """Return the dialect whose kernels are linked."""
    found: Dialect = next(d for d in dialects() if d.linkable)
    return found


def _objects() -> Any:
    return importlib.import_module(_generator().linkable)


def _examined(code: Code, module: Module, executable: CompiledProgram) -> _Program:
    problems = list(_problems_of_code(code, signature_of(executable)))
    kernels: list[OpEnv | None] = []
    spans = {i.kernel: i.span for f in code.functions.values() for i in f.instructions()
             if isinstance(i, bc.Invoke)}  # fmt: skip
    for number, kernel in enumerate(code.kernels):
        env, why = _candidate(kernel, module, executable)
        kernels.append(env)
        if why:
            line = f"  # {spans[number]}" if spans.get(number) else ""
            problems.append(f"{_call_text(kernel, module)}: {why}{line}")
    return _Program(code, module, kernels, problems)


def _problems_of_code(code: Code, signature: Signature) -> Iterator[str]:
    """Yield what stands against a program besides its kernels."""
    instructions = [i for f in code.functions.values() for i in f.instructions()]
    others = [type(i).__name__ for i in instructions if not isinstance(i, WRITTEN)]
    for kind in dict.fromkeys(others):
        yield f"instructions of control flow, or of several ranks: {kind}"
    for name, type_ in (*signature.inputs.items(), *signature.outputs.items()):
        if type_.dtype not in DTYPES:
            yield f"{name} is {type_}, a dtype that C has not"
        if any(isinstance(d, UnknownDim) for d in type_.shape):
            yield f"{name} is {type_}, whose extents are known only behind a run"
    for root in sorted(summaries(code)[code.entry].written):
        if root == CONSTANT or root >= len(signature.inputs):
            what = "a constant" if root == CONSTANT else f"%{code.params[root][0]}"
            yield f"the program writes to {what}: weights are read only"


def _candidate(
    kernel: Kernel, module: Module, executable: CompiledProgram
) -> tuple[OpEnv | None, str]:
    """Return a kernel that is linked, None for a view; or why there is none."""
    device, generator = executable.device, _generator()
    if isinstance(kernel, KernelRef):
        call = _call_of(kernel, device)
        if isinstance(call.out, View) and call.out.shard is None:
            return None, ""
        if any(isinstance(d, UnknownDim) for t in call.outputs for d in t.shape):
            return None, "the extents of its results are known only when it ran"
        if kernel.dialect != generator.name:
            with only(generator.name):
                reasons = (c.reason for c in answers(call, current()) if _is_of(c, generator))
                said = next(reasons, "")
            who = f"runs on {kernel.dialect}" if kernel.dialect else "is decided at each call"
            return None, f"{who}; {generator.name} refuses: {said}" if said else who
    elif kernel.dialect != generator.name:
        return None, f"one kernel of {kernel.dialect}"
    (env,) = find_kernels([kernel], module.functions, device)
    if env.source is None:
        return None, "is decided at each call, by its extents"
    return env, _objects().refusal(env) or ""


def _is_of(candidate: Candidate, dialect: Dialect) -> bool:
    return candidate.dialect_op.dialect is dialect


def _call_text(kernel: Kernel, module: Module) -> str:
    """Return who runs which operators of which types."""
    if isinstance(kernel, KernelRef):
        return str(kernel)
    bindings = module.functions[kernel.function].body.bindings
    ops = (base_op(b.value.callee) for b in bindings if isinstance(b.value, Call))
    return f"{kernel} of {', '.join(op.name for op in ops if op is not None)}"


# What it is made of.


def _linked(
    programs: Sequence[_Program], device: Device
) -> tuple[list[list[LinkedKernel]], ObjectCode]:
    """Return the kernels of each program as it calls them, compiled, and the code of all."""
    envs = [env for program in programs for env in program.kernels if env is not None]
    code: ObjectCode = _objects().object_code(envs, device)
    functions: dict[OpEnv | None, tuple[str | None, tuple[int, ...]]] = {None: (None, ())}
    functions |= zip(envs, zip(code.symbols, code.repeated, strict=True), strict=True)
    kernels = [
        [
            LinkedKernel(_call_text(k, program.module), _results(k, device), *functions[env])
            for k, env in zip(program.code.kernels, program.kernels, strict=True)
        ]
        for program in programs
    ]
    return kernels, code


def _results(kernel: Kernel, device: Device) -> tuple[TensorType, ...]:
    """Return the types of what a kernel returns; nothing of those that fill what they are given."""
    if not isinstance(kernel, KernelRef):
        return ()
    call = _call_of(kernel, device)
    return (call.out.type,) if isinstance(call.out, View) else tuple(call.outputs)


def _call_of(kernel: KernelRef, device: Device) -> CallValues:
    base = base_op(resolve_op(kernel.operator))
    assert base is not None
    return base.call_values(kernel.args, device)


def _parameters(executable: CompiledProgram, program: _Program) -> list[torch.Tensor]:
    """Return the tensors of the program's parameters behind its inputs."""
    kept: list[torch.Tensor] = executable.kept_arguments()
    if program.code is executable.code:
        return kept
    arrays = kept[: len(executable.arrays)]
    function = preparation_of(program.module)
    if function is None:
        return arrays
    results = function.result_type
    assert isinstance(results, TupleType)
    types = [t for t in results.fields if isinstance(t, TensorType)]
    made = Preparation(lambda: function, types, executable.arrays, ())
    made.allocate(str(executable.device))
    made.update()
    return [*arrays, *made.tensors]
