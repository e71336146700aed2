"""Machine code of kernels: compiled by Triton, on threads, and kept on disk.

A kernel is compiled in two variants. The *compact* one is for tensors without gaps at addresses
that are multiples of 16, as nearly all are: Triton then accesses them by vectors, and their strides
are known. The *general* one takes any address and any strides. Both are in one file, under a key
that states all they depend on: the versions of Triton and of its assembler, the source with all
functions that it calls, types, constants, options and architecture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import triton
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from meta.base.device import Device
from meta.base.errors import BackendError, MetaError
from meta.base.source import Span
from meta.base.threads import run_in_threads
from meta.dialect.core import Artifact, CompiledKernel, Deferred, KernelStore, Unsupported
from meta.dialect.core.backend_errors import summary
from meta.dialect.triton import type_names
from meta.dialect.triton.binding import Bound
from meta.dialect.triton.configs import Tuning
from meta.dialect.triton.function import Source
from meta.dialect.triton.launch import Binaries, Binary, LaunchPlan, Passed, packed, unpacked
from meta.runtime import gpu_properties

DIVISOR = 16
"""What Triton's compiler can know of an address or a number: that it is a multiple of this."""


@dataclass(frozen=True)
class Variant:
    """What one variant of a kernel is compiled of.

    Attributes
    ----------
    source: its function. types: by parameter, in order: a type of Triton, "constexpr", or a tuple
    of pointers' types. constants: by parameter. multiples: paths of parameters that are multiples
    of `DIVISOR`. passed: what the compiled code is given.
    """

    source: Source
    types: Mapping[str, Any]
    constants: Mapping[str, Any]
    multiples: tuple[tuple[int, ...], ...]
    passed: tuple[Passed, ...]

    @property
    def text(self) -> str:
        """What decides the machine code, beside the options: no value that is passed."""
        constants = {n: _constant_text(v) for n, v in self.constants.items()}
        return f"{self.source.jit.cache_key}\n{dict(self.types)}\n{constants}\n{self.multiples}"


def _constant_text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant_text, value))})"
    return f"{type(value).__name__} {getattr(value, 'cache_key', None) or repr(value)}"


def variants(source: Source, bound: Bound) -> tuple[Variant, Variant]:
    """Return the compact and the general variant of a kernel in a call."""
    return variant(source, bound, compact=True), variant(source, bound, compact=False)


def variant(source: Source, bound: Bound, compact: bool) -> Variant:
    """Return one of the variants; see `variants`."""
    types: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    multiples: list[tuple[int, ...]] = []
    passed: list[Passed] = []
    for i, parameter in enumerate(source.parameters):
        name = parameter.name
        if name in bound.constants:
            types[name], constants[name] = "constexpr", bound.constants[name]
        elif name in bound.pointers:
            found = bound.pointers[name]
            each = tuple(type_names.pointer(t.dtype, name) for t in found.types)
            types[name] = each if found.several else each[0]
            passed += [("pointer", place) for place in found.places]
            if compact and parameter.aligned:
                multiples += [(i, j) for j in range(len(each))] if found.several else [(i,)]
        elif name in bound.numbers:
            number = bound.numbers[name]
            types[name] = number.word
            passed.append(("number", number.place, number.word))
        elif name in bound.strides and not compact:
            stride = bound.strides[name]
            types[name] = "i64"
            passed.append(("stride", stride.place, stride.axis))
        else:
            if name in bound.strides:
                stride = bound.strides[name]
                value: Any = stride.compact
                word = "i64" if stride.wide else type_names.static_word(value, wide=False)
            else:
                value, word = bound.statics[name].value, bound.statics[name].word
            whole = type(value) is int
            if whole and value == 1 and parameter.specialized:
                types[name], constants[name] = "constexpr", 1
                continue
            types[name] = word
            passed.append(("known", word, value))
            if whole and value % DIVISOR == 0 and parameter.aligned:
                multiples.append((i,))
    return Variant(source, types, constants, tuple(multiples), tuple(passed))


@dataclass(frozen=True)
class Unit:
    """What is compiled together for one kernel in one call, told apart by ``key``.

    call: the operator and the types, for errors. site: where the kernel is written.
    """

    key: str
    site: Span = field(compare=False)
    variants: tuple[Variant, ...] = field(compare=False)
    options: Mapping[str, Any] = field(compare=False)
    target: int = field(compare=False)
    call: str = field(compare=False)


def unit(
    source: Source, variants: Sequence[Variant], tuning: Tuning, device: Device, call: str
) -> Unit:
    """Return what is to be compiled for a device. ``source``: what its author wrote. Variants that
    are the same are one. Raises Unsupported for a function that cannot be compiled.
    """
    if source.interpreted_only:
        raise Unsupported("TRITON_INTERPRET=1 was set when the function was made: unset it")
    major, minor = gpu_properties.target_of(device).capability
    target = 10 * major + minor
    options = {**tuning.options, "enable_fp_fusion": True}
    if source.jit.debug is not None:
        options["debug"] = source.jit.debug
    # Of two variants with the same code, the general one is right for all tensors.
    different = {v.text: v for v in variants}
    stated = repr(sorted(options.items()))
    key = "\n".join((_compiler(target), stated, *different))
    return Unit(key, source.site, tuple(different.values()), options, target, call)


@cache
def _compiler(target: int) -> str:
    """Return what compiles for a target: versions, and what the environment changes of it."""
    backend = make_backend(GPUTarget("cuda", target, 32))
    changed = sorted(get_cache_invalidating_env_vars().items())
    return f"triton {triton.__version__}, {backend.hash()}, {changed}"


def _binary(code: bytes, metadata: Mapping[str, Any]) -> Binary:
    """Return machine code with its metadata; BackendError for what our launches do not serve."""
    wants = {
        "a cooperative grid": metadata.get("launch_cooperative_grid"),
        "descriptors of tensors made on the host": metadata.get("tensordesc_meta"),
        "memory for profiles": metadata.get("profile_scratch_size"),
        "instrumentation": metadata.get("instrumentation_mode"),
        "warps of another size": metadata.get("warp_size", 32) != 32,
    }
    found = [what for what, wanted in wants.items() if wanted]
    if found:
        raise BackendError(
            f"a kernel of Triton wants {' and '.join(found)}, which launches here do not have",
            hint="descriptors that are made in the kernel (tl.make_tensor_descriptor) are served",
        )
    return Binary(
        code,
        str(metadata["name"]),
        int(metadata["num_warps"]),
        int(metadata["num_ctas"]),
        int(metadata["shared"]),
        int(metadata["global_scratch_size"] or 0),
        int(metadata.get("launch_pdl") or 0),
    )


def assembled(unit: Unit, variant: Variant) -> Any:
    """Return what Triton makes of a variant: its ``asm`` has the text of each step."""
    jit = variant.source.jit
    places = {name: i for i, name in enumerate(jit.arg_names)}
    constants = {(places[name],): value for name, value in variant.constants.items()}
    attributes = {path: [["tt.divisibility", DIVISOR]] for path in variant.multiples}
    source = ASTSource(jit, dict(variant.types), constants, attributes)
    target = GPUTarget("cuda", unit.target, 32)
    return triton.compile(source, target=target, options=dict(unit.options))


def compiled(unit: Unit, variant: Variant) -> Binary:
    """Return the machine code of a variant, compiled now."""
    try:
        made = assembled(unit, variant)
        return _binary(made.asm["cubin"], made.metadata._asdict())
    except MetaError:
        raise
    except Exception as error:
        raise BackendError(
            f"Triton cannot compile the kernel {variant.source.name!r} for sm_{unit.target}",
            op=unit.call,
            found=_reason(error),
            hint="this is a fault of the kernel, or of a configuration, not of the call; "
            "when= declines calls that it is not made for",
            span=unit.site,
        ) from error


def _reason(error: Exception) -> str:
    """Return what Triton says: its errors show the line of the kernel."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    shown = "\n            ".join(lines[-6:]) if len(lines) > 1 else summary(error)
    cause = error.__cause__
    return shown if cause is None else f"{shown}\n            {summary(cause)}"


def _compile(unit: Unit) -> Binaries:
    return tuple(run_in_threads([partial(compiled, unit, v) for v in unit.variants]))


def _unpacked(unit: Unit, content: bytes) -> Binaries | None:
    found = unpacked(content)
    return found if found is not None and len(found) == len(unit.variants) else None


kernels: KernelStore[Unit, Binaries] = KernelStore(
    "triton", _compile, lambda unit: unit.key, packed, _unpacked
)
"""Machine code of kernels' variants."""


@dataclass(frozen=True)
class Ready:
    """A kernel that was bound in a call, to be compiled."""

    unit: Unit
    plan: LaunchPlan
    device: int

    def text(self) -> dict[str, str]:
        """Return what is compiled, by the ending of the name of a file."""
        return {".py": "\n\n".join(dict.fromkeys(v.source.text for v in self.unit.variants))}

    def deferred(self) -> Deferred:
        """Return it as the kernel of an `OpEnv`."""
        return Deferred(self, _compile_all, Ready.text, lambda one: kernels.begin([one.unit]))


def _compile_all(ready: Sequence[Ready]) -> list[CompiledKernel]:
    made = []
    codes = kernels.all_of([one.unit for one in ready])
    for one, binaries in zip(ready, codes, strict=True):
        file, record = kernels.file(one.unit), one.plan.record()
        artifact = (
            None if file is None else Artifact(file, {"launch": record, "device": one.device})
        )
        made.append(CompiledKernel(one.plan.bind(binaries, one.device), artifact))
    return made
