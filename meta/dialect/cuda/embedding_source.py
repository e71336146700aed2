"""CUDA source of the gradient of an embedding's table.

The rows of the table are divided into buckets, one for a thread block of ``embedding_dx``, which
writes them. Before, ``arrange`` sorts each chunk of indices by bucket, in the order in which they
are within one; so a thread block finds its own with two numbers per chunk, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from meta.dialect.cuda.packed import PACKED
from meta.dialect.cuda.scalars import C_TYPES, CONVERSIONS

LANES = 32
CHUNK = 256
"""Indices that are sorted together, one for each thread: by counting the smaller ones."""
MOST_ROWS = 64
"""Rows of a bucket: with a place in a chunk, one fits in 16 bits."""
HEAVY = 128
"""Indices of one row that one warp adds up; of more, all do."""
INDICES = {"int32": "int", "int64": "long long"}

COMMON = r"""
#define FULL 0xffffffffu

struct Parameters {
  const T* dy; const I* indices; const A* addend; T* out;
  unsigned short* entries; unsigned short* starts;
  long long count; long long width; long long rows; int rows_each; int chunks;
};

inline unsigned row_of(const Parameters& p, long long at) {
  long long row = (long long)p.indices[at];
  return (unsigned)(row < 0 ? 0 : row >= p.rows ? p.rows - 1 : row);
}
"""

ARRANGE = r"""
// entries: places in the chunk, with the row in its bucket above. starts: by chunk and bucket.
extern "C" __global__ void __launch_bounds__(CHUNK)
arrange(const __grid_constant__ Parameters p) {
  __shared__ unsigned keys[CHUNK];  // bucket, place
  __shared__ unsigned sorted[CHUNK];
  long long base = (long long)blockIdx.x * CHUNK;
  int place = threadIdx.x;
  bool inside = base + place < p.count;
  unsigned row = inside ? row_of(p, base + place) : 0;
  unsigned key = inside ? row / p.rows_each * CHUNK + place : FULL - CHUNK + place;
  keys[place] = key;
  __syncthreads();
  int rank = 0;
#pragma unroll 32
  for (int k = 0; k < CHUNK; ++k) rank += keys[k] < key;
  sorted[rank] = key;
  if (inside)
    p.entries[base + rank] = (unsigned short)(row % p.rows_each * CHUNK + place);
  __syncthreads();
  int buckets = (int)((p.rows + p.rows_each - 1) / p.rows_each);
  unsigned short* starts = p.starts + blockIdx.x * (buckets + 1ll);
#pragma unroll 4
  for (int bucket = threadIdx.x; bucket <= buckets; bucket += CHUNK) {
    unsigned bound = (unsigned)bucket * CHUNK;
    int first = 0;  // how many keys are of the buckets before
#pragma unroll
    for (int half = CHUNK / 2; half > 0; half /= 2)
      if (sorted[first + half - 1] < bound) first += half;
    starts[bucket] = (unsigned short)(first + (sorted[first] < bound));
  }
}
"""

GATHER = r"""
#define THREADS (WARPS * LANES)
#define SPAN (PIECES * LANES * VECTOR)   // columns that a warp takes at a time
#define FOR_PIECES _Pragma("unroll") for (int i = 0; i < PIECES; ++i)
enum { SOME, MANY };

typedef float Sums[PIECES][VECTOR];

inline bool inside(const Parameters& p, long long column) {
  return PIECES * LANES * VECTOR == WIDTH || column < WIDTH;
}

// Writes a row, of which ``column`` is this thread's first.
inline void store(const Parameters& p, long long row, long long column, const Sums& sums) {
#ifdef ADDS
  Packed<A> addend[PIECES];
  FOR_PIECES {
    long long at = column + i * LANES * VECTOR;
    if (inside(p, at)) addend[i] = packed(p.addend + row * WIDTH + at);
  }
#endif
  FOR_PIECES {
    long long at = column + i * LANES * VECTOR;
    if (!inside(p, at)) continue;
    Vector<T> v;
#ifdef ADDS
    FOR_ELEMENTS down(v.at[j], sums[i][j] + element(addend[i], j));
#else
    FOR_ELEMENTS down(v.at[j], sums[i][j]);
#endif
    *(Vector<T>*)(p.out + row * WIDTH + at) = v;
  }
}

// Adds the rows whose places the lanes of ``votes`` hold, several reads under way.
inline void add_all(
    Sums& sums, const Parameters& p, long long column, unsigned votes, long long place) {
  while (votes) {
    Packed<T> v[READS][PIECES] = {};
#pragma unroll
    for (int k = 0; k < READS; ++k) {
      long long from = __shfl_sync(FULL, place, votes ? __ffs(votes) - 1 : 0);
      FOR_PIECES {
        long long at = column + i * LANES * VECTOR;
        if (votes && inside(p, at)) v[k][i] = packed(p.dy + from * WIDTH + at);
      }
      votes &= votes - 1;
    }
#pragma unroll
    for (int k = 0; k < READS; ++k)
      FOR_PIECES FOR_ELEMENTS sums[i][j] += element(v[k][i], j);
  }
}

inline bool names(const unsigned* found, int at, int end, int row) {
  return at < end && (int)(found[at] % 64) == row;
}

extern "C" __global__ void __launch_bounds__(THREADS)
embedding_dx(const __grid_constant__ Parameters p) {
  __shared__ unsigned found[CAPACITY];  // place among the indices * 64 + row of this block
  __shared__ int lengths[WARPS];
  __shared__ int begins[THREADS];
  __shared__ int places[THREADS];
  __shared__ float parts[WARPS][LANES * VECTOR];
  __shared__ unsigned char named[64];
  int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  long long first = (long long)blockIdx.x * p.rows_each;
  long long left = p.rows - first;
  int rows = left < p.rows_each ? (int)left : p.rows_each;
  const unsigned short* starts = p.starts + blockIdx.x;  // of a chunk after the other
  long long next = gridDim.x + 1ll;

  // The indices that name these rows, in order.
  int total = 0;
  for (int begin = 0; begin < p.chunks; begin += THREADS) {
    int chunk = begin + threadIdx.x, from = 0, length = 0;
    if (chunk < p.chunks) {
      from = starts[chunk * next];
      length = starts[chunk * next + 1] - from;
    }
    int before = length;
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
      int other = __shfl_up_sync(FULL, before, step);
      if (lane >= step) before += other;
    }
    __syncthreads();  // the chunks before are copied
    if (lane == LANES - 1) lengths[warp] = before;
    __syncthreads();
    int sum = total;
    for (int k = 0; k < WARPS; ++k) {
      if (k < warp) before += lengths[k];
      sum += lengths[k];
    }
    begins[threadIdx.x] = from;
    places[threadIdx.x] = total + before - length;
    __syncthreads();
    for (int at = total + threadIdx.x; at < min(sum, CAPACITY); at += THREADS) {
      int k = 0;  // the last chunk that begins there or before
#pragma unroll
      for (int half = THREADS / 2; half > 0; half /= 2)
        if (places[k + half] <= at) k += half;
      long long base = (long long)(begin + k) * CHUNK;
      unsigned entry = p.entries[base + begins[k] + at - places[k]];
      found[at] = (unsigned)(base + entry % CHUNK) * 64 + entry / CHUNK;
    }
    total = sum;
  }
  __syncthreads();
  bool noted = total <= CAPACITY;

  // A row that few indices name is added up by one warp, the others by all.
  for (int row = warp; row < rows; row += WARPS) {
    int hits = 0;
    if (noted && rows >= WARPS)
      for (int start = 0; start < total; start += LANES)
        hits += __popc(__ballot_sync(FULL, names(found, start + lane, total, row)));
    if (lane == 0) named[row] = !noted || rows < WARPS || hits > HEAVY ? MANY : SOME;
  }
  __syncthreads();
  int each = (total + WARPS - 1) / WARPS, end = min(total, (warp + 1) * each);
  int chunks_each = (p.chunks + WARPS - 1) / WARPS;
  int last = min(p.chunks, (warp + 1) * chunks_each);
  for (long long span = blockIdx.y; span * SPAN < WIDTH; span += gridDim.y) {
    long long column = span * SPAN + lane * VECTOR;
    for (int row = warp; row < rows; row += WARPS) {
      if (named[row] == MANY) continue;
      Sums sums = {};
      for (int start = 0; start < total; start += LANES) {
        unsigned votes = __ballot_sync(FULL, names(found, start + lane, total, row));
        if (votes) add_all(sums, p, column, votes, found[min(start + lane, total - 1)] / 64);
      }
      store(p, first + row, column, sums);
    }
    for (int row = 0; row < rows; ++row) {
      if (named[row] != MANY) continue;
      Sums sums = {};
      for (int start = warp * each; noted && start < end; start += LANES) {
        int at = start + lane;
        unsigned votes = __ballot_sync(FULL, names(found, at, end, row));
        add_all(sums, p, column, votes, at < end ? found[at] / 64 : 0);
      }
      for (int chunk = warp * chunks_each; !noted && chunk < last; ++chunk) {
        const unsigned short* entries = p.entries + (long long)chunk * CHUNK;
        int stop = starts[chunk * next + 1];
        for (int start = starts[chunk * next]; start < stop; start += LANES) {
          unsigned entry = start + lane < stop ? entries[start + lane] : FULL;
          unsigned votes = __ballot_sync(FULL, (int)(entry / CHUNK) == row);
          add_all(sums, p, column, votes, (long long)chunk * CHUNK + entry % CHUNK);
        }
      }
#pragma unroll
      for (int i = 0; i < PIECES; ++i) {
        __syncthreads();
        FOR_ELEMENTS parts[warp][lane * VECTOR + j] = sums[i][j];
        __syncthreads();
        for (int other = 1; other < WARPS && warp == 0; ++other)
          FOR_ELEMENTS sums[i][j] += parts[other][lane * VECTOR + j];
      }
      if (warp == 0) store(p, first + row, column, sums);
    }
  }
}
"""
KERNELS = {"arrange": ARRANGE, "embedding_dx": GATHER}


@dataclass(frozen=True, slots=True)
class Variant:
    """What a source is made for: a table of ``dtype``, of rows of ``width`` elements, indices of
    dtype ``index``, accesses of ``vector``, thread blocks of ``warps`` that note ``capacity``
    indices; ``pieces``: accesses of a thread to a row at a time. ``addend``: the dtype of what
    is added to the gradient.
    """

    dtype: str
    index: str
    width: int
    vector: int
    warps: int
    capacity: int
    pieces: int
    addend: str | None = None


def source(kernel: str, v: Variant) -> str:
    """Return the source of a kernel: "arrange", or "embedding_dx", which runs after it."""
    sizes = {"VECTOR": v.vector, "WARPS": v.warps, "CAPACITY": v.capacity, "WIDTH": f"{v.width}ll"}
    sizes |= {"PIECES": v.pieces, "READS": max(2, 8 // v.pieces), "LANES": LANES}
    sizes |= {"HEAVY": HEAVY}
    if v.addend:
        sizes["ADDS"] = 1
    packed = PACKED
    if kernel == "arrange":
        sizes, packed = {}, ""
    sizes["CHUNK"] = CHUNK
    defines = "".join(f"#define {name} {value}\n" for name, value in sizes.items())
    types = {"T": C_TYPES[v.dtype], "A": C_TYPES[v.addend or v.dtype], "I": INDICES[v.index]}
    typedefs = "".join(f"typedef {text} {name};\n" for name, text in types.items())
    return f"typedef float W;\n{CONVERSIONS}{typedefs}{defines}{packed}{COMMON}{KERNELS[kernel]}"
