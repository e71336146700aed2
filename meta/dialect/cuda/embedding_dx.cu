// The gradient of a table: a thread block writes the rows of one bucket.
//
// WIDTH: elements of a row. VECTOR: of an access; PIECES: accesses of a thread to a row at a time;
// READS: rows whose reads are under way together. WARPS: of a thread block, of LANES threads, which
// notes CAPACITY indices. HEAVY: indices of one row that one warp adds up; of more, all do. With
// ADDS something is added to the gradient.
#include "embedding.cuh"
#include "packed.cuh"

#define THREADS (WARPS * LANES)
#define SPAN (PIECES * LANES * VECTOR)  // columns that a warp takes at a time
#define FOR_PIECES _Pragma("unroll") for (int i = 0; i < PIECES; ++i)
enum { SOME, MANY };

typedef float Sums[PIECES][VECTOR];

inline bool inside(const Parameters& p, long long column) {
  return PIECES * LANES * VECTOR == WIDTH || column < WIDTH;
}

// Writes a row, of which column is this thread's first.
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

// Adds the rows whose places the lanes of votes hold, several reads under way.
inline void add_all(Sums& sums, const Parameters& p, long long column, unsigned votes,
                    long long place) {
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
    for (int k = 0; k < READS; ++k) {
      FOR_PIECES {
        FOR_ELEMENTS sums[i][j] += element(v[k][i], j);
      }
    }
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
        for (int other = 1; other < WARPS && warp == 0; ++other) {
          FOR_ELEMENTS sums[i][j] += parts[other][lane * VECTOR + j];
        }
      }
      if (warp == 0) store(p, first + row, column, sums);
    }
  }
}
