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

LANES = 32
READS = 8
"""Indices, and rows of one, that a thread has under way."""
MOST_ROWS = 64
"""Rows of a thread block."""
BLOCKS = 512
"""Thread blocks that fill a GPU a few times over; of fewer rows, each gets fewer."""
FEW = 32
"""Rows that do not fill the GPU: their thread blocks are larger, of fewer columns each."""
HEAVY = 128
"""Indices of one row that one warp adds up; of more, all do."""
CAPACITIES = 2048, 4096, 8192
"""Indices that a thread block notes in shared memory; of more it searches all again."""
BYTES = 16
"""Of a vector access."""
MOST_INDICES = 1 << 26
"""Their places and a row's number are noted in 32 bits."""
INDICES = {"int32": "int", "int64": "long long"}

SOURCE = r"""
#define FULL 0xffffffffu
enum { NONE, SOME, MANY };

struct Parameters {
  const T* dy; const I* indices; T* out;
  long long count; long long width; long long rows; int rows_each; int spare;
};
struct __align__(sizeof(T) * VECTOR) Vector { T at[VECTOR]; };

inline void add(float* sum, const Vector& v) {
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) sum[j] += up(v.at[j]);
}

inline void store(T* to, const float* sum) {
  Vector v;
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) down(v.at[j], sum[j]);
  *(Vector*)to = v;
}

// Adds the rows whose places the lanes of ``votes`` hold, several reads under way.
inline void add_all(float* sum, const T* dy, long long width, unsigned votes, unsigned place) {
  while (votes) {
    Vector v[READS] = {};
#pragma unroll
    for (int j = 0; j < READS; ++j) {
      int from = votes ? __ffs(votes) - 1 : 0;
      unsigned other = __shfl_sync(FULL, place, from);
      if (votes) v[j] = *(const Vector*)(dy + (long long)other * width);
      votes &= votes - 1;
    }
#pragma unroll
    for (int j = 0; j < READS; ++j) add(sum, v[j]);
  }
}

inline bool names(const unsigned* found, int at, int end, int row) {
  return at < end && (int)(found[at] & 63) == row;
}

inline long long row_of(const Parameters& p, long long at) {
  long long row = (long long)p.indices[at];
  return row < 0 ? 0 : row >= p.rows ? p.rows - 1 : row;
}

extern "C" __global__ void __launch_bounds__(WARPS * LANES)
embedding_dx(const __grid_constant__ Parameters p) {
  __shared__ unsigned found[CAPACITY];   // position among the indices << 6 | row of this block
  __shared__ int before[READS * WARPS + 1];
  __shared__ float parts[WARPS][LANES * VECTOR];
  __shared__ unsigned char named[64];
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
      if (lane == 0) before[j * WARPS + warp] = __popc(votes[j]);
    }
    __syncthreads();
    if (warp == 0) {
      int carry = total;
      for (int k = lane; k < READS * WARPS; k += LANES) {
        int own = before[k], sum = own;
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) {
          int other = __shfl_up_sync(FULL, sum, step);
          if (lane >= step) sum += other;
        }
        before[k] = carry + sum - own;
        carry += __shfl_sync(FULL, sum, LANES - 1);
      }
      if (lane == 0) before[READS * WARPS] = carry;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < READS; ++j) {
      int place = before[j * WARPS + warp] + __popc(votes[j] & ((1u << lane) - 1));
      if (votes[j] >> lane & 1 && place < CAPACITY) {
        unsigned at = (unsigned)start + j * WARPS * LANES + threadIdx.x;
        found[place] = at << 6 | (unsigned)row[j];
      }
    }
    total = before[READS * WARPS];
    __syncthreads();
  }

  bool noted = total <= CAPACITY;
  int all = noted ? total : (int)p.count;

  // A row that few indices name is added up by one warp, the others by all.
  for (int row = warp; row < rows; row += WARPS) {
    int hits = 0;
    if (noted && rows >= WARPS)
      for (int start = 0; start < total; start += LANES)
        hits += __popc(__ballot_sync(FULL, names(found, start + lane, total, row)));
    if (lane == 0) named[row] = !noted || rows < WARPS || hits > HEAVY ? MANY : hits ? SOME : NONE;
  }
  __syncthreads();
  int each = (all + WARPS - 1) / WARPS, end = min(all, (warp + 1) * each);
  for (long long chunk = blockIdx.y; chunk * LANES * VECTOR < p.width; chunk += gridDim.y) {
    long long column = (chunk * LANES + lane) * VECTOR;
    bool inside = column < p.width;
    const T* dy = p.dy + (inside ? column : 0);
    T* out = p.out + first * p.width + column;
    for (int row = warp; row < rows; row += WARPS) {
      if (named[row] == MANY) continue;
      float sum[VECTOR] = {};
      for (int start = 0; named[row] && start < total; start += LANES) {
        unsigned votes = __ballot_sync(FULL, names(found, start + lane, total, row));
        if (votes) add_all(sum, dy, p.width, votes, found[min(start + lane, total - 1)] >> 6);
      }
      if (inside) store(out + row * p.width, sum);
    }
    for (int row = 0; row < rows; ++row) {
      if (named[row] != MANY) continue;
      float sum[VECTOR] = {};
      for (int start = warp * each; start < end; start += LANES) {
        int at = start + lane;
        bool hit = noted ? names(found, at, end, row) : at < end && row_of(p, at) - first == row;
        unsigned votes = __ballot_sync(FULL, hit);
        add_all(sum, dy, p.width, votes, noted && at < end ? found[at] >> 6 : at);
      }
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) parts[warp][lane * VECTOR + j] = sum[j];
      __syncthreads();
      if (warp == 0 && inside) {
        for (int other = 1; other < WARPS; ++other)
#pragma unroll
          for (int j = 0; j < VECTOR; ++j) sum[j] += parts[other][lane * VECTOR + j];
        store(out + row * p.width, sum);
      }
      __syncthreads();
    }
  }
}
"""


def source(dtype: str, index: str, vector: int, warps: int, capacity: int) -> str:
    """Return the source for a table of ``dtype``, indices of dtype ``index``, accesses of
    ``vector`` elements, and thread blocks of ``warps`` that note ``capacity`` indices.
    """
    sizes = {"VECTOR": vector, "WARPS": warps, "CAPACITY": capacity}
    sizes |= {"LANES": LANES, "READS": READS, "HEAVY": HEAVY}
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
    capacity = next((c for c in CAPACITIES if c >= count), CAPACITIES[-1])
    few = rows <= FEW
    warps, wide = (32, 2) if few else (8, BYTES // (4 if dy.dtype == "float32" else 2))
    size = wide * (4 if dy.dtype == "float32" else 2)

    device = call.device.ordinal

    def text(vector: int) -> str:
        return source(dy.dtype, indices.dtype, vector, warps, capacity)

    @cache
    def kernel(vector: int) -> driver.Function:
        return cubin.function(text(vector), "embedding_dx", device)

    def sources() -> list[str]:
        return [text(1 if width % wide else wide)]

    def run(dy: torch.Tensor, indices: torch.Tensor, out: torch.Tensor) -> None:
        at = dy.data_ptr(), indices.data_ptr(), out.data_ptr()
        vector = wide if width % wide == 0 and (at[0] | at[2]) % size == 0 else 1
        columns = -(-width // (LANES * vector)) if few else 1
        given = struct.pack("<QQQqqqii", *at, count, width, rows, each, 0)
        kernel(vector).launch(-(-rows // each), warps * LANES, given, columns)

    return OpEnv(cubin.deferred(run, sources, device), allocates=False)
