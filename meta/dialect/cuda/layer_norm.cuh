// Layer normalisation over the last axis, and its gradients; those of normalisation by the root
// mean square, too, which takes no mean off.
//
// The threads of a row, GROUP of them, hold it in registers. While they work on one row, the next
// one of theirs is under way: what is read ahead takes the place of more threads.
//
// Types: DATA of x, PARAMETER of scale and bias, ADDEND of what is added to x before the forward
// pass (ADDS), to the result of the backward pass. GRADIENT of dy, MORE of what is added to that
// (DY_ADDS). RESULT of the result, AGAIN of a second copy of it. WIDTH: elements of a row. VECTOR:
// of an access. THREADS: of a thread block. ROUNDS: whether the sum is rounded to DATA before it is
// normalised. CENTERS: whether the mean is taken off. SUMMED: whether the result of the backward
// pass is summed over all rows. SUMS: how many sums over all rows that pass makes. AHEAD: whether
// the next row is read before one is worked on.
#pragma once
#include "packed.cuh"

typedef DATA T;
typedef PARAMETER P;
typedef ADDEND A;
typedef GRADIENT D;
typedef MORE M;
typedef RESULT R;
typedef AGAIN N;

#define FULL 0xffffffffu
#define GROUPS (THREADS / GROUP)
#define STEP (GROUP * VECTOR)
#define EACH ((WIDTH + STEP - 1) / STEP)
#define PADDED (EACH * STEP)

struct Parameters {
  const T* x;
  const D* dy;
  const M* more;
  const P* scale;
  const P* bias;
  const float* mean;
  const float* inv;
  const A* addend;
  R* out;
  N* again;
  float* new_mean;
  float* new_inv;
  float* partial;
  P* dscale;
  P* dbias;
  float* dsum;
  T* added;
  A* wide;
  long long rows;
  int blocks;
  float eps;
};
// What a thread holds of a row: as it is, and as numbers.
template <class E> struct Raw {
  Packed<E> at[EACH];
};
typedef float Row[EACH][VECTOR];

// clang-format off
#define FOR_EACH \
  _Pragma("unroll") for (int i = 0; i < EACH; ++i) \
    if (int column = i * STEP + lane * VECTOR; WIDTH % STEP == 0 || column < WIDTH)
// clang-format on

// The result for an access, and its copy in another type, which is rounded from it.
inline void put(const Parameters& p, long long place, const float* numbers) {
  Vector<R> v;
  Vector<N> again;
  FOR_ELEMENTS {
    down(v.at[j], numbers[j]);
    down(again.at[j], up(v.at[j]));
  }
  if (p.out) *(Vector<R>*)(p.out + place) = v;
  if (p.again) *(Vector<N>*)(p.again + place) = again;
}

// The sums of some numbers over the threads of a row. turn, 0 to 3: not that of the last call.
template <int N> inline void total(float* numbers, int turn) {
#pragma unroll
  for (int k = 16; k > 0; k /= 2) {
#pragma unroll
    for (int n = 0; n < N; ++n) numbers[n] += __shfl_xor_sync(FULL, numbers[n], k);
  }
#if GROUP > 32
  __shared__ float parts[4][2 * THREADS / 32];
  int warp = threadIdx.x / 32;
#pragma unroll
  for (int n = 0; n < N; ++n)
    if (threadIdx.x % 32 == 0) parts[turn][2 * warp + n] = numbers[n];
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    numbers[n] = 0;
#pragma unroll
    for (int k = 0; k < GROUP / 32; ++k)
      numbers[n] += parts[turn][2 * (warp / (GROUP / 32) * (GROUP / 32) + k) + n];
  }
#endif
}

template <class E> inline void fetch(Raw<E>& to, const E* row, int lane) {
  FOR_EACH to.at[i] = packed(row + column);
}

template <class E> inline void widen(Row& to, const Raw<E>& from, int lane) {
  FOR_EACH {
    FOR_ELEMENTS to[i][j] = element(from.at[i], j);
  }
}

// The mean of a row, which is taken off it, and 1 / deviation; of CENTERS 0, the mean is 0. What
// the first sum rounds away, a second one finds: in a row of equal numbers, inv makes it visible.
inline void statistics(Row& x, int lane, float eps, float& mean, float& inv) {
  float sums[2] = {0, 0};
  mean = 0;
#if CENTERS
  FOR_EACH {
    float some = 0;
    FOR_ELEMENTS some += x[i][j];
    mean += some;
  }
  total<1>(&mean, 2);
  mean *= 1.0f / WIDTH;
#endif
  FOR_EACH {
    float some[2] = {0, 0};
    FOR_ELEMENTS {
      x[i][j] -= mean;
      some[0] += x[i][j] * x[i][j];
      some[1] += x[i][j];
    }
    sums[0] += some[0];
    sums[1] += some[1];
  }
#if CENTERS
  total<2>(sums, 3);
  float rest = sums[1] * (1.0f / WIDTH);
  mean += rest;
  FOR_EACH {
    FOR_ELEMENTS x[i][j] -= rest;
  }
  inv = rsqrtf(sums[0] * (1.0f / WIDTH) - rest * rest + eps);
#else
  total<1>(sums, 3);
  inv = rsqrtf(sums[0] * (1.0f / WIDTH) + eps);
#endif
}
