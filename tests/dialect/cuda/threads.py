"""CUDA source run as C++: the threads of a block are fibers, which wait for one another at
barriers; blocks run one after the other.

From one barrier to the next the threads run in their order, then in the opposite one: what is read
too early or overwritten too soon is then seen in one of them.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from tests.dialect.cuda.emulation import conversions_as_cpp

SHIM = """
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
struct Index { unsigned x, y; };
static Index threadIdx, blockIdx, gridDim;
struct Fiber { ucontext_t at; void* stack; bool done; };
static Fiber* fibers;
static ucontext_t scheduler;
static unsigned current;
static void (*kernel)(const void*);
static const void* given;
static void enter() { kernel(given); fibers[current].done = true; }
static void run_block(int threads) {
  const size_t size = 1 << 16;
  fibers = (Fiber*)calloc(threads, sizeof(Fiber));
  for (int t = 0; t < threads; ++t) {
    Fiber& f = fibers[t];
    getcontext(&f.at);
    f.at.uc_stack.ss_sp = f.stack = malloc(size);
    f.at.uc_stack.ss_size = size;
    f.at.uc_link = &scheduler;
    makecontext(&f.at, enter, 0);
  }
  int left = threads;
  for (bool forward = true; left > 0; forward = !forward)
    for (int i = 0; i < threads; ++i) {
      current = forward ? i : threads - 1 - i;
      if (fibers[current].done) continue;
      threadIdx = {current, 0};
      swapcontext(&scheduler, &fibers[current].at);
      left -= fibers[current].done;
    }
  for (int t = 0; t < threads; ++t) free(fibers[t].stack);
  free(fibers);
}
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
#define __global__
#define __grid_constant__
#define __shared__ static
#define __syncthreads() swapcontext(&fibers[current].at, &scheduler)
static float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
struct float2 { float x, y; };
static float2 make_float2(float x, float y) { return {x, y}; }
static float lanes[1024];
static float __shfl_xor_sync(unsigned, float x, int k) {  // all threads of the block do it
  unsigned t = threadIdx.x;
  lanes[t] = x;
  __syncthreads();
  x = lanes[t ^ k];
  __syncthreads();
  return x;
}
"""
LAUNCH = """
static void with_{name}(const void* p) {{ {name}(*(const Parameters*)p); }}
extern "C" void run_{name}(int blocks, int columns, int threads, const Parameters* p) {{
  gridDim = {{(unsigned)blocks, (unsigned)columns}};
  kernel = with_{name}, given = p;
  for (int c = 0; c < columns; ++c)
    for (int b = 0; b < blocks; ++b) {{
      blockIdx = {{(unsigned)b, (unsigned)c}};
      run_block(threads);
    }}
}}
"""


def compiled(source: str, names: tuple[str, ...], file: Path, compiler: str) -> ctypes.CDLL:
    """Return a library with ``run_<name>(blocks, columns, threads, parameters)`` of each kernel."""
    text = SHIM + conversions_as_cpp(source) + "".join(LAUNCH.format(name=n) for n in names)
    file.with_suffix(".cpp").write_text(text)
    command = [compiler, "-O1", "-w", "-std=c++17", "-shared", "-fPIC"]
    library = file.with_suffix(".so")
    subprocess.run([*command, "-o", str(library), str(file.with_suffix(".cpp"))], check=True)
    return ctypes.CDLL(str(library))
