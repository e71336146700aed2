// What runs over lists of tensors: what its kernels share.
//
// A kernel takes one struct by value: numbers, the addresses of all tensors, and their sizes. A
// thread block takes one chunk of one tensor, in vectors of four elements where addresses allow.
//
// COMPUTE: the type to compute in. THREADS: of a thread block. LISTS, TENSORS: how many lists there
// are, and for how many tensors of each there is room. NUMBERS: the names of the numbers. SUMS: how
// many sums of a chunk.
#pragma once
#include "scalars.cuh"

template <typename T> struct __align__(sizeof(T) * 4 < 16 ? sizeof(T) * 4 : 16) Four {
  T at[4];
};

inline float root(float x) { return sqrtf(x); }
inline double root(double x) { return sqrt(x); }
inline W clamped(W x, W bound) { return x > bound ? bound : x < -bound ? -bound : x; }

struct Number {
  const void* at;
  double value;
  int kind;
  int each;
};
inline double read(const Number& number, int tensor) {
  if (!number.at) return number.value;
  int i = number.each ? tensor : 0;
  switch (number.kind) {
    case 0: return ((const float*)number.at)[i];
    case 1: return ((const double*)number.at)[i];
    case 2: return up(((const f16*)number.at)[i]);
    case 3: return up(((const bf16*)number.at)[i]);
    case 4: return ((const int*)number.at)[i];
    default: return (double)((const long long*)number.at)[i];
  }
}

struct Numbers {
  Number NUMBERS;
};

struct Parameters {
  const bool* skip;
  double* partial;  // sums over chunks: [chunk, SUMS]
  long long first_chunk;
  void* result;
  int count;  // tensors of the launch
  int spare;
  Numbers number;
  void* at[LISTS][TENSORS];
  long long size[TENSORS];
  int index[TENSORS];      // of each tensor, among those of all launches
  int chunk[TENSORS + 1];  // the first chunk of each tensor, within the launch
};
#if __CUDA_ARCH__ >= 700
#define GRID_CONSTANT __grid_constant__
#else
#define GRID_CONSTANT
#endif

inline double sum_of_block(double value, double* scratch) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    __syncthreads();
  }
  double total = scratch[0];
  __syncthreads();
  return total;
}

// Writes the root of the sum of all chunks, of which there are p.first_chunk.
extern "C" __global__ void finish(const GRID_CONSTANT Parameters p) {
  __shared__ double scratch[THREADS];
  double total = 0;
  for (long long i = threadIdx.x; i < p.first_chunk; i += THREADS) total += p.partial[i];
  total = sum_of_block(total, scratch);
  if (threadIdx.x == 0) *(float*)p.result = (float)sqrt(total);
}
