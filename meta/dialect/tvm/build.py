"""Compile PrimFuncs: schedule, modules built on several threads, memory and disk cache.

The functions that come out take torch tensors and Python numbers in the order of the PrimFunc's
parameters. On CUDA they run on torch's current stream: when it converts the first CUDA tensor of
a call, tvm_ffi asks torch for the current stream of that device (``current_work_stream`` of the
DLPack exchange API, tvm_ffi/cython/function.pxi) and sets it as the stream of the call, which the
launcher reads back (``TVMFFIEnvGetStream``). So ``with torch.cuda.stream(s)`` and CUDA graph
capture work as for torch's own kernels.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import pipeline
from tvm.target import Target
from tvm.tirx import compilation_pipeline

from meta import op
from meta.base.bounded_cache import bounded_insert
from meta.base.device import Device
from meta.base.errors import BackendError
from meta.base.progress import bar
from meta.base.threads import compile_threads, run_in_threads
from meta.dialect.core import Artifact, CompiledKernel, Deferred, OpEnv
from meta.dialect.tvm import (
    argument_checks,
    cache,
    cuda_source,
    linker,
    llvm_code,
    schedule_cpu,
    schedule_cuda,
)
from meta.dialect.tvm.configs import configs_of, take_scheduled
from meta.dialect.tvm.launch import (
    PLAIN,
    Kernel,
    LaunchPlan,
    Workspace,
    realigned,
    total_bytes,
    with_workspaces,
)
from meta.dialect.tvm.lower import SCHEDULED
from meta.dialect.tvm.target import for_device
from meta.runtime import nvrtc as compiler

Key = tuple[tvm_ffi.StructuralKey, str]
Source = tuple[tirx.PrimFunc, Target, LaunchPlan]
LEAST_BATCH = {"llvm": 4, "cuda": 1}
"""Kernels that are compiled together at least: a library more costs about as much as one of them,
and on the CPU several processes often share the cores."""
KERNELS = 4096
"""Kernels that are remembered in memory; those that a program or an eager call holds live on."""
_lock = threading.RLock()
_kernels: dict[Key, CompiledKernel] = {}


CPU = "meta_cpu"
"""The name under which TVM knows our lowering."""


def _with_definitions(function: tirx.PrimFunc, module: Any, context: Any) -> tirx.PrimFunc:
    return llvm_code.with_definitions(llvm_code.hidden(function))


_finished = tirx.transform.prim_func_pass(_with_definitions, opt_level=0)
_checked = tirx.transform.prim_func_pass(
    lambda function, module, context: argument_checks.tabled(function), opt_level=0
)
# Its stub asks for the hash, which it computes.
_structural_key: Any = tvm_ffi.StructuralKey


def _for_cpu() -> tuple[Any, Any, Any]:
    """Return TVM's lowering for the CPU with three steps of ours at its end."""
    lowering, _, device_passes = pipeline.default_s_tir_pipeline()
    steps = [_checked, tirx.transform.LowerTVMBuiltin(), _finished, tirx.transform.LowerIntrin()]
    return lowering, lambda: tvm.ir.transform.Sequential(steps), device_passes


compilation_pipeline.PIPELINE_MAP[CPU] = _for_cpu


def rule_files() -> list[Path]:
    """Return the files that decide what becomes of a PrimFunc, beside TVM.

    They are all of this folder and of those in it, and the compiler's with its prologue. Files of
    operator families are not among them, which have the names of those in ``meta/op``: they make
    PrimFuncs.
    """
    folder, families = Path(__file__).parent, Path(op.__file__).parent
    own = (f for f in folder.rglob("*") if f.suffix in (".py", ".cu", ".cuh"))
    rules = [f for f in own if not (families / f.relative_to(folder)).exists()]
    compilers = Path(compiler.__file__)
    return [*sorted(rules), compilers, compilers.with_name("prologue.cuh")]


RULES = hashlib.sha256(b"".join(file.read_bytes() for file in rule_files())).hexdigest()[:16]


def kernel(function: tirx.PrimFunc, target: Target) -> Kernel:
    """Return ``function`` compiled for ``target``; see `build`."""
    run = build({"kernel": function}, target)["kernel"].run
    return realigned(run) if target.kind.name == "cuda" else run


def deferred(
    function: tirx.PrimFunc, device: Device, launch: LaunchPlan = PLAIN, polymorphic: bool = False
) -> OpEnv:
    """Return ``function`` as a kernel; compiled when needed, with whatever else is needed then."""
    target = for_device(device)

    def made(function: tirx.PrimFunc) -> OpEnv:
        run = Deferred((function, target, launch), _build_all, _text)
        return OpEnv(run, allocates=False, polymorphic=polymorphic, configs=configs)

    configs = configs_of(function, target, _rules(target).schedule, made)
    return made(function)


def _text(source: Source) -> dict[str, str]:
    """Return a PrimFunc as TVM's script, before it is scheduled."""
    function, target, _ = source
    return {".py": f"# {target}\n{function.script()}\n"}


def _rules(target: Target) -> Any:
    """Return the module of the schedule for a target."""
    return schedule_cuda if target.kind.name == "cuda" else schedule_cpu


def _build_all(sources: Sequence[Source]) -> list[CompiledKernel]:
    targets = {str(target): target for _, target, _ in sources}
    built: dict[str, CompiledKernel] = {}
    for where, target in targets.items():
        functions = {f"kernel{i}": f for i, (f, t, _) in enumerate(sources) if str(t) == where}
        built.update(build(functions, target))
    compiled = []
    for i, (_, target, launch) in enumerate(sources):
        made = built[f"kernel{i}"]
        launch = replace(launch, aligned=target.kind.name == "cuda" and launch.lists is None)
        artifact = made.artifact
        if artifact is not None:
            artifact = Artifact(artifact.file, {**artifact.record, "launch": launch.record()})
        compiled.append(CompiledKernel(launch.bind(made.run), artifact, made.workspace))
    return compiled


def build(functions: Mapping[str, tirx.PrimFunc], target: Target) -> dict[str, CompiledKernel]:
    """Return the functions compiled for ``target``, under the same names.

    What was built before, in this process or (see `cache`) in another, is not built again; the
    rest is compiled in batches, on several threads: TVM and NVRTC leave the interpreter to others.
    Any thread may call this; calls that compile run one after the other.
    Raises BackendError if TVM refuses a function, naming it.
    """
    where = str(target)
    keys = {name: (_structural_key(f), where) for name, f in functions.items()}
    known = {key: _known(key) for key in keys.values()}
    built = {key: found for key, found in known.items() if found is not None}
    missing = {key: name for name, key in keys.items() if key not in built}
    if missing:
        with _lock:
            built.update(_build_missing(missing, functions, target))
    return {name: built[key] for name, key in keys.items()}


def object_files(functions: Mapping[str, tirx.PrimFunc], target: Target) -> list[bytes]:
    """Return the functions, compiled for ``target`` under their names, as object files. Nothing is
    kept. Raises BackendError if TVM refuses a function.
    """
    wanted = [
        _Missing((_structural_key(f), str(target)), name, name, f, f.script())
        for name, f in functions.items()
    ]
    batches = _batches(wanted, LEAST_BATCH[target.kind.name], compile_threads())

    def compiled(batch: Sequence[_Missing]) -> list[bytes]:
        try:
            module, _ = _compile({one.symbol: one.function for one in batch}, target, linked=True)
        except Exception as error:
            raise _blame(batch, target, error) from error
        with linker.object_files(module) as files:
            return [Path(linker.path_of(file)).read_bytes() for file in files]

    made = run_in_threads([partial(compiled, batch) for batch in batches])
    return [file for files in made for file in files]


def _known(key: Key) -> CompiledKernel | None:
    """Return what was built, unless it was kept and its file is gone: it is to be kept again."""
    found = _kernels.get(key)
    if found is None or found.artifact is None or found.artifact.file.is_file():
        return found
    return None


def _build_missing(
    missing: Mapping[Key, str], functions: Mapping[str, tirx.PrimFunc], target: Target
) -> dict[Key, CompiledKernel]:
    made: dict[Key, CompiledKernel] = {}
    wanted: list[_Missing] = []
    for key, name in missing.items():
        known = _known(key)
        if known is not None:  # built by another thread meanwhile
            made[key] = known
            continue
        text = _key_text(functions[name], target)
        found = cache.load(text)
        if found is not None:
            made[key] = found
            continue
        symbol = f"meta_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
        wanted.append(_Missing(key, symbol, name, functions[name], text))
    least = LEAST_BATCH[target.kind.name]
    batches = _batches(wanted, least, compile_threads())
    with bar(len(wanted), "kernels", delay=1.0) as progress:
        batches_built = run_in_threads(
            [partial(_built, batch, target) for batch in batches],
            lambda i: progress.update(len(batches[i])),
        )
    for built in batches_built:
        made.update(built)
    for key, one in made.items():
        bounded_insert(_kernels, key, one, KERNELS)
    return made


@dataclass(frozen=True, slots=True)
class _Missing:
    """A function to be compiled: its symbol, the caller's name for it, and its key as text."""

    key: Key
    symbol: str
    name: str
    function: tirx.PrimFunc
    text: str


def _batches(wanted: Sequence[_Missing], least: int, most: int) -> list[list[_Missing]]:
    """Return up to ``most`` batches of ``least`` functions or more on average, which take as long
    as one another: the longest goes first, to the batch that has the least so far.
    """
    if not wanted:
        return []
    count = min(most, max(len(wanted) // least, 1))
    batches: list[list[_Missing]] = [[] for _ in range(count)]
    for one in sorted(wanted, key=lambda one: (-len(one.text), one.symbol)):
        min(batches, key=lambda batch: sum(len(w.text) for w in batch)).append(one)
    return batches


def _built(batch: Sequence[_Missing], target: Target) -> dict[Key, CompiledKernel]:
    """Return the functions of a batch, compiled in one module."""
    functions = {one.symbol: one.function for one in batch}
    linked = cache.status().writable
    try:
        module, needs = _compile(functions, target, linked)
        stored = cache.store(module, {one.symbol: one.text for one in batch}, needs) or {}
        if linked and not stored:
            module, needs = _compile(functions, target, linked=False)
    except Exception as error:
        raise _blame(batch, target, error) from error
    built = {}
    for one in batch:
        found, arrays = stored.get(one.symbol), needs[one.symbol]
        if found is None:  # in memory only
            run = with_workspaces(module.get_function(one.symbol), arrays)
            found = CompiledKernel(run, None, total_bytes(arrays))
        built[one.key] = found
    return built


def _key_text(function: tirx.PrimFunc, target: Target) -> str:
    """Everything that decides the machine code, as text."""
    versions = f"tvm {tvm.__version__}, tvm_ffi {tvm_ffi.__version__}, rules {RULES}"
    return f"{versions}\n{target}\n{function.script(show_meta=True)}"


def _compile(
    functions: Mapping[str, tirx.PrimFunc], target: Target, linked: bool
) -> tuple[tvm.runtime.Module, dict[str, tuple[Workspace, ...]]]:
    """Return the functions in one module, and the workspaces that are their last parameters.
    linked: whether the module becomes a library (see `argument_checks`).
    """
    on_cuda = target.kind.name == "cuda"
    rules = _rules(target)
    scheduled: dict[str, tirx.PrimFunc] = {}
    needs: dict[str, tuple[Workspace, ...]] = {}
    for symbol, function in functions.items():
        made, needs[symbol] = function, ()
        if not (function.attrs and SCHEDULED in function.attrs):
            made = take_scheduled(function, target) or rules.schedule(function, target)
        if on_cuda:  # on the CPU, TVM's pool is right: a call is over when it returns
            made, needs[symbol] = cuda_source.as_parameters(cuda_source.exact(made))
        else:
            made = llvm_code.rounded(made)
            made = argument_checks.described(made) if linked else made
        scheduled[symbol] = made.with_attr("global_symbol", symbol)
    with target:
        lowering = "default" if on_cuda else CPU
        return tvm.compile(tvm.IRModule(scheduled), target, tir_pipeline=lowering).mod, needs


def _blame(batch: Sequence[_Missing], target: Target, error: Exception) -> BackendError:
    """Find out which function of a batch cannot be compiled."""
    for one in batch:
        name = one.name
        if len(batch) == 1:
            break
        try:
            _compile({one.symbol: one.function}, target, linked=False)
        except Exception as alone:
            error = alone
            break
    return BackendError(
        f"TVM cannot compile the kernel {name!r} for {target.kind.name}",
        found=str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__,
        hint="this is a fault of the kernel or its schedule, not of the call; "
        "another dialect may have the operator (meta.dialect.prefer)",
    )
