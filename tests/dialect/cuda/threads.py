"""CUDA source run as C++ with a thread for each thread of a block, blocks one after the other."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from tests.dialect.cuda.emulation import conversions_as_cpp

SHIM = """
#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>
struct Index { unsigned x, y; };
static thread_local Index threadIdx;
static Index blockIdx, gridDim;
static std::barrier<>* barrier;
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
#define __global__
#define __grid_constant__
#define __shared__ static
#define __syncthreads() barrier->arrive_and_wait()
static float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
"""
LAUNCH = """
extern "C" void run_{name}(int blocks, int columns, int threads, const Parameters* p) {{
  gridDim = {{(unsigned)blocks, (unsigned)columns}};
  for (int c = 0; c < columns; ++c)
    for (int b = 0; b < blocks; ++b) {{
      blockIdx = {{(unsigned)b, (unsigned)c}};
      std::barrier<> together(threads);
      barrier = &together;
      std::vector<std::thread> all;
      for (int t = 0; t < threads; ++t)
        all.emplace_back([=] {{
          threadIdx = {{(unsigned)t, 0}};
          {name}(*p);
          barrier->arrive_and_drop();
        }});
      for (auto& one : all) one.join();
    }}
}}
"""


def compiled(source: str, names: tuple[str, ...], file: Path, compiler: str) -> ctypes.CDLL:
    """Return a library with ``run_<name>(blocks, columns, threads, parameters)`` of each kernel."""
    text = SHIM + conversions_as_cpp(source) + "".join(LAUNCH.format(name=n) for n in names)
    file.with_suffix(".cpp").write_text(text)
    command = [compiler, "-O1", "-w", "-std=c++20", "-pthread", "-shared", "-fPIC"]
    library = file.with_suffix(".so")
    subprocess.run([*command, "-o", str(library), str(file.with_suffix(".cpp"))], check=True)
    return ctypes.CDLL(str(library))
