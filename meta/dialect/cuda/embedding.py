"""The gradient of an embedding's table: a row's gradients are added up in one order, in one launch.

Libraries sort the indices, or add atomically, which gives other bits at every run. Here a thread
block owns some rows and looks through all indices for them: 32 KB that are in the cache, for a
table of a hundred megabytes to be written.
"""

from __future__ import annotations

import struct
from functools import cache
from math import prod

import torch

from meta import op
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import cubin, driver
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.scalars import C_TYPES, CONVERSIONS
from meta.op.core.call import CallValues

WARPS = 8
READS = 8
"""Indices that a thread has under way."""
MOST_ROWS = 64
"""Rows of a thread block."""
BLOCKS = 512
"""Thread blocks that fill a GPU a few times over; of fewer rows, each gets fewer."""
CAPACITY = 8192
"""Indices that a thread block notes in shared memory; of more it searches all again."""
BYTES = 16
"""Of a vector access."""
MOST_INDICES = 1 << 26
"""Their places and a row's number are noted in 32 bits."""
INDICES = {"int32": "int", "int64": "long long"}

SOURCE = r"""
#define LANES 32
#define FULL 0xffffffffu

struct Parameters {
  const T* dy; const I* indices; T* out;
  long long count; long long width; long long rows; int rows_each; int spare;
};
struct __align__(sizeof(T) * VECTOR) Vector { T at[VECTOR]; };

inline void add(float* sum, const T* from) {
  Vector v = *(const Vector*)from;
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) sum[j] += up(v.at[j]);
}

inline long long row_of(const Parameters& p, long long at) {
  long long row = (long long)p.indices[at];
  return row < 0 ? 0 : row >= p.rows ? p.rows - 1 : row;
}

extern "C" __global__ void __launch_bounds__(WARPS * LANES)
embedding_dx(const __grid_constant__ Parameters p) {
  __shared__ unsigned found[CAPACITY];   // position among the indices << 6 | row of this block
  __shared__ int before[READS][WARPS];
  __shared__ float parts[WARPS][LANES * VECTOR];
  int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  long long first = (long long)blockIdx.x * p.rows_each;
  long long left = p.rows - first;
  int rows = left < p.rows_each ? (int)left : p.rows_each;

  // The indices that name these rows, in order.
  int total = 0;
  for (long long start = 0; start < p.count; start += READS * WARPS * LANES) {
    long long row[READS];
    unsigned votes[READS];
#pragma unroll
    for (int j = 0; j < READS; ++j) {
      long long at = start + j * WARPS * LANES + threadIdx.x;
      row[j] = at < p.count ? row_of(p, at) - first : -1;
    }
#pragma unroll
    for (int j = 0; j < READS; ++j) {
      votes[j] = __ballot_sync(FULL, row[j] >= 0 && row[j] < rows);
      if (lane == 0) before[j][warp] = __popc(votes[j]);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < READS; ++j) {
      int place = total + __popc(votes[j] & ((1u << lane) - 1));
      for (int w = 0; w < WARPS; ++w) {
        if (w < warp) place += before[j][w];
        total += before[j][w];
      }
      if (votes[j] >> lane & 1 && place < CAPACITY) {
        unsigned at = (unsigned)start + j * WARPS * LANES + threadIdx.x;
        found[place] = at << 6 | (unsigned)row[j];
      }
    }
    __syncthreads();
  }

  // Each row is added up by one warp, or, of few rows, in parts by several.
  int share = rows >= WARPS ? 1 : WARPS / (1 << (32 - __clz(rows - 1)));
  int part = warp % share;
  long long column = ((long long)blockIdx.y * LANES + lane) * VECTOR;
  bool inside = column < p.width;
  const T* dy = p.dy + column;
  for (int base = 0; base < rows; base += WARPS / share) {
    int row = base + warp / share;
    float sum[VECTOR] = {};
    if (row < rows && total <= CAPACITY) {
      int each = (total + share - 1) / share, end = min(total, (part + 1) * each);
      for (int start = part * each; start < end; start += LANES) {
        unsigned entry = start + lane < end ? found[start + lane] : 0xffffffffu;
        bool hit = start + lane < end && (int)(entry & 63) == row;
        unsigned votes = __ballot_sync(FULL, hit);
        if (votes == FULL) {
#pragma unroll 16
          for (int i = 0; i < LANES; ++i) {
            unsigned other = __shfl_sync(FULL, entry, i);
            if (inside) add(sum, dy + (long long)(other >> 6) * p.width);
          }
        } else {
          while (votes) {
            unsigned other = __shfl_sync(FULL, entry, __ffs(votes) - 1);
            if (inside) add(sum, dy + (long long)(other >> 6) * p.width);
            votes &= votes - 1;
          }
        }
      }
    } else if (row < rows) {
      long long each = (p.count + share - 1) / share;
      long long end = (part + 1) * each < p.count ? (part + 1) * each : p.count;
      for (long long start = part * each; start < end; start += LANES) {
        long long at = start + lane;
        unsigned votes = __ballot_sync(FULL, at < end && row_of(p, at) - first == row);
        while (votes) {
          long long other = start + __ffs(votes) - 1;
          if (inside) add(sum, dy + other * p.width);
          votes &= votes - 1;
        }
      }
    }
    if (share > 1) {
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) parts[warp][lane * VECTOR + j] = sum[j];
      __syncthreads();
      if (part == 0)
        for (int other = 1; other < share; ++other)
#pragma unroll
          for (int j = 0; j < VECTOR; ++j) sum[j] += parts[warp + other][lane * VECTOR + j];
      __syncthreads();
    }
    if (row < rows && part == 0 && inside) {
      Vector v;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) down(v.at[j], sum[j]);
      *(Vector*)(p.out + (first + row) * p.width + column) = v;
    }
  }
}
"""


def source(dtype: str, index: str, vector: int) -> str:
    """Return the source for a table of ``dtype``, indices of dtype ``index``, and accesses of
    ``vector`` elements.
    """
    sizes = {"VECTOR": vector, "WARPS": WARPS, "READS": READS, "CAPACITY": CAPACITY}
    defines = "".join(f"#define {name} {value}\n" for name, value in sizes.items())
    types = f"typedef {C_TYPES[dtype]} T;\ntypedef {INDICES[index]} I;\n"
    return f"typedef float W;\n{CONVERSIONS}{types}{defines}{SOURCE}"


@dialect.op(op.embedding_dx)
def embedding_dx(call: CallValues) -> OpEnv:
    """Return the launch for a table of float16, bfloat16 or float32."""
    dy, indices, out = call.args.dy, call.args.indices, call.outputs[0]
    if dy.dtype not in ("float16", "bfloat16", "float32") or indices.dtype not in INDICES:
        raise Unsupported(f"no kernel for {dy.dtype} by {indices.dtype}")
    if not all(t.is_static for t in (dy, indices, out)):
        raise Unsupported("this kernel is made for extents that are numbers")
    rows, *row = out.static_shape
    width, count = prod(row), prod(indices.static_shape)
    if count >= MOST_INDICES:
        raise Unsupported(f"{count} indices, more than this kernel notes")
    if not rows * width:
        return OpEnv(lambda *_: None, allocates=False)
    each = max(1, min(MOST_ROWS, rows // BLOCKS))
    wide = BYTES // (4 if dy.dtype == "float32" else 2)

    @cache
    def kernel(vector: int) -> driver.Function:
        text = source(dy.dtype, indices.dtype, vector)
        return cubin.function(text, "embedding_dx", call.device.ordinal)

    def run(dy: torch.Tensor, indices: torch.Tensor, out: torch.Tensor) -> None:
        at = dy.data_ptr(), indices.data_ptr(), out.data_ptr()
        vector = wide if width % wide == 0 and (at[0] | at[2]) % BYTES == 0 else 1
        columns = -(-width // (32 * vector))
        given = struct.pack("<QQQqqqii", *at, count, width, rows, each, 0)
        kernel(vector).launch(-(-rows // each), WARPS * 32, given, columns)

    return OpEnv(run, allocates=False)
