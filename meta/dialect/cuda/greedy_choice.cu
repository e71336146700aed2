// The most probable of a row of scores and the logarithm of its probability: `choose` finds what
// there is in a part of a row, `join` makes the results.
//
// DATA: the dtype. COLUMNS: of a row. SPLITS: parts of a row, a thread block each. THREADS: of a
// thread block.
#define VECTOR 8
#include "early.cuh"
#include "packed.cuh"
#include "warp.cuh"

typedef DATA T;
#define EACH ((COLUMNS + SPLITS * VECTOR - 1) / (SPLITS * VECTOR) * VECTOR)
#define LOG2E 1.4426950408889634f
#define LEAST __int_as_float(0xff800000)
#define NOTHING __int_as_float(0x7fffffff)

// The largest score, the first place where it is, and the sum of the powers of all beside it.
struct Found {
  float top;
  int at;
  float sum;
};

struct Parameters {
  const T* scores;
  Found* parts;
  long long* tokens;
  float* logprobs;
};

inline float power(float x, float top) { return exp2f((x - (top == LEAST ? 0 : top)) * LOG2E); }

inline void add(Found& to, const Found& more) {
  bool higher = more.top > to.top || (more.top == to.top && more.at < to.at);
  float top = more.top > to.top ? more.top : to.top;
  to.sum = to.sum * power(to.top, top) + more.sum * power(more.top, top);
  if (higher) to.at = more.at;
  to.top = top;
}

inline void join_lanes(Found& found) {
#pragma unroll
  for (int k = 16; k > 0; k /= 2) {
    Found other = {__shfl_xor_sync(FULL, found.top, k), __shfl_xor_sync(FULL, found.at, k),
                   __shfl_xor_sync(FULL, found.sum, k)};
    add(found, other);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) choose(const __grid_constant__ Parameters p) {
  __shared__ float tops[THREADS / 32];
  __shared__ float sums[THREADS / 32];
  __shared__ int places[THREADS / 32];
  await_others();
  int begin = blockIdx.x * EACH, end = begin + EACH < COLUMNS ? begin + EACH : COLUMNS;
  const T* row = p.scores + (long long)blockIdx.y * COLUMNS;
  Found found = {LEAST, COLUMNS, 0};
  for (int i = begin + threadIdx.x * VECTOR; i < end; i += THREADS * VECTOR) {
    float x[VECTOR];
    if (COLUMNS % VECTOR == 0) {
      Packed<T> some = packed(row + i);
      FOR_ELEMENTS x[j] = element(some, j);
    } else {
      FOR_ELEMENTS x[j] = i + j < end ? up(row[i + j]) : LEAST;
    }
    float top = found.top;
    FOR_ELEMENTS {
      if (x[j] > top) top = x[j], found.at = i + j;
    }
    found.sum *= power(found.top, top);
    found.top = top;
    FOR_ELEMENTS found.sum += power(x[j], top);
  }
  let_others_begin();
  join_lanes(found);
  if (threadIdx.x % 32 == 0) {
    tops[threadIdx.x / 32] = found.top;
    sums[threadIdx.x / 32] = found.sum;
    places[threadIdx.x / 32] = found.at;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < THREADS / 32; ++w) add(found, {tops[w], places[w], sums[w]});
    p.parts[blockIdx.y * SPLITS + blockIdx.x] = found;
  }
}

extern "C" __global__ void __launch_bounds__(32) join(const __grid_constant__ Parameters p) {
  let_others_begin();
  await_others();
  Found found = {LEAST, COLUMNS, 0};
  for (int i = threadIdx.x; i < SPLITS; i += 32) add(found, p.parts[blockIdx.x * SPLITS + i]);
  join_lanes(found);
  if (threadIdx.x) return;
  // A row of NaNs or of infinities has no largest score.
  bool fits = found.at < COLUMNS;
  p.tokens[blockIdx.x] = fits ? found.at : 0;
  p.logprobs[blockIdx.x] = fits ? -logf(found.sum) : NOTHING;
}
