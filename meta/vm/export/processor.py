"""Which instructions of a processor a library needs, and where the processor says it has them."""

from __future__ import annotations

from collections.abc import Sequence

# By LLVM's name of a feature: leaf, subleaf, register (0 to 3: eax to edx) and bit of `cpuid`, from
# Intel's manual, volume 2, and AMD's, volume 3, appendix E. Of the features that LLVM has these are
# those of which it makes code without being told to.
CPUID = {
    "sse3": (1, 0, 2, 0), "ssse3": (1, 0, 2, 9), "fma": (1, 0, 2, 12), "sse4.1": (1, 0, 2, 19),
    "sse4.2": (1, 0, 2, 20), "movbe": (1, 0, 2, 22), "popcnt": (1, 0, 2, 23),
    "avx": (1, 0, 2, 28), "f16c": (1, 0, 2, 29),
    "bmi": (7, 0, 1, 3), "avx2": (7, 0, 1, 5), "bmi2": (7, 0, 1, 8), "avx512f": (7, 0, 1, 16),
    "avx512dq": (7, 0, 1, 17), "adx": (7, 0, 1, 19), "avx512ifma": (7, 0, 1, 21),
    "avx512cd": (7, 0, 1, 28), "avx512bw": (7, 0, 1, 30), "avx512vl": (7, 0, 1, 31),
    "avx512vbmi": (7, 0, 2, 1), "avx512vbmi2": (7, 0, 2, 6), "gfni": (7, 0, 2, 8),
    "vaes": (7, 0, 2, 9), "vpclmulqdq": (7, 0, 2, 10), "avx512vnni": (7, 0, 2, 11),
    "avx512bitalg": (7, 0, 2, 12), "avx512vpopcntdq": (7, 0, 2, 14), "avx512fp16": (7, 0, 3, 23),
    "avxvnni": (7, 1, 0, 4), "avx512bf16": (7, 1, 0, 5), "avxifma": (7, 1, 0, 23),
    "avxvnniint8": (7, 1, 3, 4), "avxneconvert": (7, 1, 3, 5),
    "lzcnt": (0x80000001, 0, 2, 5), "sse4a": (0x80000001, 0, 2, 6), "xop": (0x80000001, 0, 2, 11),
    "fma4": (0x80000001, 0, 2, 16), "tbm": (0x80000001, 0, 2, 21),
}  # fmt: skip


def feature_rows(features: Sequence[str]) -> list[str]:
    """Return the needed features as initialisers of C, the older ones first."""
    found = [(name, *place) for name, place in CPUID.items() if name in features]
    return [
        f'{{"{name}", {leaf:#x}, {sub}, {word}, {bit}}}' for name, leaf, sub, word, bit in found
    ]
