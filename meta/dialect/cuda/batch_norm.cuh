// Batch normalisation with the channels last: what both passes share.
//
// An array is [rows, channels]. The grid is the same for both kernels of a pass: blockIdx.y is a
// tile of WIDTH channels, whose rows its thread blocks share. sums() adds up the rows of each
// thread block; apply() begins by adding up the blocks, which are few, and goes over the rows once
// more, the last first: those are still in the cache. Every sum is in one order, so results are the
// same bits at every run. Sums are of differences to a row of the array, lest digits of a small
// variance are lost beside a large mean.
//
// Types: DATA of x and what has its shape, PARAMETER of w and b, RUNNING of the running statistics,
// DW and DB of the gradients. VECTOR: the elements of an access. LANES: the accesses to a row by a
// thread block, a power of 2. SUMS: how many there are. SUMS_AHEAD, APPLY_AHEAD: the rows that a
// thread of each kernel reads at a time. THREADS: of a thread block.
#pragma once
#include "scalars.cuh"
#ifdef ACTIVATION
#include "activation.cuh"
#endif

typedef DATA T;
typedef PARAMETER P;
typedef RUNNING R;

struct Parameters {
  const T* x;
  const T* z;
  const T* y;
  const T* dy;
  const P* w;
  const P* b;
  R* running_mean;
  R* running_var;
  T* out;
  T* masked;
  DW* dw;
  DB* db;
  unsigned char* mask;
  float* partial;
  long long rows;
  int channels;
  float momentum;
  float eps;
};
struct __align__(sizeof(T) * VECTOR) Vector {
  T at[VECTOR];
};

#define WIDTH (LANES * VECTOR)     // channels of a tile
#define PARTS (THREADS / LANES)    // rows that a thread block reads at a time
#define HELPERS (THREADS / WIDTH)  // threads that add up one channel
#define FOR_ELEMENTS _Pragma("unroll") for (int j = 0; j < VECTOR; ++j)
#define FOR_AHEAD _Pragma("unroll") for (int i = 0; i < AHEAD; ++i) if (row + i * step < p.rows)
#define PLACE                                                                  \
  int lane = threadIdx.x % LANES, column = blockIdx.y * WIDTH + lane * VECTOR; \
  int channel = blockIdx.y * WIDTH + threadIdx.x % WIDTH;                      \
  long long first = (long long)blockIdx.x * PARTS + threadIdx.x / LANES;       \
  long long step = (long long)gridDim.x * PARTS;                               \
  bool inside = column < p.channels, owns = threadIdx.x < WIDTH && channel < p.channels;

inline Vector read(const T* from, long long at) { return *(const Vector*)(from + at); }
inline void write(T* to, long long at, Vector v) { *(Vector*)(to + at) = v; }

// The row that others are compared with: not the first one, which is a corner of an image.
inline const T* typical(const Parameters& p) { return p.x + p.rows / 3 * p.channels; }

// The sum of what the threads of a channel have, for all of them.
inline float over_helpers(float mine) {
  __shared__ float some[THREADS];
  __syncthreads();  // the result of the call before is read
  some[threadIdx.x] = mine;
  __syncthreads();
  for (int half = HELPERS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half * WIDTH) some[threadIdx.x] += some[threadIdx.x + half * WIDTH];
    __syncthreads();
  }
  return some[threadIdx.x % WIDTH];
}

// The sum of what the threads of a lane have: that of one channel, threadIdx.x % WIDTH.
inline float over_parts(const float* mine) {
  __shared__ float all[VECTOR][THREADS + 4];  // no two lanes in one bank
  FOR_ELEMENTS all[j][threadIdx.x] = mine[j];
  __syncthreads();
  int c = threadIdx.x % WIDTH, begin = threadIdx.x / WIDTH * LANES * VECTOR;
  float sum = 0.0f;
  FOR_ELEMENTS sum += all[c % VECTOR][begin + j * LANES + c / VECTOR];
  return over_helpers(sum);
}

// Keeps sums of this thread block, from the given one on.
template <int FROM, int COUNT>
inline void keep(const Parameters& p, float (*sum)[VECTOR], int channel, bool owns) {
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    float found = over_parts(sum[k]);
    if (owns) p.partial[((long long)blockIdx.x * SUMS + FROM + k) * p.channels + channel] = found;
  }
}

// Sums x and its square over the rows of a thread block.
inline void sum_x(const Parameters& p) {
  PLACE
  constexpr int AHEAD = SUMS_AHEAD;
  float sum[2][VECTOR] = {};
  if (inside) {
    Vector shift = read(typical(p), column);
    for (long long row = first; row < p.rows; row += AHEAD * step) {
      Vector x[AHEAD];
      FOR_AHEAD x[i] = read(p.x, (row + i * step) * p.channels + column);
      FOR_AHEAD {
        FOR_ELEMENTS {
          float d = up(x[i].at[j]) - up(shift.at[j]);
          sum[0][j] += d;
          sum[1][j] += d * d;
        }
      }
    }
  }
  keep<0, 2>(p, sum, channel, owns);
}

// Adds up the first sums of all thread blocks, for one channel; most of the time is spent waiting.
template <int COUNT> inline void gather(const Parameters& p, float* sum, int channel) {
  const int at_once = 8;
  int blocks = channel < p.channels ? gridDim.x : 0;
  for (int begin = threadIdx.x / WIDTH; begin < blocks; begin += at_once * HELPERS) {
    float found[at_once][COUNT] = {};
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      int block = begin + i * HELPERS;
      const float* from = p.partial + (long long)block * SUMS * p.channels + channel;
#pragma unroll
      for (int k = 0; k < COUNT; ++k)
        if (block < blocks) found[i][k] = from[(long long)k * p.channels];
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
#pragma unroll
      for (int k = 0; k < COUNT; ++k) sum[k] += found[i][k];
    }
  }
#pragma unroll
  for (int k = 0; k < COUNT; ++k) sum[k] = over_helpers(sum[k]);
}

struct Statistics {
  float mean, var, inv, scale;
  float d;  // mean less the typical row
};

// The statistics of a channel. What they need beside the sums is read while those arrive.
template <int COUNT> inline Statistics statistics(const Parameters& p, float* sum, int channel) {
  Statistics s;
  bool there = channel < p.channels;
  s.mean = there ? up(typical(p)[channel]) : 0.0f;
  s.scale = there && p.w ? (float)up(p.w[channel]) : 1.0f;
  gather<COUNT>(p, sum, channel);
  float n = p.rows;
  s.d = sum[0] / n;
  s.var = sum[1] / n - s.d * s.d;
  s.var = s.var < 0.0f ? 0.0f : s.var;  // a NaN stays
  s.mean += s.d;
  s.inv = 1.0f / sqrtf(s.var + p.eps);
  s.scale *= s.inv;
  return s;
}
