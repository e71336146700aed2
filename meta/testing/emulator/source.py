"""CUDA source as C++ for `device.h`: accesses become checked ones, kernels can be launched."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meta.dialect.tvm.cuda_source import with_functions

_ARRAY = r"(?:alignas\(\d+\) )?((?:unsigned |signed )?\w+(?: long| char)?) (\w+)\[([^\]]+)\]"
_PLANE = re.compile(r"__shared__ (\w+) (\w+)\[([^\]]+)\]\[([^\]]+)\];")
_SHARED = re.compile(rf"__shared__ {_ARRAY};")
_LOCAL = re.compile(rf"(?m)^(\s*){_ARRAY};")
_CAST = re.compile(r"\((?:volatile )?((?:unsigned |signed )?\w+)\s*\*\)")
_KERNEL = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\((\d+)\) )?(\w+)\(([^)]*)\) \{'
)
_POINTER = re.compile(r"(.+?)\s*\*\s*(?:__restrict__\s+)?(\w+)")

# The instructions of `half_math`.
_APPROXIMATE = {
    r'asm\("ex2\.approx\.ftz\.f32 %0, %1;" : "=f"\((\w+)\) : "f"\((.+)\)\);': r"\1 = exp2f(\2);",
    r'asm\("rcp\.approx\.ftz\.f32 %0, %1;" : "=f"\((\w+)\) : "f"\((.+)\)\);': r"\1 = 1 / (\2);",
}

_WIDEN = "_Float16 h; memcpy(&h, &x.bits, 2); y = (float)h;\n"
_NARROW = "_Float16 h = (_Float16)single; memcpy(&y.bits, &h, 2);\n"
_BRIEF = "y.bits = nv_bfloat16(single).bits;\n"

# The instructions of `tensor_core.cuh`.
_HALVES = {
    r"mma\.sync\.aligned\.m16n8k16": "multiply_halves_in_warp<T>(__LINE__, c, a, b);\n",
    r"cvta\.to\.shared": "found = 0;\n",
    r"fma\.rn\.\" HALF": "found = fused_pairs<T>(x, y, z);\n",
    r"cp\.async\.cg": "copy_chunk(Pointer<uint4>(to), from, there);\n",
    r"cp\.async\.ca": "memcpy(to, from, bytes);\n",
    r"cp\.async\.commit": "\n",
    r"cp\.async\.wait": "\n",
    r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared": (
        "load_in_warp(__LINE__, to, Pointer<uint4>(row));\n"
    ),
    r"ldmatrix\.sync\.aligned\.m8n8\.x[24]\.trans": (
        "load_turned_in_warp(__LINE__, to, Pointer<uint4>(row));\n"
    ),
}

# Those of `short_attention.cuh`, whose shared memory has a size that is known at launch.
_SHORT = {
    r"mma\.sync\.aligned\.m16n8k16.*?\(first\), \"r\"\(second\)": (
        "unsigned b[2] = {first, second};\n  multiply_halves_in_warp<T>(__LINE__, c, a, b);\n"
    ),
    r"\{ \.reg \.u64 wide": "address = 0;\n",
    r"cp\.async\.cg\.shared\.global \[%0\], \[%1\], 16;\"\s*::\s*\"r\""
    r"\(\s*shared_address\((.*?)\)\),"
    r"\s*\"l\"\((.*?)\)\s*: \"memory\"": r"copy_chunk(Pointer<uint4>(\1), \2, true);" "\n",
}
_PAIR = "T a, b; down(a, low), down(b, high); both = a.bits | (unsigned)b.bits << 16;\n"
_BATCH = r'asm volatile\("cp\.async\.\w+(?: \d)?;"\s*:\s*:\s*:\s*"memory"\);'
_EARLY = r'asm volatile\("(?:griddepcontrol|prefetch)\..*?\);'
_DYNAMIC = "extern __shared__ uint4 memory[];"

INCLUDE = '#include "device.h"\n'
ENTRY = """
extern "C" const char* run_{name}(const Launch* how, void** values) {{
  return launch(how, [](void* given) {{ void** a = (void**)given; {name}({arguments}); }}, values);
}}
"""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of generated source: its threads' limit, its parameters: a name, and a type, ending
    in ``*`` for a pointer.
    """

    name: str
    threads: int | None
    parameters: tuple[tuple[str, str], ...]


def generated(source: str) -> tuple[str, list[Kernel]]:
    """Return generated CUDA source as C++, and its kernels.

    ``run_<name>(launch, values)`` runs one; values are addresses: of a `Pointer` or of a number.
    """
    start = source.index('extern "C" __global__')
    text = source[start:]
    kernels = [_kernel(*found) for found in _KERNEL.findall(text)]
    text = re.sub(r'extern "C" __global__ [^{;]*;', "", text)  # declarations
    text = _KERNEL.sub(lambda m: f"static void {m[2]}({_checked(m[3])}) {{", text)
    text = _SHARED.sub(lambda m: _shared(m[1], m[2], m[3], text), text)
    text = _LOCAL.sub(r"\1LOCAL(\2, \3, \4);", text)
    text = _CAST.sub(r"(Pointer<\1>)", text)
    assert "__shared__" not in text, "shared memory of a size that is known at launch"
    text = with_functions(text)
    for instruction, cpp in _APPROXIMATE.items():
        text = re.sub(instruction, cpp, text)
    return INCLUDE + text + "".join(map(_entry, kernels)), kernels


def _shared(kind: str, name: str, count: str, text: str) -> str:
    """Return the declaration of a shared array, with the types as which it is used besides."""
    others = dict.fromkeys(re.findall(rf"\(\((\w+)\s*\*\){name}\)", text))
    used = "".join(f" SHARED_AS({other}, {name});" for other in others)
    return f"SHARED({kind}, {name}, {count});{used}"


def _kernel(threads: str, name: str, parameters: str) -> Kernel:
    found = []
    for one in filter(None, (p.strip() for p in parameters.split(","))):
        pointer = _POINTER.fullmatch(one)
        if pointer is not None:
            found.append((pointer[2], f"{pointer[1]}*"))
        else:
            kind, _, own = one.rpartition(" ")
            found.append((own, kind))
    return Kernel(name, int(threads) if threads else None, tuple(found))


def _checked(parameters: str) -> str:
    return ", ".join(_POINTER.sub(r"Pointer<\1> \2", p.strip()) for p in parameters.split(","))


def _entry(kernel: Kernel) -> str:
    arguments = []
    for i, (_, kind) in enumerate(kernel.parameters):
        kind = f"Pointer<{kind[:-1]}>" if kind.endswith("*") else kind
        arguments.append(f"*({kind}*)a[{i}]")
    return ENTRY.format(name=kernel.name, arguments=", ".join(arguments))


def handwritten(source: str, name: str, shared: int = 0) -> str:
    """Return the source of a hand-written kernel, whose parameter is a struct, as C++; ``shared``:
    bytes of shared memory that are asked for at launch.

    Only shared arrays of known sizes are checked; pointers to global memory are the struct's own.
    """
    text = re.sub(r'asm\("cvt\.f32\.f16.*?;\n', _WIDEN, source)
    text = re.sub(r'asm\("cvt\.rn\.f16\.f32.*?;\n', _NARROW, text)
    text = re.sub(r'asm\("cvt\.rn\.bf16\.f32.*?;\n', _BRIEF, text)
    text = re.sub(r'asm\("cvt\.rna\.tf32\.f32.*?;\n', "y = coarse_bits(x);\n", text)
    text = re.sub(r"asm\(PACK.*?\);\n", _PAIR, text, flags=re.S)
    for instruction, cpp in _APPROXIMATE.items():
        text = re.sub(instruction, cpp, text)
    text = re.sub(_BATCH, "", text)
    text = re.sub(_EARLY, "", text)
    own = _SHORT if _DYNAMIC in text else {}
    for instruction, cpp in (own | _HALVES).items():
        text = re.sub(rf'asm(?: volatile)?\(\s*"{instruction}.*?\);[ \n]', cpp, text, flags=re.S)
    text = re.sub(
        r'asm\("mma\.sync\..*?\)\);\n', "multiply_in_warp(__LINE__, c, a, b);\n", text, flags=re.S
    )
    assert "asm" not in text, text[text.index("asm") - 80 : text.index("asm") + 300]
    text = text.replace(_DYNAMIC, f"static uint4 memory[{shared // 16 + 1}];")
    text = _PLANE.sub(r"SHARED_PLANE(\1, \2, \3, \4);", text.replace('extern "C" ', ""))
    text = _SHARED.sub(r"SHARED(\1, \2, \3);", text).replace("__shared__", "static")
    return INCLUDE + text + ENTRY.format(name=name, arguments="*(Parameters*)a[0]")
