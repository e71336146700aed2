"""Targets: what source text has to know of CUDA and of ROCm, as data.

A kernel is written once. Where the two differ (the prefix of the runtime's names, the names of
half precision types and their headers, the width of a warp) the text asks the `TargetSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meta.base.errors import UnknownName
from meta.base.registry import Registry, nearest
from meta.base.source import caller_span
from meta.dialect.core import Unsupported

WIDE = {"float16": "float32", "bfloat16": "float32"}
"""The dtype to compute in, by that of elements, where it is another one."""
_C_TYPES = {
    "bool": "bool",
    "uint8": "uint8_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "float16": "half",
    "bfloat16": "bfloat16",
    "float32": "float",
    "float64": "double",
}
_VECTORS = {
    ("float16", 2): "half2",
    ("bfloat16", 2): "bfloat162",
    **{("float32", n): f"float{n}" for n in (2, 4)},
    ("float64", 2): "double2",
    **{("int32", n): f"int{n}" for n in (2, 4)},
    **{("uint32", n): f"uint{n}" for n in (2, 4)},
    **{("int8", n): f"char{n}" for n in (2, 4)},
    **{("uint8", n): f"uchar{n}" for n in (2, 4)},
}
_CONVERSIONS = {
    "float16": ("__half2float", "__float2half_rn"),
    "bfloat16": ("__bfloat162float", "__float2bfloat16"),
}
_HALF = ("ceil", "cos", "exp", "exp2", "floor", "log", "log10", "log2", "rint", "rsqrt", "sin",
         "sqrt", "trunc")  # fmt: skip
_WIDE_ONLY = ("acos", "asin", "atan", "cosh", "erf", "erfc", "expm1", "log1p", "pow", "sinh",
              "tan", "tanh")  # fmt: skip


def _intrinsics() -> dict[str, dict[str, str]]:
    """Return the functions of device code by name and dtype."""
    found = {name: {"float32": f"{name}f", "float64": name} for name in (*_HALF, *_WIDE_ONLY)}
    for name, one in (("abs", "fabs"), ("max", "fmax"), ("min", "fmin"), ("fma", "fma")):
        found[name] = {"float32": f"{one}f", "float64": one}
    for dtype in WIDE:
        for name in _HALF:
            found[name][dtype] = f"h{name}"
        for name in ("abs", "fma", "max", "min"):
            found[name][dtype] = f"__h{name}"
        for name, own in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("div", "div")):
            found.setdefault(name, {})[dtype] = f"__h{own}"
    for name in ("add", "sub", "mul", "div"):
        found[name] |= {"float32": f"__f{name}_rn", "float64": f"__d{name}_rn"}
    return found


@dataclass(frozen=True)
class TargetSpec:
    """What generated source has to know of a target.

    Attributes
    ----------
    name: the first part of the keys of its pieces, "cuda". prefix: of the names of its runtime,
        as in ``cudaStream_t``.
    compiler: the program that compiles a whole source file for it; options: what that is given.
    headers: what every source file includes.
    type_headers: by dtype, what source with elements of that dtype includes besides.
    type_aliases: by dtype, lines that give a type of half precision the name of ``types``.
    types: by dtype, its type in source. vectors: by dtype and count, the type of so many elements.
    conversions: by dtype of half precision, the functions to float and from it, which rounds to
        nearest.
    intrinsics: by name and dtype, a function of device code.
    warp: threads of a warp (AMD: a wavefront).
    """

    name: str
    prefix: str
    compiler: str
    options: tuple[str, ...]
    headers: tuple[str, ...]
    type_headers: Mapping[str, str]
    type_aliases: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=lambda: dict(_C_TYPES))
    vectors: Mapping[tuple[str, int], str] = field(default_factory=lambda: dict(_VECTORS))
    conversions: Mapping[str, tuple[str, str]] = field(default_factory=lambda: dict(_CONVERSIONS))
    intrinsics: Mapping[str, Mapping[str, str]] = field(default_factory=_intrinsics)
    warp: int = 32

    @property
    def stream(self) -> str:
        """The type of a stream: ``cudaStream_t``."""
        return f"{self.prefix}Stream_t"

    def type_of(self, dtype: str) -> str:
        """Return the type of elements; Unsupported for a dtype that source has no type of."""
        if dtype not in self.types:
            raise Unsupported(f"source for {self.name} has no type of {dtype} elements")
        return self.types[dtype]

    def vector_of(self, dtype: str, count: int) -> str:
        """Return the type of ``count`` elements; Unsupported if there is none."""
        if count == 1:
            return self.type_of(dtype)
        if (dtype, count) not in self.vectors:
            raise Unsupported(f"source for {self.name} has no vector of {count} {dtype} elements")
        return self.vectors[dtype, count]

    def function_of(self, name: str, dtype: str) -> str:
        """Return an intrinsic for a dtype; UnknownName with the nearest names if there is no such
        intrinsic, or with what to write instead if there is none for that dtype.
        """
        known = self.intrinsics.get(name)
        if known is None:
            raise UnknownName(
                f"{self.name} has no intrinsic {name!r}", hint=nearest(name, self.intrinsics)
            )
        if dtype not in known:
            raise UnknownName(
                f"{self.name} has no {name!r} of {dtype}",
                expected=f"one of {', '.join(known)}",
                hint="convert with {{ x.up }}(...) and round with {{ x.down }}(...)",
            )
        return known[dtype]

    def included(self, dtypes: tuple[str, ...]) -> str:
        """Return the lines at the top of a source file with elements of these dtypes."""
        used = [d for d in self.type_headers if d in dtypes]
        names = dict.fromkeys([*self.headers, *(self.type_headers[d] for d in used)])
        aliases = [self.type_aliases[d] for d in used if d in self.type_aliases]
        return "\n".join([*(f"#include <{name}>" for name in names), *aliases])


TARGETS: Registry[TargetSpec] = Registry("target")
"""The targets for which source is generated, by name."""


def add_target(spec: TargetSpec) -> TargetSpec:
    """Let source be generated for one more target: its keys are there from now on.

    Raises RegistrationError for a name that is taken.
    """
    return TARGETS.register(spec.name, spec, caller_span())


CUDA = add_target(
    TargetSpec(
        "cuda",
        prefix="cuda",
        compiler="nvcc",
        options=("-std=c++17", "-c", "-x", "cu"),
        headers=("cstdint",),
        type_headers={"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"},
        type_aliases={
            "bfloat16": "using bfloat16 = __nv_bfloat16;\nusing bfloat162 = __nv_bfloat162;"
        },
    )
)
ROCM = add_target(
    TargetSpec(
        "rocm",
        prefix="hip",
        compiler="hipcc",
        options=("-std=c++17", "-c", "-x", "hip"),
        headers=("cstdint", "hip/hip_runtime.h"),
        type_headers={"float16": "hip/hip_fp16.h", "bfloat16": "hip/hip_bf16.h"},
        type_aliases={
            "bfloat16": "using bfloat16 = __hip_bfloat16;\nusing bfloat162 = __hip_bfloat162;"
        },
        warp=64,
    )
)
