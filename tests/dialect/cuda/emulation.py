"""CUDA source of list kernels run as C++ on the CPU: one thread for each thread block."""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
from pathlib import Path

SHIM = """
#include <cmath>
#include <cstring>
struct Index { unsigned x; };
static Index threadIdx = {0}, blockIdx = {0};
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
#define __global__
#define __shared__ static
#define __syncthreads()
#define __CUDA_ARCH__ 0
static float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
"""
LOOP = """
extern "C" void run_{name}(int blocks, const Parameters* p) {{
  for (int b = 0; b < blocks; ++b) {{ blockIdx.x = b; {name}(*p); }}
}}
"""
WIDEN = "_Float16 h; memcpy(&h, &x.bits, 2); y = (float)h;"
NARROW = "_Float16 h = (_Float16)single; memcpy(&y.bits, &h, 2);"


def conversions_as_cpp(source: str) -> str:
    """Return source whose conversions of half precision are C++."""
    text = re.sub(r'asm\("cvt\.f32\.f16.*?;\n', WIDEN + "\n", source)
    text = re.sub(r'asm\("cvt\.rn\.f16\.f32.*?;\n', NARROW + "\n", text)
    assert "asm" not in text
    return text


def as_cpp(source: str) -> str:
    """Return CUDA source as C++ with a loop over thread blocks."""
    text = conversions_as_cpp(re.sub(r"#define THREADS \d+", "#define THREADS 1", source))
    loops = "".join(LOOP.format(name=name) for name in ("update", "finish"))
    return SHIM + text + loops


class Function:
    """Stands for `driver.Function`."""

    def __init__(self, source: str, name: str, folder: Path, compiler: str) -> None:
        self.name = name
        file = folder / hashlib.sha256(source.encode()).hexdigest()[:24]
        if not file.with_suffix(".so").exists():
            file.with_suffix(".cpp").write_text(as_cpp(source))
            command = [compiler, "-O0", "-w", "-std=c++17", "-shared", "-fPIC"]
            command += ["-o", f"{file}.so", f"{file}.cpp"]
            subprocess.run(command, check=True)
        self._run = getattr(ctypes.CDLL(f"{file}.so"), f"run_{name}")

    def launch(self, blocks: int, threads: int, parameters: bytes) -> None:
        """Run all thread blocks, one after the other."""
        assert blocks > 0 and threads == 256
        self._run(blocks, parameters)
